"""Reads Tributary's topics as a pipeline does. Needs: pip install confluent-kafka fastavro

  consume.py table   BOOTSTRAP REGISTRY TOPIC            what a record topic holds now, one JSON line per key
  consume.py follow  BOOTSTRAP REGISTRY TOPIC            every event or record as it comes, until Ctrl-C
  consume.py company BOOTSTRAP REGISTRY PREFIX COMPANY   one company's events and records, from one partition of each topic

Three things matter to every reader:

- `isolation.level=read_committed`: record topics are written in transactions, and one that was aborted is in the log too.
- A null value is a tombstone: the provider itself said that the record is gone. Remove the key.
- The partition is murmur2 of the *company*, the part of the key before the first `/`. Events and records of a company
  have the same partition number, so readers can be co-partitioned; but the default partitioner, asked for the partition of a
  record's whole key, points elsewhere.
"""

import datetime
import io
import json
import struct
import sys
import urllib.request

import fastavro
from confluent_kafka import Consumer, KafkaException, TopicPartition

SECONDS = 30


class Registry:
    """Schemas by the id that stands before each value."""

    def __init__(self, url):
        self.url, self.schemas = url.rstrip("/"), {}

    def decode(self, data):
        magic, number = struct.unpack(">bI", data[:5])
        if magic != 0:
            raise ValueError(f"not Confluent's wire format: the first byte is {magic}")
        if number not in self.schemas:
            with urllib.request.urlopen(f"{self.url}/schemas/ids/{number}", timeout=SECONDS) as answer:
                self.schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), self.schemas[number])


def consumer(bootstrap):
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            # Commits no offsets: each run starts at the beginning. A pipeline commits the records that it has stored.
            "group.id": "tributary-example",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
        }
    )


def partitions(reader, topic):
    found = reader.list_topics(topic, timeout=SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def to_the_end(reader, places):
    """All messages that are there now, partition by partition in their order."""
    open_places = {}
    for topic, number in places:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, number), timeout=SECONDS)
        if low < high:
            open_places[(topic, number)] = high
    if not open_places:
        return
    reader.assign([TopicPartition(topic, number, 0) for topic, number in open_places])
    while open_places:
        message = reader.poll(1.0)
        if message is not None and message.error():
            raise KafkaException(message.error())
        if message is not None:
            yield message
        # Compare positions to find the end: the marker that ends a transaction takes an offset too, and is no message.
        for place in reader.position([TopicPartition(*place) for place in open_places]):
            if place.offset >= open_places[(place.topic, place.partition)]:
                del open_places[(place.topic, place.partition)]


def shown(message, registry):
    headers = {name: text.decode() for name, text in message.headers() or []}
    value = message.value()
    return {
        "topic": message.topic(),
        "key": message.key().decode(),
        "version": headers.get("tributary.version"),
        "origin": headers.get("tributary.origin"),
        "value": None if value is None else registry.decode(value),
    }


def line(entry):
    def plain(value):
        return value.isoformat() if isinstance(value, (datetime.datetime, datetime.date)) else str(value)

    print(json.dumps(entry, default=plain, ensure_ascii=False), flush=True)


def table(bootstrap, registry, topic):
    reader, rows = consumer(bootstrap), {}
    for message in to_the_end(reader, [(topic, number) for number in partitions(reader, topic)]):
        if message.value() is None:
            rows.pop(message.key(), None)
        else:
            rows[message.key()] = message
    for _, message in sorted(rows.items()):
        line(shown(message, registry))
    reader.close()


def follow(bootstrap, registry, topic):
    reader = consumer(bootstrap)
    reader.subscribe([topic])
    try:
        while True:
            message = reader.poll(1.0)
            if message is not None and message.error():
                raise KafkaException(message.error())
            if message is not None:
                line(shown(message, registry))
    except KeyboardInterrupt:
        pass
    finally:
        reader.close()


def murmur2(data):
    """As Kafka's Java client hashes keys."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) - len(data) % 4
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15


def company(bootstrap, registry, prefix, wanted):
    reader = consumer(bootstrap)
    names = [name for name in reader.list_topics(timeout=SECONDS).topics if name.startswith(f"{prefix}.accounting.")]
    if not names:
        raise SystemExit(f"there are no topics {prefix}.accounting.…")
    count = len(partitions(reader, names[0]))
    number = (murmur2(wanted.encode()) & 0x7FFFFFFF) % count
    for message in to_the_end(reader, [(name, number) for name in sorted(names)]):
        # In a key `/`, `%` and control characters of an id are percent-encoded, so the first `/` ends the company.
        if message.key().decode().split("/")[0] == wanted:
            line(shown(message, registry))
    reader.close()


if __name__ == "__main__":
    ways = {"table": (table, 3), "follow": (follow, 3), "company": (company, 4)}
    way, count = ways.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    if way is None or len(sys.argv) != 2 + count:
        sys.exit(__doc__)
    way(sys.argv[2], Registry(sys.argv[3]), *sys.argv[4:])
