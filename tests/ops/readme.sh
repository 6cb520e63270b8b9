#!/usr/bin/env bash
# Runs the README's "A worker against it" as it stands there, from the certificate to the comparison.
#
#   tests/ops/readme.sh                          # target/release/tributary, or target/debug
#   tests/ops/readme.sh path/to/tributary
#
# Needs a Kafka on localhost:9092 and a registry on localhost:8081, both empty (`docker compose up -d kafka registry`), openssl, and the
# right to listen on port 443. Leaves topics behind, and nothing else.
#
# Exit codes: that of the block, 124 where it takes longer than four minutes; 2 if something is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=${1:-}
for found in target/release/tributary target/debug/tributary; do
  [ -n "$binary" ] || { [ ! -x "$found" ] || binary=$found; }
done
[ -x "$binary" ] || { echo "no binary: cargo build, or name one" >&2; exit 2; }
for port in 9092 8081; do
  (: <"/dev/tcp/localhost/$port") 2>/dev/null || { echo "nobody listens on localhost:$port" >&2; exit 2; }
done

work=$(mktemp -d)
block=
cleanup() {
  # Its own process group: what the block leaves running goes with it.
  if [ -n "$block" ]; then
    kill -- "-$block" 2>/dev/null || true
    for _ in $(seq 300); do
      kill -0 -- "-$block" 2>/dev/null || break
      sleep 0.1
    done
  fi
  rm -rf "$work"
}
trap cleanup EXIT

mkdir "$work/bin"
ln -s "$(realpath "$binary")" "$work/bin/tributary"
cp -r config "$work/"
{
  echo 'set -euo pipefail'
  sed -n '/^\*\*A worker against it\*\*/,/^## /p' README.md | sed -n '/^```sh$/,/^```$/p' | sed '/^```/d'
} >"$work/block.sh"
[ "$(wc -l <"$work/block.sh")" -gt 10 ] || { echo "the block is not found in README.md" >&2; exit 2; }

cd "$work"
set -m
PATH="$work/bin:$PATH" timeout --foreground 240 bash block.sh &
block=$!
set +m
wait "$block"
