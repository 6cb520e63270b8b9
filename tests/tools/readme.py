#!/usr/bin/env python3
"""Runs the commands of the README unchanged: first "A worker against it", then all others against the worker that this started.

    tests/tools/readme.py                         # target/release/tributary, or target/debug
    tests/tools/readme.py path/to/tributary
    tests/tools/readme.py --kafka HOST:PORT --registry URL --name NAME --free-ports [path/to/tributary]

Needs a Kafka and a registry on which nobody has done so before (`docker compose up -d kafka registry`; on localhost:9092 and
localhost:8081 unless told), openssl, bash, curl, and the right to listen on port 443. Leaves topics behind, and nothing else. `--name`
is the prefix and the group instead of `acme` and `tributary`; `--free-ports` takes others than 8083 and 8090.

What stands for something of the reader's own is filled in: see FILLED. What cannot be run here is named in ELSEWHERE, with who does;
a line that is neither is a failure.

Exit codes: 0 all was well; 1 a command failed, or took too long; 2 something is missing; 3 nobody may listen on port 443.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = "**A worker against it**"
LIMIT = 420

# Commands that are not run, and what covers them.
ELSEWHERE = {
    "cargo ": "the two commands at the top, by .ci/run and whoever tries the README",
    ".ci/run": "itself",
    ".ci/nightly": "a machine at night: it takes hours",
    "tests/": "scripts of their own",
    "docker ": "there is no engine on every machine: the file is held by tests/tools/check.sh",
    "kafka-console-consumer.sh ": "tests/it/product/interop.rs",
    "python3 examples/consume.py ": "tests/it/product/interop.rs",
    "tributary run ": "it runs already",
}

# Placeholders: a pattern, and its replacement.
FILLED = [
    (r"https://hooks\.example\.com", "https://localhost"),
    (r"https://h\.example\.com/x", "https://localhost/webhooks/accounting/webhooks"),
    (r"private\.pem", "hooks.crt"),
    (r"3@1042", '"$letter"'),
    (r"(tributary gaps accept webhooks) ID", r'\1 "$gap"'),
    (r"(tributary snapshot status records) ID", r'\1 "$ended"'),
    (r"(tributary snapshot pause records) ID", r'\1 "$begun"'),
    # A malformed delivery is refused, which the exit code shows.
    (r"(tributary dead-letters replay .*)", r"\1; [ $? = 1 ]"),
    # There is no person at a browser.
    (r"(tributary auth login (?:accounting|payroll) .*)", r"\1 --simulated"),
    (r"(tributary probe .*)", r"\1 --simulated --rate 100"),
]

# Preparations for a command, by the start of the command.
BEFORE = {
    # A webhook that the provider disables is a gap, and apply enables it.
    "tributary subscriptions list": """
        for webhook in $(curl -s "localhost:$SIMULATOR/_control/truth/webhooks" | texts id); do
          ! curl -s -X POST "localhost:$SIMULATOR/_control/webhooks/$webhook/disable" >/dev/null || break
        done""",
    "tributary subscriptions remove": "gap=$(tributary gaps list webhooks --all --json | texts id | head -1)",
    # The subscriptions are removed now: no event would arrive any more.
    "tributary snapshot start": "tributary subscriptions apply webhooks",
    "tributary snapshot status records ID": "ended=$(tributary snapshot status records --json | texts id | head -1)",
    "tributary snapshot pause": "begun=$(tributary snapshot start records --json | texts id | head -1)",
    "tributary snapshot certificates": """
        tributary snapshot resume records "$begun"
        tributary snapshot status records "$begun" --watch""",
    "tributary webhooks send --secret-env": """
        export HOOKS=$ACCOUNTING_WEBHOOK_SECRET
        echo 'not a delivery' >delivery.json""",
    "tributary events trace 5c1d9f80-0003-4000-8000-000000000003 --config": """
        printf '%s' '{"EventType":{"Resource":"Customers","EventType":"ErrorOccurred"},"ExtraPartitionInformation":{"PartitionClientId":"acme-1"},"JsonData":"{\\"SvcProcessId\\":\\"5c1d9f80-0003-4000-8000-000000000003\\"}"}' >outcome.json
        tributary webhooks send --connector webhooks --body outcome.json""",
    "tributary dead-letters show": "letter=$(tributary dead-letters list --connector webhooks --reason Malformed --json | texts place | head -1)",
}

# The provider makes no changes during these. Records whose events are in flight differ for a moment.
AGAIN = ("tributary verify ",)
STAND_STILL = """curl -s -X PATCH "localhost:$SIMULATOR/_control/knobs" -d '{"changesPerSecond":0}' >/dev/null"""

PRELUDE = r"""
set -uo pipefail
failures=0 commands=0
curl() { command curl --fail "$@"; }
texts() { grep -oE "\"$1\": ?\"[^\"]*\"" | cut -d'"' -f4; }
command -v jq >/dev/null || jq() { python3 -m json.tool; }
run() { # TRIES COMMAND
  local tries=$1 command=$2
  commands=$((commands + 1))
  for try in $(seq "$tries"); do
    if (eval "$command") >out.log 2>&1 </dev/null; then
      printf 'ok  %s\n' "$command"
      return
    fi
  done
  failures=$((failures + 1))
  { printf 'BAD %s\n' "$command"; tail -20 out.log | sed 's/^/      /'; } | tee -a bad.log
}
# All processes end with this script.
(while kill -0 "$PPID" 2>/dev/null; do sleep 1; done; kill -KILL -- "-$$") &
"""


def blocks(text):
    """Shell blocks of the README, also those in lists, as lists of their lines; what is continued is one line."""
    for found in re.finditer(r"^ *```sh\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        yield found.start(), found.group(1).replace("\\\n", " ").splitlines()


def script(text):
    """The commands to run, and those that are not run."""
    place = text.index(BLOCK)
    first = next(start for start, _ in blocks(text) if start > place)
    printed = text[first:].split("```sh\n", 1)[1].split("```", 1)[0]
    lines = [PRELUDE, "set -e", printed, "set +e"]
    unknown = []
    for start, commands in blocks(text):
        if start == first:
            continue
        for command in commands:
            command = re.split(r"\s+#\s", command)[0].strip()
            if not command or any(f"{command} ".startswith(one) for one in ELSEWHERE):
                continue
            if command.startswith("export "):
                # The reader's files exist already.
                lines += [command] if "…" not in command else []
                continue
            if not command.startswith(("tributary ", "curl ")):
                unknown.append(command)
                continue
            # The guide, whose blocks are in a list, is for a healthy deployment.
            if not text[start:].startswith(" "):
                lines += [code for begin, code in BEFORE.items() if command.startswith(begin)]
            for pattern, filled in FILLED:
                command = re.sub(pattern, filled, command)
            tries = 1
            if command.startswith(AGAIN):
                lines.append(STAND_STILL)
                tries = 5
            lines.append(f"run {tries} {quoted(command)}")
    lines.append('cat bad.log 2>/dev/null; echo "$commands commands, $failures failed"; [ "$commands" -ge 40 ] && [ "$failures" = 0 ]')
    return "\n".join(lines), unknown


def quoted(command):
    return "'" + command.replace("'", "'\\''") + "'"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def arguments():
    parser = argparse.ArgumentParser(description="runs the commands of the README")
    parser.add_argument("binary", nargs="?")
    parser.add_argument("--kafka", default="localhost:9092")
    parser.add_argument("--registry", default="http://localhost:8081/apis/ccompat/v7")
    parser.add_argument("--name")
    parser.add_argument("--free-ports", action="store_true")
    return parser.parse_args()


def main():
    given = arguments()
    built = [ROOT / "target" / kind / "tributary" for kind in ("release", "debug")]
    binary = pathlib.Path(given.binary) if given.binary else next((one for one in built if one.exists()), None)
    if binary is None or not binary.exists():
        return told(2, "no binary: cargo build, or name one")
    for tool in ("bash", "openssl", "curl"):
        if shutil.which(tool) is None:
            return told(2, f"{tool} is missing")
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 443))
    except OSError as error:
        return told(3, f"nobody may listen on port 443 here: {error}")
    text, unknown = script((ROOT / "README.md").read_text())
    if unknown:
        return told(1, "neither run nor named: " + "; ".join(unknown))
    rest, simulator = (free_port(), free_port()) if given.free_ports else (8083, 8090)
    text = text.replace("localhost:8083", f"localhost:{rest}").replace("localhost:8090", f"localhost:{simulator}")
    text = text.replace("127.0.0.1:8090", f"127.0.0.1:{simulator}")
    text = text.replace("tributary simulate ", f"tributary simulate --port {simulator} ")
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "bin").mkdir()
        (work / "bin/tributary").symlink_to(binary.resolve())
        shutil.copytree(ROOT / "config", work / "config")
        if given.name:
            text = text.replace("acme", given.name)
            for file in (work / "config/connectors").iterdir():
                file.write_text(file.read_text().replace("acme", given.name))
        (work / "readme.sh").write_text(text)
        environment = {
            **os.environ,
            "PATH": f"{work}/bin:{os.environ['PATH']}",
            "SIMULATOR": str(simulator),
            "CONNECT_BOOTSTRAP_SERVERS": given.kafka,
            "CONNECT_GROUP_ID": given.name or "tributary",
            "CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL": given.registry,
            "CONNECT_LISTENERS": f"http://127.0.0.1:{rest}",
            "TRIBUTARY_URL": f"http://127.0.0.1:{rest}",
            "TRIBUTARY_CONFIG": "config/worker.properties",
            "TRIBUTARY_CA": "hooks.crt",
        }
        if given.name:
            # Other workers on this Kafka may use the topics of the shipped file.
            for topic in ("config", "offset", "status", "work", "grant"):
                environment[f"CONNECT_{topic.upper()}_STORAGE_TOPIC"] = f"{given.name}-{topic}"
        # A separate process group, so that background processes of the block can be ended with it.
        child = subprocess.Popen(["bash", "readme.sh"], cwd=work, env=environment, start_new_session=True)
        try:
            return 1 if child.wait(LIMIT) else 0
        except subprocess.TimeoutExpired:
            return told(1, f"not done after {LIMIT} s")
        finally:
            end(child)


def end(child):
    """Ends all processes of a child, and waits until none is left."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        for turn in range(300):
            try:
                child.poll()
                os.killpg(child.pid, 0 if turn else which)
            except ProcessLookupError:
                return
            time.sleep(0.1)


def told(code, why):
    print(why, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
