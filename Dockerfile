# syntax=docker/dockerfile:1
# The worker, its command line and the simulated provider in a small image without root.
# `docker build -t tributary --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .`
FROM rust:1.95-bookworm AS build
# g++, make and perl build librdkafka, its OpenSSL and the allocator; this image has them all.
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY src src
COPY schemas schemas
COPY benches benches
COPY tests tests
# For `tributary --version`; the repository itself is not in here.
ARG COMMIT=
# The caches belong to the machine that builds, so that a second build compiles what has changed; the image gets the binary alone.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    TRIBUTARY_COMMIT=$COMMIT cargo build --release --locked --bin tributary \
    && cp target/release/tributary /usr/local/bin/tributary

FROM debian:bookworm-slim
# Certificates to trust: the schema registry and the provider are reached over TLS. They are no reason to pin a version: the newest
# are wanted.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tributary \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/tributary --create-home --shell /usr/sbin/nologin tributary
COPY --from=build /usr/local/bin/tributary /usr/local/bin/tributary
# By number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /var/lib/tributary
# Deliveries that were answered may exist only here for a while.
VOLUME /var/lib/tributary
# 8083: REST API, /metrics and /health. 8443: deliveries, where webhook.listeners says so.
EXPOSE 8083 8443
# Whether the process answers, for a worker with `listeners` on port 8083 without TLS. Not whether Kafka does: whoever restarts what is
# unhealthy would restart a worker that is busy taking deliveries into its spool.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8083 && printf 'GET /health/live HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.. 200' <&3"]
# SIGTERM ends a worker in order, within shutdown.timeout.ms.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tributary"]
CMD ["--help"]
