#!/usr/bin/env python3
"""Three workers on one real Kafka: their shared state, and the effects of killing, freezing and restarting them or the broker.

    three_workers.py BINARY [--only visible|names|disturbed|rolling|killed-broker|frozen-broker]…
                            [--cycles 20] [--names 100] [--outage 60] [--seed N]

Tests in tests/it hold the same sentences on parts of the worker; here they are three `tributary run` processes, seen
from outside through REST and Kafka's own console consumer. One line per sentence with what was measured; ends with 1
when one of them does not hold. Takes about ten minutes. Times are those of the machine: on a busy one, the sentences with a
second in them may fail without a fault.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import rig  # noqa: E402

SESSION_SECONDS = 6
MOVE_SECONDS = SESSION_SECONDS + 5
FREEZE_SECONDS = 10
SETTLE_SECONDS = 60
STOP_SECONDS = 40
TASKS = 3
REFUSED = "refused-"
NO_ANSWER = (OSError, http.client.HTTPException)
TASK_STATUS = re.compile(r'^kafka_connect_connector_task_status\{connector="([^"]+)",task="(\d+)",status="(\w+)"\} 1$', re.M)
VERBS = {"PAUSED": "pause", "RUNNING": "resume", "STOPPED": "stop"}


class Report:
    def __init__(self):
        self.rows, self.broken = [("sentence", "measured", "holds")], 0

    def add(self, sentence, measured, holds=True):
        self.rows.append((sentence, measured, "yes" if holds else "NO"))
        self.broken += not holds
        print(f"{'  ' if holds else 'NO'} {sentence}: {measured}", file=sys.stderr, flush=True)


class Cluster:
    """The workers, and the requested state of every connector."""

    def __init__(self, kafka, workers, options):
        self.kafka, self.workers, self.options = kafka, workers, options
        self.wanted, self.refusals = {}, 0
        self.random = random.Random(options.seed)

    def create(self, name, worker, **more):
        config = worker.connector(name, **{"tasks.max": str(TASKS), "messages": "20", **more})
        self.accepted(worker, "POST", "/connectors", {"name": name, "config": config})
        self.wanted[name] = "RUNNING"

    def tell(self, name, state, worker):
        self.accepted(worker, "PUT", f"/connectors/{name}/{VERBS[state]}")
        self.wanted[name] = state

    def delete(self, name, worker):
        self.accepted(worker, "DELETE", f"/connectors/{name}")
        self.wanted.pop(name, None)

    def accepted(self, worker, method, path, body=None):
        """Retries requests that are refused for now, as REST clients do, and counts them."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = rig.call(worker.url, method, path, body)
            if answer.status < 300:
                return answer
            if answer.status not in (409, 503) or time.monotonic() > deadline:
                raise rig.Fault(f"{method} {path} on {worker.name}: {answer}")
            self.refusals += 1
            time.sleep(0.1)

    def settled(self, workers=None, owners=None):
        """Whether all `workers` show every connector in its requested state, each instance on one of `owners`."""
        workers = workers or self.workers
        ids = {worker.id for worker in owners or workers}
        with contextlib.suppress(*NO_ANSWER, ValueError, KeyError):
            return all(self.shows(worker, ids) for worker in workers)
        return False

    def shows(self, worker, owners):
        found = statuses(worker)
        return found.keys() == self.wanted.keys() and all(
            is_as_told(found[name], state, owners) for name, state in self.wanted.items()
        )

    def settle(self, what, seconds=SETTLE_SECONDS, workers=None, owners=None):
        try:
            return rig.until(what, seconds, lambda: self.settled(workers, owners), pause=0.02)[1]
        except rig.Fault as fault:
            raise rig.Fault(f"{fault}\n{self.differences(workers or self.workers)}") from None

    def instances(self):
        """What runs in which worker, as the workers report it: (connector, task) to [(worker, state), …].

        The status topic has one record of each task, whatever runs.
        """
        found = {}
        for worker in self.workers:
            for name, task, state in TASK_STATUS.findall(rig.call(worker.url, "GET", "/metrics").text):
                found.setdefault((name, int(task)), []).append((worker.name, state.upper()))
        return found

    def surplus(self):
        """Tasks that are not in exactly one worker in the requested state."""
        wanted = {(name, task): state for name, state in self.wanted.items() if state != "STOPPED" for task in range(TASKS)}
        found = self.instances()
        return {
            f"{name}-{task}": found.get((name, task), [])
            for name, task in wanted.keys() | found.keys()
            if [state for _, state in found.get((name, task), [])] != [wanted.get((name, task))]
        }

    def settle_instances(self, what):
        """Waits until every task is in exactly one worker: two may overlap for a moment, not for longer."""
        try:
            return rig.until(f"one instance of each task {what}", SETTLE_SECONDS, lambda: not self.surplus())[1]
        except rig.Fault as fault:
            raise rig.Fault(f"{fault}\n{self.surplus()}") from None

    def differences(self, workers):
        lines = []
        for worker in workers:
            with contextlib.suppress(*NO_ANSWER, ValueError, KeyError):
                found = statuses(worker)
                owners = {other.id for other in self.workers}
                for name in found.keys() | self.wanted.keys():
                    status = found.get(name)
                    if status is None or not is_as_told(status, self.wanted.get(name), owners):
                        lines.append(f"{worker.name}: {name} should be {self.wanted.get(name)}: {json.dumps(status)}")
        return "\n".join(lines)

    def count_numbers(self):
        """Stops all and reads the numbers that they wrote: how many, and their faults.

        Every task counts from 0. The stored offset must say the same number of records.
        """
        for name in list(self.wanted):
            self.tell(name, "STOPPED", self.workers[0])
        self.settle("all stopped")
        total, faults = 0, []
        for name in self.wanted:
            numbers = {f"{name}/{task}": [] for task in range(TASKS)}
            for key, value in self.kafka.read_committed(name):
                numbers.setdefault(key, []).append(int(value))
            stored = rig.call(self.workers[1].url, "GET", f"/connectors/{name}/offsets").json["offsets"]
            stored = {f"{name}/{item['partition']['task']}": item["offset"]["count"] for item in stored}
            for key, found in numbers.items():
                total += len(found)
                if found != list(range(len(found))):
                    faults.append(f"{key}: {len(found)} records, {len(set(found))} numbers up to {max(found, default=None)}")
                if stored.get(key) != len(found):
                    faults.append(f"{key}: {len(found)} records, offset {stored.get(key)}")
        return total, faults

    def clear(self):
        for name in list(self.wanted):
            self.delete(name, self.workers[0])
        self.settle("all deleted")


def statuses(worker):
    """The status of every connector, without those whose creation was refused: they are only counted."""
    found = rig.call(worker.url, "GET", "/connectors?expand=status", seconds=5).json
    return {name: entry["status"] for name, entry in found.items() if not name.startswith(REFUSED)}


def is_as_told(status, state, owners):
    instances = [status["connector"], *status["tasks"]]
    numbers = [] if state == "STOPPED" else list(range(TASKS))
    return (
        all(instance["state"] == state and instance["worker_id"] in owners for instance in instances)
        and [task["id"] for task in status["tasks"]] == numbers
    )


def times(seconds):
    return f"p50 {rig.rank(seconds, 0.5):.2f} s, longest {max(seconds):.2f} s ({len(seconds)} times)"


def visible(cluster, report):
    """Connectors that are created on one worker, and shown and commanded on all."""
    seen, obeyed = [], []
    for turn in range(10):
        name = f"visible-{turn}"
        first, second, third = (cluster.workers[(turn + step) % 3] for step in range(3))
        cluster.create(name, first)
        begin = time.monotonic()
        for worker in (second, third):
            rig.until("seen", SETTLE_SECONDS, lambda: rig.call(worker.url, "GET", f"/connectors/{name}").status == 200, 0.005)
        seen.append(time.monotonic() - begin)
        cluster.settle("running")
        for worker, state in ((second, "PAUSED"), (third, "RUNNING"), (second, "STOPPED")):
            cluster.tell(name, state, worker)
            obeyed.append(cluster.settle(state))
        cluster.delete(name, third)
        cluster.settle("deleted")
    report.add("a connector made on one worker is there on the others within 1 s", times(seen), max(seen) < 1)
    report.add("a command to any worker is carried out and shown by all within 1 s", times(obeyed), max(obeyed) < 1)


def names(cluster, report):
    """The same name created on two workers at the same time."""
    outcomes, slowest = {}, 0
    for turn in range(cluster.options.names):
        name, answers, barrier = f"name-{turn}", [], threading.Barrier(2)
        pair = cluster.random.sample(cluster.workers, 2)

        def create(worker):
            body = {"name": name, "config": worker.connector("names", secret=worker.name)}
            barrier.wait()
            answers.append(rig.call(worker.url, "POST", "/connectors", {**body, "initial_state": "STOPPED"}))

        threads = [threading.Thread(target=create, args=(worker,)) for worker in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcome = tuple(sorted(answer.status for answer in answers))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        slowest = max([slowest, *(answer.seconds for answer in answers)])
        # All workers must have the winner's configuration, and none for a name that was refused everywhere.
        won = [answer.json["config"] for answer in answers if answer.status == 201]
        rig.until(f"one configuration of {name}", SETTLE_SECONDS, lambda: has_config(cluster, name, won))
        if won:
            cluster.accepted(cluster.workers[turn % 3], "DELETE", f"/connectors/{name}")
    text = ", ".join(f"{count} times {' and '.join(map(str, outcome))}" for outcome, count in sorted(outcomes.items()))
    exactly_one = all(outcome.count(201) == 1 for outcome in outcomes) and bool(outcomes)
    report.add("one name on two workers at once: exactly one 201", f"{text}; slowest answer {slowest:.2f} s", exactly_one)
    cluster.settle("all names deleted")


def has_config(cluster, name, won):
    answers = [rig.call(worker.url, "GET", f"/connectors/{name}/config") for worker in cluster.workers]
    found = [answer.json for answer in answers if answer.status == 200]
    return found == [won[0]] * len(cluster.workers) if won else not found


def disturbed(cluster, report):
    """Consecutive kills and freezes, with commands during each."""
    for number in range(6):
        cluster.create(f"disturbed-{number}", cluster.workers[number % 3])
    cluster.settle("running")
    cluster.refusals, commands, counts = 0, 0, {"kill": 0, "freeze": 0}
    moved, single = {"kill": [], "freeze": []}, []
    for cycle in range(cluster.options.cycles):
        # As many of each kind, in an order drawn from the seed.
        kind = min(counts, key=lambda kind: (counts[kind], cluster.random.random()))
        counts[kind] += 1
        victim = cluster.random.choice(cluster.workers)
        others = [worker for worker in cluster.workers if worker is not victim]
        begin = time.monotonic()
        victim.kill() if kind == "kill" else victim.freeze()
        for name in cluster.random.sample(sorted(cluster.wanted), 2):
            state = "RUNNING" if cluster.wanted[name] == "PAUSED" else "PAUSED"
            cluster.tell(name, state, cluster.random.choice(others))
            commands += 1
        cluster.settle(f"{kind} {cycle} of {victim.name}", workers=others)
        moved[kind].append(time.monotonic() - begin)
        if kind == "kill":
            victim.start()
        else:
            # A frozen worker is thawed long after the others took its tasks over, and must notice that.
            time.sleep(max(0, begin + FREEZE_SECONDS - time.monotonic()))
            victim.thaw()
        cluster.settle(f"after {kind} {cycle} of {victim.name}")
        single.append(cluster.settle_instances(f"after {kind} {cycle} of {victim.name}"))
    for kind, seconds in moved.items():
        if seconds:
            sentence = f"after a {kind}, all runs elsewhere within {MOVE_SECONDS} s, commands meanwhile included"
            report.add(sentence, times(seconds), max(seconds) <= MOVE_SECONDS)
    # Every cycle waited until all workers showed each connector in its requested state, or ended the run.
    report.add("no accepted command is lost", f"{commands} commands, {cluster.refusals} refused for now and repeated")
    report.add("after each of them every task is in exactly one worker, by the workers' own word", times(single))
    for name in cluster.wanted:
        cluster.tell(name, "RUNNING", cluster.workers[0])
    took = cluster.settle("one running instance of each task")
    cluster.settle_instances("at the end")
    running = sum(len(workers) for workers in cluster.instances().values())
    tasks = len(cluster.wanted) * TASKS
    sentence = "one running instance of each task, in the status topic and summed over the workers"
    report.add(sentence, f"{tasks} tasks, {running} instances, {took:.2f} s", running == tasks)
    total, faults = cluster.count_numbers()
    report.add("the topics hold 0..n of each task, nothing missing, nothing twice", f"{total} records; {faults or 'all in order'}", not faults)
    cluster.clear()


def rolling(cluster, report):
    """Every worker stopped and started in turn, while all three get requests."""
    for number in range(3):
        cluster.create(f"rolling-{number}", cluster.workers[number])
    cluster.settle("running")
    done, counts, failed, lock = threading.Event(), {}, [], threading.Lock()

    def note(kind):
        with lock:
            counts[kind] = counts.get(kind, 0) + 1

    def load(number, worker):
        name, turn = f"rolling-{number}", 0
        while not done.is_set():
            turn += 1
            config = {**worker.connector(name), "tasks.max": str(TASKS), "name": name, "messages": str(20 + turn % 2)}
            method, path, body = (
                ("GET", "/connectors?expand=status&expand=info", None),
                ("PUT", f"/connectors/{name}/config", config),
                ("GET", f"/connectors/{name}/status", None),
            )[turn % 3]
            try:
                answer = rig.call(worker.url, method, path, body)
            except NO_ANSWER as error:
                note(f"{'no answer in time' if isinstance(error, TimeoutError) else 'closed or refused connection'}")
                if isinstance(error, TimeoutError):
                    failed.append(f"{method} {path}: no answer")
            else:
                note(answer.status)
                if answer.status >= 400:
                    failed.append(f"{method} {path}: {answer}")
            done.wait(0.05)

    threads = [threading.Thread(target=load, args=pair) for pair in enumerate(cluster.workers)]
    for thread in threads:
        thread.start()
    stops, starts, codes = [], [], []
    try:
        for worker in cluster.workers:
            code, seconds = worker.terminate(STOP_SECONDS)
            codes.append(code)
            stops.append(seconds)
            starts.append(worker.start())
            cluster.settle(f"after the restart of {worker.name}")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items(), key=str))
    report.add("rolling restart: no request fails other than by a closed connection", f"{text}; {failed[:2] or ''}", not failed)
    report.add("a worker told to stop ends with 0", f"{codes}, {times(stops)}", set(codes) == {0})
    report.add("a worker comes back healthy", times(starts))
    total, faults = cluster.count_numbers()
    report.add("rolling restart: 0..n of each task", f"{total} records; {faults or 'all in order'}", not faults)
    cluster.clear()


def killed_broker(cluster, report):
    outage(cluster, report, "killed", cluster.kafka.kill, cluster.kafka.start)


def frozen_broker(cluster, report):
    outage(cluster, report, "frozen", cluster.kafka.freeze, cluster.kafka.thaw)


def outage(cluster, report, kind, begin, end):
    """A broker outage: reads still work, writes are refused in time, and the same processes recover."""
    for number in range(3):
        cluster.create(f"{kind}-{number}", cluster.workers[number])
    cluster.settle("running")
    tasks = len(cluster.wanted) * TASKS
    rig.until("every task writes", SETTLE_SECONDS, lambda: len(stored(cluster)) == tasks)
    before = stored(cluster)
    processes = [worker.pid for worker in cluster.workers]
    done, reads, writes = threading.Event(), [], []

    def read(worker):
        while not done.is_set():
            reads.append(attempt(worker, "GET", "/connectors?expand=status&expand=info"))
            done.wait(0.2)

    def write(number, worker):
        turn = 0
        # The last request must be answered before the broker is back.
        while time.monotonic() < deadline - 12:
            turn += 1
            name = f"{REFUSED}{kind}-{number}-{turn}"
            body = {"name": name, "config": worker.connector("refused"), "initial_state": "STOPPED"}
            writes.append((name, attempt(worker, "POST", "/connectors", body)))
            done.wait(1)

    begin()
    deadline = time.monotonic() + cluster.options.outage
    threads = [threading.Thread(target=read, args=(worker,)) for worker in cluster.workers]
    threads += [threading.Thread(target=write, args=pair) for pair in enumerate(cluster.workers)]
    for thread in threads:
        thread.start()
    for thread in threads[3:]:
        thread.join()
    time.sleep(max(0, deadline - time.monotonic()))
    healthy = [attempt(worker, "GET", "/health").status for worker in cluster.workers]
    done.set()
    for thread in threads:
        thread.join()
    end()
    back = time.monotonic()

    wrong_reads = [answer for answer in reads if answer.status != 200]
    slowest = max(answer.seconds for answer in reads)
    sentence = f"broker {kind} for {cluster.options.outage} s: reads are answered"
    report.add(sentence, f"{len(reads)} reads, slowest {slowest:.2f} s; {wrong_reads[:2] or 'all 200'}", not wrong_reads)
    answers = [answer for _, answer in writes]
    wrong_writes = [answer for answer in answers if not 500 <= answer.status < 600 or answer.seconds > 10]
    statuses = sorted({answer.status for answer in answers})
    text = f"{len(writes)} writes, {statuses}, slowest {max(answer.seconds for answer in answers):.2f} s; {wrong_writes[:2] or ''}"
    report.add(f"broker {kind}: writes are refused with 5xx within 10 s", text, bool(writes) and not wrong_writes)
    report.add(f"broker {kind}: /health says so", f"{healthy}", all(status >= 500 for status in healthy))
    recovered(cluster, report, kind, before, processes, back)
    appeared = [name for name, _ in writes if rig.call(cluster.workers[0].url, "GET", f"/connectors/{name}").status == 200]
    report.add(f"broker {kind}: nothing that was refused is there afterwards", f"{len(appeared)} of {len(writes)}", not appeared)
    for name in appeared:
        cluster.accepted(cluster.workers[0], "DELETE", f"/connectors/{name}")
    total, faults = cluster.count_numbers()
    report.add(f"broker {kind}: 0..n of each task", f"{total} records; {faults or 'all in order'}", not faults)
    cluster.clear()


def recovered(cluster, report, kind, before, processes, back):
    for worker in cluster.workers:
        rig.until(f"{worker.name} healthy", SETTLE_SECONDS, worker.healthy)
    healthy = time.monotonic() - back
    for number, worker in enumerate(cluster.workers):
        cluster.tell(f"{kind}-{number}", "PAUSED", worker)
        cluster.tell(f"{kind}-{number}", "RUNNING", worker)
    written = time.monotonic() - back
    cluster.settle("running again", owners=cluster.workers)
    running = time.monotonic() - back
    try:
        rig.until("numbers go on", SETTLE_SECONDS, lambda: not idle(stored(cluster), before), 0.2)
    except rig.Fault as fault:
        raise rig.Fault(f"{fault}; shown as running, but still: {idle(stored(cluster), before)}") from None
    going = time.monotonic() - back
    same = processes == [worker.pid for worker in cluster.workers] and all(worker.is_alive() for worker in cluster.workers)
    text = f"healthy {healthy:.1f} s, writes {written:.1f} s, all running {running:.1f} s, data {going:.1f} s after it is back"
    report.add(f"broker {kind}: all recovers in the same processes", text, same)


def idle(now, before):
    """The tasks whose stored count has not changed."""
    return [f"{name}/{task}" for (name, task), count in before.items() if now.get((name, task), 0) <= count]


def stored(cluster):
    """The stored count of every task."""
    return {
        (name, item["partition"]["task"]): item["offset"]["count"]
        for name in cluster.wanted
        for item in rig.call(cluster.workers[0].url, "GET", f"/connectors/{name}/offsets").json["offsets"]
    }


def attempt(worker, method, path, body=None):
    begin = time.monotonic()
    try:
        return rig.call(worker.url, method, path, body)
    except NO_ANSWER as error:
        return rig.Answer(0, f"{type(error).__name__}: {error}", time.monotonic() - begin)


PARTS = {
    "visible": visible,
    "names": names,
    "disturbed": disturbed,
    "rolling": rolling,
    "killed-broker": killed_broker,
    "frozen-broker": frozen_broker,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--names", type=int, default=100)
    parser.add_argument("--outage", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    options = parser.parse_args()
    report = Report()
    with rig.stage() as (directory, children):
        kafka = rig.Kafka(directory)
        children.append(kafka)
        kafka.start()
        workers = [rig.Tributary(options.binary, kafka.bootstrap, directory, number) for number in (1, 2, 3)]
        for worker in workers:
            children.append(worker)
            worker.start()
        cluster = Cluster(kafka, workers, options)
        for name in options.only or PARTS:
            try:
                PARTS[name](cluster, report)
            except (rig.Fault, *NO_ANSWER) as fault:
                report.add(name, f"{type(fault).__name__}: {fault}", False)
                break
        load = " ".join(f"{value:.1f}" for value in os.getloadavg())
        print(rig.table(report.rows))
        print(f"\n{os.cpu_count()} cores, load {load} at the end, seed {options.seed}; {report.broken} do not hold")
        if report.broken:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
