#!/usr/bin/env bash
# Checks the files for operators with the tools that read them, and with a running worker.
#
#   tests/tools/check.sh                                # target/release/tributary, or target/debug
#   tests/tools/check.sh path/to/tributary [SECONDS]    # duration of the demo, 30 by default
#   PICTURE=board.svg tests/tools/check.sh …            # draws the board of the run, as in the README
#
# Needs promtool and prometheus (Debian: apt-get install prometheus), Python 3.9 and curl. Uses docker compose, hadolint, kubectl,
# kubernetes-validate (PyPI) and systemd-analyze if they are installed, and lists the checks it left out at the end. Installs nothing,
# needs no network, and leaves nothing behind.
#
# Exit codes: 0 every check passed; 1 a check failed; 2 a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=${1:-}
seconds=${2:-30}
for found in target/release/tributary target/debug/tributary; do
  [ -n "$binary" ] || { [ ! -x "$found" ] || binary=$found; }
done
for tool in promtool prometheus python3 curl; do
  command -v "$tool" >/dev/null || { echo "$tool is not installed (Debian: apt-get install prometheus python3 curl)" >&2; exit 2; }
done
[ -x "$binary" ] || { echo "no binary: cargo build, or name one" >&2; exit 2; }

work=$(mktemp -d)
children=()
cleanup() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

failed=0
left_out=()
step() { # NAME COMMAND…
  local name=$1
  shift
  if "$@" >"$work/step.log" 2>&1; then
    echo "ok      $name"
    [ -n "${told:-}" ] || return 0
  else
    echo "FAILED  $name"
    failed=1
  fi
  sed 's/^/        /' "$work/step.log"
}
optional() { # TOOL NAME COMMAND…
  local tool=$1
  shift
  if command -v "${tool%% *}" >/dev/null && { [ "$tool" != "docker compose" ] || docker compose version >/dev/null 2>&1; }; then
    step "$@"
  else
    left_out+=("$1 ($tool)")
  fi
}

# --- Files ------------------------------------------------------------------------------------------------------------------------
step "alerting rules" promtool check rules config/prometheus/alerts.yml
step "Prometheus' configuration" promtool check config config/prometheus/prometheus.yml
step "unit tests of alerts" promtool test rules tests/tools/alerts_test.yml
optional "docker compose" "docker-compose.yml" docker compose -f docker-compose.yml config --quiet
optional hadolint "Dockerfile" hadolint Dockerfile
optional kubectl "Kubernetes, put together" sh -c "kubectl kustomize config/kubernetes >/dev/null"
# kustomization.yaml is no Kubernetes object and has no schema there.
mapfile -t objects < <(ls config/kubernetes/*.yaml | grep -v /kustomization)
optional kubernetes-validate "Kubernetes, by its schemas" kubernetes-validate --strict --quiet "${objects[@]}"
# The service's binary, user and group do not exist on every machine.
sed -E 's#^(ExecStart=)\S+#\1/bin/true#; s/^(User|Group)=.*/\1=root/' config/systemd/tributary.service >"$work/tributary.service"
optional systemd-analyze "systemd's service" systemd-analyze verify "$work/tributary.service"

# --- A worker that runs -----------------------------------------------------------------------------------------------------------
"$binary" demo --seconds "$seconds" --keep >"$work/demo.log" 2>&1 &
demo=$!
children+=("$demo")
address=
for _ in $(seq 600); do
  address=$(sed -n 's#^REST API *http://\([^/ ]*\).*#\1#p' "$work/demo.log")
  [ -z "$address" ] || break
  kill -0 "$demo" 2>/dev/null || break
  sleep 0.1
done
[ -n "$address" ] || { echo "the demo did not start:" >&2; cat "$work/demo.log" >&2; exit 1; }

sed -e "s/tributary:8083/$address/" -e 's/_interval: 15s/_interval: 1s/' config/prometheus/prometheus.yml >"$work/prometheus.yml"
cp config/prometheus/alerts.yml "$work/"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address="127.0.0.1:$port" \
  --log.level=warn >"$work/prometheus.log" 2>&1 &
children+=($!)

while kill -0 "$demo" 2>/dev/null && ! grep -q '^\(NOT \)\?verified: ' "$work/demo.log"; do sleep 0.5; done
# Prometheus gets the final result with its next scrape.
sleep 3
curl -sf -m 5 "http://$address/metrics" >"$work/metrics.txt" || true
kill -INT "$demo" 2>/dev/null || true
step "the demo" wait "$demo"
sed -n '/^PROMISED/,/verified: /p' "$work/demo.log" | sed 's/^/        /'

# The names and milliseconds of Kafka Connect's metrics are those that its dashboards expect.
lint() { grep -v '^\(# [A-Z]* \)\?kafka_connect_' "$work/metrics.txt" | promtool check metrics; }
step "/metrics, $(grep -vc '^#\|^$' "$work/metrics.txt") series" lint
told=yes step "every panel, on Prometheus" \
  python3 tests/tools/panels.py "http://127.0.0.1:$port" config/grafana/dashboards/tributary.json
[ -z "${PICTURE:-}" ] || told=yes step "the board, as a picture" \
  env PYTHONDONTWRITEBYTECODE=1 python3 tests/tools/picture.py "http://127.0.0.1:$port" config/grafana/dashboards/tributary.json "$PICTURE"

for what in "${left_out[@]}"; do echo "left out, its tool is not installed: $what"; done
exit "$failed"
