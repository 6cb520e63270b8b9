#!/usr/bin/env python3
"""Figures of our worker beside those of a real Kafka Connect, in one run on one machine with one client.

    figures.py BINARY [--connectors 500] [--requests 300] [--state STOPPED]

Each worker in turn, alone beside one broker: start-up until /health says healthy, memory when idle, time to create the
connectors one after another, p50 and p99 of GET /connectors?expand=status&expand=info with all of them, and memory
then. A connector is the smallest each side has, with `tasks.max` 1: FileStreamSource there, TestSource here. It is
created in the state STOPPED unless told otherwise: the same shape on both sides, and no data in the way. (With PAUSED,
Kafka Connect makes no tasks before the first resume and we do; with RUNNING, a TestSource writes and a file that has
been read does not.) Kafka Connect runs with the heap and collector of its own start script. Requests go over one
connection, one at a time.
"""

import argparse
import http.client
import os
import pathlib
import platform
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import rig  # noqa: E402

IDLE_SECONDS = 10
SETTLE_SECONDS = 300
EXPANDED = "/connectors?expand=status&expand=info"


def milliseconds(seconds):
    return f"{seconds * 1000:.1f} ms"


def megabytes(count):
    return f"{count / 1e6:.0f} MB"


def measure(worker, options):
    """The figures of a worker, by name."""
    figures = {"start-up to healthy": f"{worker.start():.2f} s"}
    time.sleep(IDLE_SECONDS)
    figures[f"RSS idle, {IDLE_SECONDS} s after that"] = megabytes(worker.resident())

    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=120)
    seconds, refused = [], 0
    begin = time.monotonic()
    config = worker.connector("figures")
    if options.state == "STOPPED":
        # No record is ever written: settings of topic creation would only make the answer longer than ours.
        config = {key: value for key, value in config.items() if not key.startswith("topic.creation.")}
    for number in range(options.connectors):
        body = {"name": f"connector-{number:03}", "config": config, "initial_state": options.state}
        while (answer := rig.ask(connection, "POST", "/connectors", body)).status in (409, 503):
            refused += 1
            if refused > options.connectors:
                raise rig.Fault(f"create {body['name']}: {answer}")
            time.sleep(0.1)
        if answer.status != 201:
            raise rig.Fault(f"create {body['name']}: {answer}")
        seconds.append(answer.seconds)
    figures[f"{options.connectors} creates, one after another"] = f"{time.monotonic() - begin:.1f} s"
    figures["create p50"] = milliseconds(rig.rank(seconds, 0.5))
    figures["create p99"] = milliseconds(rig.rank(seconds, 0.99))
    figures["creates refused and repeated"] = refused

    settled, took = rig.until("all settled", SETTLE_SECONDS, lambda: all_settled(connection, options), pause=0.5)
    figures[f"until all show {options.state}"] = f"{took:.1f} s"
    figures["size of the expanded list"] = f"{len(settled.text) / 1000:.0f} kB"
    figures["tasks in it"] = sum(len(task_states(entry)) for entry in settled.json.values())
    for _ in range(options.requests // 10):
        rig.ask(connection, "GET", EXPANDED)
    seconds = [rig.ask(connection, "GET", EXPANDED).seconds for _ in range(options.requests)]
    for share in (0.5, 0.99):
        figures[f"GET expanded p{share * 100:.0f}, {options.requests} requests"] = milliseconds(rig.rank(seconds, share))
    figures["RSS with all"] = megabytes(worker.resident())
    figures["threads with all"] = len(os.listdir(f"/proc/{worker.pid}/task"))
    return figures


def all_settled(connection, options):
    """The expanded list, once every connector and each of its tasks is in the wanted state."""
    answer = rig.ask(connection, "GET", EXPANDED)
    entries = answer.json.values()
    states = {state for entry in entries for state in (entry["status"]["connector"]["state"], *task_states(entry))}
    # A running connector has its task; for other states this differs, see the head.
    complete = options.state != "RUNNING" or all(task_states(entry) for entry in entries)
    return answer if states == {options.state} and complete and len(entries) == options.connectors else None


def task_states(entry):
    return [task["state"] for task in entry["status"]["tasks"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--connectors", type=int, default=500)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--state", choices=["PAUSED", "STOPPED", "RUNNING"], default="STOPPED")
    options = parser.parse_args()
    columns = {}
    for name in ("Kafka Connect", "Tributary"):
        # A separate broker for each, so that neither is slowed by the other's topics.
        with rig.stage() as (directory, children):
            kafka = rig.Kafka(directory)
            children.append(kafka)
            kafka.start()
            if name == "Tributary":
                worker = rig.Tributary(options.binary, kafka.bootstrap, directory)
            else:
                worker = rig.Connect(kafka.bootstrap, directory)
            children.append(worker)
            columns[name] = measure(worker, options)
    theirs, ours = columns.values()
    print(rig.table([("", *columns)] + [(figure, value, ours[figure]) for figure, value in theirs.items()]))
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{options.connectors} connectors created {options.state}, {os.cpu_count()} cores, load {load} at the end, {platform.system()} {platform.release()}")


if __name__ == "__main__":
    main()
