"""Clients that speak the wire of Kafka 0.8.1 to 0.10.0, and clients of today, read what each other wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError as PythonError
from kafka.structs import OffsetAndMetadata

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition as OurPartition

pytestmark = pytest.mark.timeout(240)

BOUND_S = 60.0
FIRST_MS = 1_600_000_000_000
RECORDS = 60
_numbers = count(1)


class Message(NamedTuple):
    """A record as a client has it; None where the client's wire has no such thing."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Client:
    """A client library, told how old the broker is."""

    library: str
    version: str
    """Empty for today's."""

    @property
    def name(self) -> str:
        return f"{self.library}-{self.version or 'now'}"

    @property
    def release(self) -> tuple[int, ...]:
        """The release whose wire it speaks; librdkafka asks for the versions again from 0.10 on."""
        told = tuple(map(int, self.version.split("."))) if self.version else (99,)
        return (99,) if self.library == "librdkafka" and told >= (0, 10) else told

    @property
    def has_headers(self) -> bool:
        return self.release >= (0, 11)

    @property
    def has_timestamps(self) -> bool:
        return self.release >= (0, 10)

    def can(self, codec: str) -> bool:
        """Whether this client has a codec towards a broker of its version."""
        if codec == "zstd":
            return self.release >= (2, 1)
        return codec != "lz4" or self.release >= (0, 8, 2)

    def write(self, servers: str, topic: str, rows: list[Message], codec: str) -> list[int]:
        """Produce rows to partition 0; return their offsets."""
        writing = _write_librdkafka if self.library == "librdkafka" else _write_kafka_python
        return writing(self, servers, topic, rows, codec)

    def read(self, servers: str, topic: str, wanted: int, start: int = 0) -> list[Message]:
        """Read partition 0 up to so many messages. Raises the library's error."""
        reading = _read_librdkafka if self.library == "librdkafka" else _read_kafka_python
        return reading(self, servers, topic, wanted, start)


def python_config(client: Client, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap_servers": servers}
    return {**config, "api_version": client.release} if client.version else config


def librdkafka_config(client: Client, servers: str) -> dict[str, Any]:
    config: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
    if client.version:
        config |= {"api.version.request": False, "broker.version.fallback": client.version}
    return config


def _write_kafka_python(
    client: Client, servers: str, topic: str, rows: list[Message], codec: str
) -> list[int]:
    old: dict[str, Any] = {"enable_idempotence": False, "acks": 1} if client.version else {}
    compression = None if codec == "none" else codec
    settings = {**python_config(client, servers), "linger_ms": 20, "compression_type": compression, **old}
    with closing(KafkaProducer(**settings)) as producer:
        futures = [
            producer.send(
                topic, row.value, row.key, partition=0, timestamp_ms=row.timestamp_ms,
                headers=list(row.headers) if client.has_headers else [],
            )
            for row in rows
        ]  # fmt: skip
        producer.flush(BOUND_S)
        return [future.get(BOUND_S).offset for future in futures]


def _read_kafka_python(client: Client, servers: str, topic: str, wanted: int, start: int) -> list[Message]:
    settings = {**python_config(client, servers), "group_id": None, "auto_offset_reset": "earliest"}
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_S
    with closing(KafkaConsumer(enable_auto_commit=False, **settings)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), start)
        while len(found) < wanted and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=500).values():
                found += [
                    Message(one.offset, one.key, one.value, one.timestamp, tuple(one.headers))
                    for one in records
                ]
    return found


def _write_librdkafka(client: Client, servers: str, topic: str, rows: list[Message], codec: str) -> list[int]:
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        failures.append(error) if error else offsets.append(message.offset())

    settings = {**librdkafka_config(client, servers), "linger.ms": 20, "compression.type": codec}
    producer = Producer(settings)
    for row in rows:
        more: dict[str, Any] = {"headers": list(row.headers)} if client.has_headers else {}
        if row.timestamp_ms is not None:
            more["timestamp"] = row.timestamp_ms
        producer.produce(topic, row.value, row.key, partition=0, on_delivery=delivered, **more)
    assert producer.flush(BOUND_S) == 0
    assert failures == []
    return offsets


def _read_librdkafka(client: Client, servers: str, topic: str, wanted: int, start: int) -> list[Message]:
    settings = {**librdkafka_config(client, servers), "group.id": "reader", "check.crcs": True}
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_S
    with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.assign([ConfluentPartition(topic, 0, start or OFFSET_BEGINNING)])
        while len(found) < wanted and time.monotonic() < deadline:
            found += [_of_librdkafka(one) for one in consumer.consume(wanted, timeout=1)]
    return found


def _of_librdkafka(message: Any) -> Message:
    if message.error() is not None:
        raise KafkaException(message.error())
    kind, timestamp_ms = message.timestamp()
    headers = tuple(message.headers() or ())
    return Message(message.offset(), message.key(), message.value(), timestamp_ms if kind else None, headers)


OLD = [
    Client("kafka-python", "0.8.1"),
    Client("kafka-python", "0.8.2"),
    Client("kafka-python", "0.9"),
    Client("kafka-python", "0.10.0"),
    Client("librdkafka", "0.8.1"),
    Client("librdkafka", "0.8.2"),
    Client("librdkafka", "0.9.0"),
    Client("librdkafka", "0.10.0"),
]
NEW = [Client("kafka-python", ""), Client("librdkafka", "")]
PAIRS = [
    pytest.param(old, new, codec, id=f"{old.name}-{new.name}-{codec}")
    for old in OLD
    for new in NEW
    for codec in ("none", "gzip", "snappy", "lz4")
    if old.can(codec)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"num.partitions": "1", "offsets.topic.num.partitions": "4"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"old-{next(_numbers)}"


@pytest.fixture
def make_topic(broker: BrokerProcess, topic: str) -> Callable[..., Any]:
    async def made(**configs: str) -> str:
        async with Admin(broker.bootstrap_servers) as admin:
            named = {name.replace("_", "."): value for name, value in configs.items()}
            await admin.topics.create(topic, partitions=1, replication_factor=1, configs=named)
        return topic

    return made


def some_rows(first_offset: int = 0, number: int = RECORDS) -> list[Message]:
    """Rows with and without keys, tombstones, empty values, headers, and a time of their own."""
    return [
        Message(
            offset,
            None if offset % 5 == 0 else b"key %d" % (offset % 7),
            None if offset % 5 == 3 else b"" if offset % 11 == 0 else b"value %d " % offset * 20,
            FIRST_MS + offset,
            (("h", b"%d" % offset), ("empty", b"")),
        )
        for offset in range(first_offset, first_offset + number)
    ]


def as_seen(rows: list[Message], writer: Client, reader: Client) -> list[Message]:
    """Return the rows as the reader gets them: headers and timestamps only where both clients have them."""
    headers = writer.has_headers and reader.has_headers
    times = writer.has_timestamps and reader.has_timestamps
    seen = [row if headers else row._replace(headers=()) for row in rows]
    return seen if times else [row._replace(timestamp_ms=None) for row in seen]


def without_missing_times(rows: list[Message]) -> list[Message]:
    """A record without a time has -1 in today's format."""
    return [row._replace(timestamp_ms=None) if row.timestamp_ms == -1 else row for row in rows]


@pytest.mark.parametrize(("old", "new", "codec"), PAIRS)
def test_an_old_client_reads_what_a_new_one_wrote(
    broker: BrokerProcess, topic: str, old: Client, new: Client, codec: str
) -> None:
    rows = some_rows()

    assert new.write(broker.bootstrap_servers, topic, rows, codec) == [row.offset for row in rows]
    seen = old.read(broker.bootstrap_servers, topic, len(rows))

    assert without_missing_times(seen) == as_seen(rows, new, old)


@pytest.mark.parametrize(("old", "new", "codec"), PAIRS)
def test_a_new_client_reads_what_an_old_one_wrote(
    broker: BrokerProcess, topic: str, old: Client, new: Client, codec: str
) -> None:
    rows = some_rows()

    assert old.write(broker.bootstrap_servers, topic, rows, codec) == [row.offset for row in rows]
    seen = new.read(broker.bootstrap_servers, topic, len(rows))

    assert without_missing_times(seen) == as_seen(rows, old, new)


BEFORE_FORMAT_2 = [one for one in OLD if not one.has_headers]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
@pytest.mark.parametrize("old", BEFORE_FORMAT_2, ids=lambda one: one.name)
def test_an_old_client_continues_within_a_batch(
    broker: BrokerProcess, topic: str, old: Client, codec: str
) -> None:
    rows = some_rows()
    NEW[1].write(broker.bootstrap_servers, topic, rows, codec)

    seen = old.read(broker.bootstrap_servers, topic, len(rows) - 37, start=37)

    assert without_missing_times(seen) == as_seen(rows[37:], NEW[1], old)


@pytest.mark.parametrize("old", BEFORE_FORMAT_2, ids=lambda one: one.name)
@pytest.mark.parametrize("setting", ["producer", "zstd"])
async def test_an_old_client_is_told_that_zstd_is_not_for_it(
    broker: BrokerProcess, make_topic: Callable[..., Any], old: Client, setting: str
) -> None:
    topic = await make_topic(compression_type=setting)
    await asyncio.to_thread(NEW[1].write, broker.bootstrap_servers, topic, some_rows(), "zstd")

    with pytest.raises((PythonError, KafkaException)) as refused:
        await asyncio.to_thread(old.read, broker.bootstrap_servers, topic, RECORDS)

    code = refused.value.errno if isinstance(refused.value, PythonError) else refused.value.args[0].code()
    assert code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def committed(client: Client, servers: str, topic: str, group: str, offset: int) -> int | None:
    """Commit an offset, and return what another consumer of the group finds."""
    partition = TopicPartition(topic, 0)
    settings = {**python_config(client, servers), "group_id": group, "enable_auto_commit": False}
    with closing(KafkaConsumer(**settings)) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: OffsetAndMetadata(offset, "", -1)})
    with closing(KafkaConsumer(**settings)) as consumer:
        consumer.assign([partition])
        found: int | None = consumer.committed(partition)
    return found


@pytest.mark.parametrize("version", ["0.8.1", "0.8.2", "0.9", "0.10.0"])
async def test_offsets_are_kept_where_the_release_kept_them(
    broker: BrokerProcess, topic: str, version: str
) -> None:
    servers, group = broker.bootstrap_servers, f"group-{topic}"
    old = Client("kafka-python", version)
    await asyncio.to_thread(old.write, servers, topic, some_rows(), "none")

    found = await asyncio.to_thread(committed, old, servers, topic, group, 41)

    assert found == 41
    async with Admin(servers) as admin:
        kept = [one.offset for one in await admin.groups.offsets(group, [OurPartition(topic, 0)])]
    in_kafka = version != "0.8.1"  # else in ZooKeeper, where groups of today do not look
    assert kept == ([41] if in_kafka else [])


def test_librdkafka_commits_to_a_broker_of_0_8_2(broker: BrokerProcess, topic: str) -> None:
    old = Client("librdkafka", "0.8.2")
    old.write(broker.bootstrap_servers, topic, some_rows(), "snappy")
    settings = {**librdkafka_config(old, broker.bootstrap_servers), "group.id": f"group-{topic}"}
    with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
        consumer.commit(offsets=[ConfluentPartition(topic, 0, 41)], asynchronous=False)
    with closing(Consumer(settings)) as consumer:
        (found,) = consumer.committed([ConfluentPartition(topic, 0)], timeout=BOUND_S)

    assert found.offset == 41
