"""Reads published records with clients that share no code with the product, and compares every field.

Usage: read_back.py BOOTSTRAP REGISTRY_URL EXPECTATIONS

EXPECTATIONS is a JSON array; each element has `topic`, `partition`, `offset`, `key`, `headers` (name and text,
in order), `timestamp` (milliseconds or null), `schema` (name of the Avro record or null) and `value` (the record
as JSON, or null for a tombstone). Needs confluent-kafka and fastavro; ends with 1 and a line per difference.
"""

import datetime
import io
import json
import struct
import sys
import urllib.request

import confluent_kafka
import fastavro

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
MICROSECOND = datetime.timedelta(microseconds=1)
POLL_SECONDS = 20


class Registry:
    def __init__(self, url):
        self.url = url.rstrip("/")
        self.schemas = {}

    def schema(self, number):
        if number not in self.schemas:
            with urllib.request.urlopen(f"{self.url}/schemas/ids/{number}", timeout=POLL_SECONDS) as answer:
                self.schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        return self.schemas[number]


def read(bootstrap, topic, partition, offset):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "read-back", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
    try:
        message = consumer.poll(POLL_SECONDS)
    finally:
        consumer.close()
    if message is None or message.error():
        raise SystemExit(f"{topic}/{partition}@{offset}: {message and message.error() or 'nothing there'}")
    return message


def plain(value):
    """The value as JSON: times in microseconds, as the schema declares them."""
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MICROSECOND
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def compare(path, found, wanted, faults):
    """Adds every difference to `faults`; the number of compared values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() ^ wanted.keys()):
            faults.append(f"{path}.{name}: only {'found' if name in found else 'wanted'}")
        return sum(compare(f"{path}.{name}", found[name], wanted[name], faults) for name in found.keys() & wanted.keys())
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return sum(compare(f"{path}[{i}]", a, b, faults) for i, (a, b) in enumerate(zip(found, wanted)))
    if type(found) is not type(wanted) or found != wanted:
        faults.append(f"{path}: found {found!r}, wanted {wanted!r}")
    return 1


def decode(registry, data, faults, path):
    magic, number = struct.unpack(">bI", data[:5])
    if magic != 0:
        faults.append(f"{path}: magic byte {magic}")
    schema = registry.schema(number)
    stream = io.BytesIO(data[5:])
    value = fastavro.schemaless_reader(stream, schema)
    if stream.read():
        faults.append(f"{path}: bytes are left over")
    return schema["name"], plain(value)


def main(bootstrap, registry_url, expectations):
    registry, faults, values = Registry(registry_url), [], 0
    with open(expectations, encoding="utf-8") as file:
        wanted = json.load(file)
    for record in wanted:
        path = f"{record['topic']}/{record['key']}"
        message = read(bootstrap, record["topic"], record["partition"], record["offset"])
        found = {
            "key": message.key().decode(),
            "headers": [[name, text.decode()] for name, text in message.headers() or []],
            "timestamp": record["timestamp"] and message.timestamp()[1],
            "schema": None,
            "value": None,
        }
        if message.value() is not None:
            found["schema"], found["value"] = decode(registry, message.value(), faults, path)
        values += compare(path, found, {name: record[name] for name in found}, faults)
    print("\n".join(faults + [f"{len(wanted)} records, {values} values compared, {len(faults)} differences"]))
    return 1 if faults or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
