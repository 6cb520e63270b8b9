# The worker in a small image. `docker build -t tributary --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .`
FROM rust:1.95-bookworm AS build
# g++, make and perl build librdkafka and its OpenSSL; the rust image has the compilers already.
RUN apt-get update && apt-get install -y --no-install-recommends g++ make perl && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY src src
COPY schemas schemas
COPY benches benches
COPY tests tests
# For `tributary --version`; the repository itself is not in here.
ARG COMMIT=
RUN TRIBUTARY_COMMIT=$COMMIT cargo build --release --locked --bin tributary

FROM debian:bookworm-slim
# Certificates to trust: the schema registry and the provider are reached over TLS.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --home-dir /var/lib/tributary --create-home tributary
COPY --from=build /src/target/release/tributary /usr/local/bin/tributary
USER tributary
WORKDIR /var/lib/tributary
# Deliveries that were answered may exist only here for a while.
VOLUME /var/lib/tributary
ENTRYPOINT ["tributary"]
CMD ["--help"]
