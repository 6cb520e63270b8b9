#!/usr/bin/env python3
"""Client libraries of others drive our worker and a real Kafka Connect, with the same result.

    clients.py BINARY [--only node|python|java]…

Each library comes from its registry in the version pinned under clients/, unmodified, installed once into the target
directory: kafka-connect-client (npm; the only one of the three that knows offsets), kafka-connect-py (PyPI) and
org.sourcelab:kafka-connect-client (Maven Central; what AKHQ is built on). A small program per library takes one
connector through validate, create, pause, resume, update, restart, stop, offsets and delete, and prints what the
library made of every answer. It runs against Kafka Connect with a FileStreamSource, then against us with a TestSource.
Prints one line per step; ends with 1 when a step differs or a program does not come to its end.

Needs what tests/tools/rig.py needs, and Node with npm, Python with venv, a JDK with Maven for the libraries that are asked for.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import rig  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent / "clients"
LIMIT = 600


def node(home):
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, home)
    run(["npm", "ci", "--ignore-scripts", "--silent", "--prefix", home])
    return ["node", HERE / "node/drive.mjs"]


def python(home):
    run([sys.executable, "-m", "venv", home])
    requirements = HERE / "python/requirements.txt"
    run([home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
    return [home / "bin/python", HERE / "python/drive.py"]


def java(home):
    pom = HERE / "java/pom.xml"
    run(["mvn", "-B", "-q", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={home}"])
    return ["java", "-cp", f"{home}/*", HERE / "java/Drive.java"]


LIBRARIES = {"node": node, "python": python, "java": java}


def run(command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def drive(command, home, worker, language, change):
    """The steps of one program against one worker, and the error that ended it early, if any."""
    subject = {"name": f"by-{language}", "config": worker.connector(f"by-{language}"), "change": change}
    done = subprocess.run(
        [*map(str, command), worker.url, json.dumps(subject)],
        capture_output=True, text=True, timeout=LIMIT, env={**os.environ, "CLIENT_HOME": str(home)},
    )
    steps = dict(json.loads(line) for line in done.stdout.splitlines())
    return steps, done.stderr.strip()[-1500:] if done.returncode else None


def compare(language, theirs, ours):
    """Rows of the table, and the number of differences."""
    rows, differences = [], 0
    for step in list(theirs) + [step for step in ours if step not in theirs]:
        there, here = (json.dumps(steps.get(step, "not reached")) for steps in (theirs, ours))
        differences += there != here
        rows.append((language, step, there, "same" if there == here else here))
    return rows, differences


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--only", choices=LIBRARIES, action="append")
    options = parser.parse_args()
    rows, faults = [("client", "step", "Kafka Connect", "Tributary")], []
    with rig.stage() as (directory, children):
        kafka = rig.Kafka(directory)
        children.append(kafka)
        kafka.start()
        theirs, ours = rig.Connect(kafka.bootstrap, directory), rig.Tributary(options.binary, kafka.bootstrap, directory)
        for worker in (theirs, ours):
            children.append(worker)
            worker.start()
        for language in options.only or LIBRARIES:
            home = rig.target() / "worker-clients" / language
            home.mkdir(parents=True, exist_ok=True)
            command = LIBRARIES[language](home)
            (there, broken_there), (here, broken_here) = (
                drive(command, home, theirs, language, ("batch.size", "1000")),
                drive(command, home, ours, language, ("messages", "20")),
            )
            more, differences = compare(language, there, here)
            rows += more
            faults += [f"{language}: {differences} steps differ"] if differences else []
            faults += [f"{language} on {side}: {text}" for side, text in (("Connect", broken_there), ("ours", broken_here)) if text]
        print(rig.table(rows))
        print(f"\n{len(rows) - 1} steps, {sum(row[3] != 'same' for row in rows[1:])} differ")
        if faults:
            raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
