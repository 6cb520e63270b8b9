# The worker and its command line in a small image without root. It has no simulated provider: the target `demo` has it, for
# docker-compose.yml.
# `docker build -t tributary --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .`
#
# Both bases are pinned by digest, and the build refuses a base without one. A pin does not renew itself: for the base's security
# updates, replace the digest by the one that `docker buildx imagetools inspect NAME:TAG --format '{{.Manifest.Digest}}'` prints.
# There is no `# syntax` line, because it names an image as well, by a tag that moves.
ARG RUST_IMAGE=rust:1.95-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1
ARG RUNTIME_IMAGE=debian:bookworm-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

FROM ${RUST_IMAGE} AS sources
WORKDIR /src
COPY .ci/pinned .ci/sbom .ci/tool .ci/
ARG RUST_IMAGE
ARG RUNTIME_IMAGE
RUN .ci/pinned "$RUST_IMAGE" "$RUNTIME_IMAGE"
# g++, make and perl build librdkafka, its OpenSSL and the allocator; this image has them all. The runtime image has no OpenSSL.
ENV TRIBUTARY_OPENSSL=vendored
COPY Cargo.toml Cargo.lock build.rs ./
COPY crates crates
COPY src src
COPY schemas schemas
COPY benches benches
COPY tests tests

# The caches stay on the build machine, so that a second build compiles only changes; the image gets only the binary.
FROM sources AS build-demo
# For `tributary --version`; the repository itself is not in here.
ARG COMMIT=
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    TRIBUTARY_COMMIT=$COMMIT cargo build -p tributary --profile dist --features dist --locked \
    && cp target/dist/tributary /usr/local/bin/tributary

FROM sources AS build
ARG COMMIT=
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    TRIBUTARY_COMMIT=$COMMIT cargo build -p tributary --profile dist --no-default-features --features dist --locked \
    && cp target/dist/tributary /usr/local/bin/tributary
# Software bill of materials (SBOM), for image scanners.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/usr/local/cargo/tools \
    .ci/sbom /sbom.cdx.json

FROM ${RUNTIME_IMAGE} AS runtime
# CA certificates, because the schema registry and the provider use TLS. Their version is not pinned: the newest list is
# the right one.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tributary \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/tributary --create-home --shell /usr/sbin/nologin tributary
# By number, so that Kubernetes can check that it is not root.
USER 10001:10001
WORKDIR /var/lib/tributary
# Acknowledged deliveries may exist only here for a while.
VOLUME /var/lib/tributary
# 8083: REST API, /metrics and /health. 8443: deliveries, where webhook.listeners says so.
EXPOSE 8083 8443
# Liveness of the process, for a worker with `listeners` on port 8083 without TLS. It does not check Kafka: a restart because
# of Kafka would stop a worker that is taking deliveries into its spool.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8083 && printf 'GET /health/live HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.. 200' <&3"]
# SIGTERM ends a worker in order, within shutdown.timeout.ms.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tributary"]
CMD ["--help"]

# With the simulated provider: `docker build --target demo .`
FROM runtime AS demo
COPY --from=build-demo /usr/local/bin/tributary /usr/local/bin/tributary

FROM runtime
COPY --from=build /usr/local/bin/tributary /usr/local/bin/tributary
COPY --from=build /sbom.cdx.json /usr/share/doc/tributary/sbom.cdx.json
