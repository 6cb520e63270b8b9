# Short names for the commands of CONTRIBUTING.md; `just` lists them. Optional: you can also type the commands below.

_default:
    @just --list --unsorted

# Unit tests: no Kafka, no network.
test:
    cargo test --locked --lib

# All tests.
all:
    cargo test --locked

# Integration tests of one area, such as `just area enrich::lists`.
area name:
    cargo test --locked --test it -- {{name}}

# Formatting and lints, as the gate has them.
lint:
    cargo fmt --all --check
    cargo clippy --locked --all-targets -- -D warnings

# The gate that every change has to pass: lints, docs, dependencies, alerts and all tests on a real Kafka.
gate:
    .ci/run

# The long checks, all or by name; `just nightly --list` prints the names.
nightly *names:
    .ci/nightly {{names}}

# One benchmark with its arguments, such as `just bench ingest` or `just bench enrich whale`.
bench name *arguments:
    cargo bench --locked -p tributary --features dist --bench {{name}} -- {{arguments}}

# The documentation of the code, without warnings.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps

# Fuzzing, for this many seconds per target.
fuzz seconds="600":
    fuzz/run {{seconds}}
