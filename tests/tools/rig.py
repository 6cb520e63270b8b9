"""Real Kafka, real Kafka Connect and Tributary workers on free loopback ports, for the scripts in tests/soak and
tests/peers.

Needs Python 3.9 or later with nothing installed, Java 17 and, the first time, Maven: the jars are those of the
integration tests, fetched once into the target directory (`tributary-rig`). Everything started here is a child that
dies with the script, also when the script is killed. Data and logs are in a temporary directory, which is kept when
a run fails and named in its output.
"""

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
POMS = REPOSITORY / "tests/it/support"
# A busy machine takes ten times as long as an idle one.
START_SECONDS = 120
# Below the range the kernel takes for outgoing connections: a client that keeps reconnecting to a dead server could
# otherwise be given the server's port as its own, connect to itself and hold the port against the server.
PORTS = range(20_000, 32_000)
PDEATHSIG = 1
# As connect-distributed.sh and kafka-run-class.sh of the Kafka distribution start a worker.
CONNECT_JVM = (
    "-Xms256M -Xmx2G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
).split()
# Half the start-up time on few cores; only for brokers and tools, which are not measured.
BROKER_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx512m".split()


class Fault(Exception):
    """Something that the script needs is missing or did not start."""


def until(what, seconds, probe, pause=0.05):
    """Calls `probe` until it returns something true; that value and the seconds it took."""
    begin = time.monotonic()
    while True:
        found = probe()
        took = time.monotonic() - begin
        if found:
            return found, took
        if took > seconds:
            raise Fault(f"{what}: not within {seconds} s")
        time.sleep(pause)


def free_port():
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise Fault(f"no free port from {PORTS.start} to {PORTS.stop}")


def jars():
    """The directory with the jars of Kafka and Kafka Connect; Maven fetches them if they are missing.

    The same directory, marker and lock as the integration tests use, so that either finds what the other fetched.
    """
    poms = [(POMS / name).read_text() for name in ("pom.xml", "connect.xml")]
    version = re.search("<kafka.version>(.*?)</", poms[0])[1]
    parent = target() / "tributary-rig"
    home, partial = parent / f"connect-{version}", parent / "partial"
    parent.mkdir(parents=True, exist_ok=True)
    with open(parent / "fetch.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = home / "fetched-pom.xml"
        if marker.exists() and marker.read_text() == "".join(poms):
            return home
        print(f"fetching Kafka and Kafka Connect {version} with Maven, once: about 80 MB", file=sys.stderr)
        for directory in (partial, home):
            shutil.rmtree(directory, ignore_errors=True)
        command = ["mvn", "-B", "-q", "-f", POMS / "connect.xml", "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={partial}"], check=True)
        (partial / "fetched-pom.xml").write_text("".join(poms))
        partial.rename(home)
    return home


def target():
    named = os.environ.get("CARGO_TARGET_DIR")
    return pathlib.Path(named).resolve() if named else REPOSITORY / "target"


class Child:
    """A child process; its output goes to `log`."""

    def __init__(self, name, command, log, environment=None):
        self.name, self.command, self.log = name, [str(part) for part in command], log
        self.environment = {**os.environ, **(environment or {})}
        self.process = None

    def spawn(self):
        # Prepared before the fork: between fork and exec only the two calls may happen.
        prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

        def follow_parent():
            prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                preexec_fn=follow_parent,
            )

    @property
    def pid(self):
        return self.process.pid

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.is_alive():
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait()

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def terminate(self, seconds):
        """SIGTERM; the exit code and how long it took. Killed after `seconds`, which is a fault."""
        begin = time.monotonic()
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Fault(f"{self.name} did not end within {seconds} s of SIGTERM") from None
        return code, time.monotonic() - begin

    def ready(self, probe, seconds=START_SECONDS):
        """Waits until `probe` holds; how long it took."""

        def look():
            if not self.is_alive():
                raise Fault(f"{self.name} ended:\n{self.tail()}")
            return probe()

        return until(f"{self.name} ready", seconds, look, pause=0.01)[1]

    def tail(self):
        return "\n".join(pathlib.Path(self.log).read_text(errors="replace").splitlines()[-8:])

    def resident(self):
        """Resident memory in bytes: VmRSS."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise Fault(f"{self.name} has no memory")


class Kafka(Child):
    """One broker with controller. It restarts on the same port with the same data."""

    def __init__(self, directory):
        self.jars, self.directory = jars(), directory
        self.port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        properties = directory / "kafka.properties"
        properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={directory / 'kafka'}\n"
            "auto.create.topics.enable=false\n"
            "num.partitions=1\n"
            "offsets.topic.replication.factor=1\n"
            "offsets.topic.num.partitions=4\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
            "transaction.state.log.num.partitions=4\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        command = ["java", *BROKER_JVM, "-Dlog4j2.level=WARN", "-cp", self.jars / "*", "kafka.Kafka", properties]
        super().__init__("kafka", command, directory / "kafka.log")
        storage = ["java", "-cp", self.jars / "*", "kafka.tools.StorageTool"]
        cluster = subprocess.run([*storage, "random-uuid"], check=True, capture_output=True, text=True).stdout.split()[-1]
        subprocess.run([*storage, "format", "-t", cluster, "-c", properties], check=True, capture_output=True)

    def start(self):
        self.spawn()
        return self.ready(self.answers)

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def read_committed(self, topic, seconds=120):
        """Key and value of every committed record of the topic's only partition, in order.

        Read with Kafka's own console consumer, which ends when nothing has come for a while: whoever writes must have
        stopped. Without a group, which would have to be formed within that while.
        """
        place = f"--topic {topic} --partition 0 --offset earliest --timeout-ms 10000"
        options = f"--bootstrap-server {self.bootstrap} {place}"
        isolated = "--isolation-level read_committed --formatter-property print.key=true"
        command = ["java", *BROKER_JVM, "-Dlog4j2.level=OFF", "-cp", self.jars / "*"]
        command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", *options.split(), *isolated.split()]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=seconds)
        records = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
        if not records:
            raise Fault(f"read {topic}: nothing there\n{done.stderr[-500:]}")
        return records


class Worker(Child):
    """A worker with a REST API at `url`; healthy once `start` has returned."""

    port = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        """Seconds from the start of the process until it is healthy."""
        self.spawn()
        return self.ready(self.healthy)

    def healthy(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return call(self.url, "GET", "/health", seconds=2).status == 200
        return False


class Tributary(Worker):
    """Our worker, with the class `TestSource`."""

    def __init__(self, binary, bootstrap, directory, number=1, group="hand"):
        self.port = free_port()
        own = directory / f"worker-{number}"
        own.mkdir()
        properties = own / "worker.properties"
        factors = "".join(f"{kind}.storage.replication.factor=1\n" for kind in "config offset status work grant".split())
        properties.write_text(
            f"bootstrap.servers={bootstrap}\n"
            f"group.id={group}\n"
            f"listeners={self.url}\n"
            "rest.advertised.host.name=127.0.0.1\n"
            f"state.dir={own / 'state'}\n"
            # TestSource writes text, so the registry is never called.
            "value.converter.schema.registry.url=http://127.0.0.1:9/\n" + factors
        )
        command = [binary, "run", "--config", properties]
        super().__init__(f"worker-{number}", command, own / "worker.log", {"TRIBUTARY_TEST_PLUGINS": "true"})

    def connector(self, topic, **more):
        return {"connector.class": "TestSource", "tasks.max": "1", "topic": topic, **more}


class Connect(Worker):
    """Apache Kafka Connect, distributed mode, one worker, with the heap and collector of its own start script."""

    def __init__(self, bootstrap, directory, group="connect"):
        self.port = free_port()
        self.lines = directory / "lines.txt"
        self.lines.write_text("".join(f"line {number}\n" for number in range(10)))
        properties = directory / "connect.properties"
        topics = "".join(
            f"{kind}.storage.topic={group}-{kind}\n{kind}.storage.replication.factor=1\n"
            for kind in "config offset status".split()
        )
        properties.write_text(
            f"bootstrap.servers={bootstrap}\n"
            f"group.id={group}\n"
            "key.converter=org.apache.kafka.connect.json.JsonConverter\n"
            "value.converter=org.apache.kafka.connect.json.JsonConverter\n"
            # A second, not a minute, since offsets are read.
            "offset.flush.interval.ms=1000\n"
            "plugin.discovery=service_load\n"
            f"listeners={self.url}\n" + topics
        )
        command = ["java", *CONNECT_JVM, "-Dlog4j2.level=WARN", "-cp", jars() / "*"]
        command += ["org.apache.kafka.connect.cli.ConnectDistributed", properties]
        super().__init__("connect", command, directory / "connect.log")

    def connector(self, topic, **more):
        return {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.lines),
            "topic": topic,
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            **more,
        }


class Answer:
    """An answer, and the seconds it took."""

    def __init__(self, status, text, seconds):
        self.status, self.text, self.seconds = status, text, seconds

    @property
    def json(self):
        return json.loads(self.text)

    def __repr__(self):
        return f"{self.status} after {self.seconds:.2f} s: {self.text[:200]!r}"


def call(url, method, path, body=None, seconds=15):
    """One request on a new connection; OSError or HTTPException if there is no complete answer."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=seconds)
    try:
        return ask(connection, method, path, body)
    finally:
        connection.close()


def ask(connection, method, path, body=None):
    """One request on a connection that stays open."""
    begin = time.monotonic()
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
    response = connection.getresponse()
    read = response.read().decode()
    return Answer(response.status, read, time.monotonic() - begin)


@contextlib.contextmanager
def stage():
    """A directory for one run and a list to put children in; they are ended at the end, in reverse."""
    directory, children = pathlib.Path(tempfile.mkdtemp(prefix="tributary-")), []
    try:
        yield directory, children
    except BaseException:
        print(f"logs and data are kept in {directory}", file=sys.stderr)
        raise
    else:
        end(children)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        end(children)


def end(children):
    for child in reversed(children):
        child.kill()


def rank(values, share):
    """The value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows):
    """Rows of text, aligned, the first as the head."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    lines = [" | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(lines)
