"""This version opens what an earlier one wrote and goes on with it, and the earlier one what this one wrote.

Each test goes earlier, current, earlier, current, so that both directions are taken, one of them twice.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster, BrokerProcess
from ottla.protocol.topics import GROUP_METADATA_TOPIC
from peers.rolling_restart import replicated
from peers.service import running

pytestmark = pytest.mark.timeout(600)

WAY: Final = ("earlier", "current", "earlier", "current")
BOUND_S: Final = 60
PER_ROUND: Final = 300
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TRANSACTIONAL_ID: Final = "mover"


@dataclass
class Ledger:
    """Acknowledged records and changes, which each later start must still have."""

    values: dict[str, list[bytes]] = field(default_factory=dict)
    newest: dict[bytes, bytes] = field(default_factory=dict)
    """Of the compacted topic."""
    first: dict[str, int] = field(default_factory=dict)
    """Log start offsets."""
    committed: int = 0
    retention_ms: int = 0
    topics: set[str] = field(default_factory=set)


class Client:
    """Writes to one broker and checks it."""

    def __init__(self, servers: str, ledger: Ledger) -> None:
        self.servers = servers
        self.ledger = ledger
        self.admin = AdminClient({"bootstrap.servers": servers})

    # --- a round's changes

    def create(self, topic: str, **config: str) -> None:
        made = self.admin.create_topics([NewTopic(topic, 1, 1, config=config)], operation_timeout=BOUND_S)
        made[topic].result(BOUND_S)
        self.ledger.topics.add(topic)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic], operation_timeout=BOUND_S)[topic].result(BOUND_S)
        self.ledger.topics.discard(topic)
        self.ledger.values.pop(topic, None)

    def write(self, topic: str, number: int, codec: str) -> None:
        producer = Producer(self._settings(codec))
        for count in range(PER_ROUND):
            value = b"%d-%d" % (number, count)
            producer.produce(topic, value, partition=0)
            self.ledger.values.setdefault(topic, []).append(value)
        assert producer.flush(BOUND_S) == 0

    def write_keys(self, number: int) -> None:
        producer = Producer(self._settings("none"))
        for count in range(PER_ROUND):
            key, value = b"key-%d" % (count % (20 + number)), b"%d-%d" % (number, count)
            producer.produce("compacted", value, key)
            self.ledger.newest[key] = value
        assert producer.flush(BOUND_S) == 0

    def write_in_transactions(self, number: int) -> None:
        """Commit one, abort one, and leave one open, which the next round's producer fences."""
        producer = Producer(self._settings("lz4") | {"transactional.id": TRANSACTIONAL_ID})
        producer.init_transactions(BOUND_S)
        for end in ("commit", "abort", "open"):
            producer.begin_transaction()
            for count in range(10):
                value = b"%d-%s-%d" % (number, end.encode(), count)
                producer.produce("moved", value)
                if end == "commit":
                    self.ledger.values.setdefault("moved", []).append(value)
            producer.flush(BOUND_S)
            if end == "commit":
                producer.commit_transaction(BOUND_S)
            if end == "abort":
                producer.abort_transaction(BOUND_S)

    def commit(self) -> None:
        self.ledger.committed = len(self.ledger.values["plain"])
        offsets = [TopicPartition("plain", 0, self.ledger.committed)]
        asked = [ConsumerGroupTopicPartitions("readers", offsets)]
        self.admin.alter_consumer_group_offsets(asked)["readers"].result(BOUND_S)

    def delete_first_records(self) -> None:
        end = self.ledger.first.get("shortened", 0) + PER_ROUND // 2
        found = self.admin.delete_records([TopicPartition("shortened", 0, end)])
        assert [deleted.result(BOUND_S).low_watermark for deleted in found.values()] == [end]
        self.ledger.first["shortened"] = end

    def alter_topic(self, number: int) -> None:
        self.ledger.retention_ms = 3_600_000 * (number + 1)
        entry = ConfigEntry(
            "retention.ms", str(self.ledger.retention_ms), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, "plain", incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(BOUND_S)

    def _settings(self, codec: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers, "acks": "all", "enable.idempotence": True,
            "compression.type": codec, "linger.ms": 5, "on_delivery": _raise_at_failure,
        }  # fmt: skip

    # --- what must be there

    def check(self) -> None:
        ledger = self.ledger
        assert {name for name in self.admin.list_topics(timeout=BOUND_S).topics if "__" not in name} == (
            ledger.topics
        )
        for topic, values in ledger.values.items():
            first = ledger.first.get(topic, 0)
            assert [value for _, value in self.read(topic)] == values[first:], topic
        assert dict(self.read("compacted")) == ledger.newest
        assert self.committed() == (ledger.committed or OFFSET_INVALID)
        if ledger.retention_ms:
            assert self.described("plain")["retention.ms"] == str(ledger.retention_ms)

    def read(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return keys and values of a topic to its end, without those of aborted transactions."""
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "checker", "enable.auto.commit": False,
             "enable.partition.eof": True, "isolation.level": "read_committed"}
        )  # fmt: skip
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[tuple[bytes | None, bytes | None]] = []
        try:
            while True:
                message = consumer.poll(BOUND_S)
                assert message is not None, f"{topic}: no end within {BOUND_S} s"
                if (error := message.error()) is None:
                    found.append((message.key(), message.value()))
                elif error.name() == "_PARTITION_EOF":
                    return found
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()

    def committed(self) -> int:
        asked = [ConsumerGroupTopicPartitions("readers", [TopicPartition("plain", 0)])]
        found = self.admin.list_consumer_group_offsets(asked)["readers"].result(BOUND_S)
        return int(found.topic_partitions[0].offset)

    def described(self, topic: str) -> Mapping[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource].result(BOUND_S)
        return {name: entry.value for name, entry in found.items()}


def test_a_data_directory_goes_to_this_version_and_back(versions: dict[str, str], tmp_path: Path) -> None:
    """Records, transactions, groups, settings, log starts; after a clean stop and after a kill."""
    ledger = Ledger()
    broker = BrokerProcess(
        tmp_path, {"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0"}
    )
    for number, (version, ends_clean) in enumerate(zip(WAY * 2, (True,) * 4 + (False,) * 4, strict=True)):
        broker.python = versions[version]
        broker.start()
        client = Client(broker.bootstrap_servers, ledger)
        try:
            if number:
                client.check()
            change(client, number)
            if ends_clean:  # a kill may undo a deletion of records, whose checkpoint is written each minute
                client.delete_first_records()
            client.check()
        finally:
            broker.stop() if ends_clean else broker.kill()


def _raise_at_failure(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def change(client: Client, number: int) -> None:
    """Write, alter, delete and create, as one version does before the other comes."""
    if number == 0:
        client.create("compacted", **{"cleanup.policy": "compact", "segment.bytes": "16384"})
        for topic in ("plain", "shortened", "moved", *(f"of-{codec}" for codec in CODECS)):
            client.create(topic)
    client.write("plain", number, "none")
    for codec in CODECS:
        client.write(f"of-{codec}", number, codec)
    client.write_keys(number)
    client.write("shortened", number, "none")
    client.write_in_transactions(number)
    client.commit()
    client.alter_topic(number)
    client.create(f"made-{number}")
    client.write(f"made-{number}", number, "none")
    if number % 2:
        client.delete(f"made-{number - 1}")


def test_a_topic_key_of_ours_is_read_from_its_old_place(versions: dict[str, str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        broker.python = versions["earlier"]
        broker.start()
        client = Client(broker.bootstrap_servers, Ledger())
        client.create("kept", **{"flush.before.acknowledge": "true"})
        broker.stop()
        broker.python = versions["current"]
        broker.start()

        assert client.described("kept")["flush.before.acknowledge"] == "true"


async def test_a_cluster_is_upgraded_under_load_and_taken_back(
    versions: dict[str, str], tmp_path: Path
) -> None:
    """One broker after the other, twice; acks=all by the smallest in-sync set, no error and no loss."""
    with BrokerCluster(tmp_path, {"min.insync.replicas": "2"}) as cluster:
        async with Admin(cluster.bootstrap_servers) as admin:
            await admin.topics.create("load", partitions=3, replication_factor=3)
            writer = Writer(cluster.bootstrap_servers, "load")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.to_thread(writer.run))
                try:
                    async with asyncio.timeout(BOUND_S):
                        while not writer.read_back:  # noqa: ASYNC110 - until its topic exists
                            await asyncio.sleep(0.05)
                    for version in WAY:
                        await _restart_all(cluster, versions[version], admin, "load")
                finally:
                    writer.stopped = True

    assert len(writer.acknowledged) > 0
    assert writer.failed == []
    assert writer.read_back == writer.acknowledged


async def _restart_all(cluster: BrokerCluster, python: str, admin: Admin, topic: str) -> None:
    for broker in cluster.brokers.values():
        broker.python = python
        await asyncio.to_thread(broker.restart)
        await replicated(admin, len(cluster.brokers), topic)
        await replicated(admin, len(cluster.brokers), GROUP_METADATA_TOPIC)


class Writer:
    """Writes until it is stopped, one record after the other; then reads all."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.stopped = False
        self.acknowledged: set[bytes] = set()
        self.failed: list[str] = []
        self.read_back: set[bytes] = set()

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "enable.idempotence": True})
        group = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "load", "auto.offset.reset": "earliest"}
        )
        group.subscribe([self.topic])
        for number in itertools.count():
            if self.stopped:
                break
            producer.produce(self.topic, b"%d" % number, on_delivery=self._delivered)
            producer.poll(0)
            self._read(group, 0.005)
        assert producer.flush(BOUND_S) == 0
        while len(self.read_back) < len(self.acknowledged) and self._read(group, BOUND_S):
            pass
        group.close()

    def _read(self, group: Consumer, timeout_s: float) -> bool:
        message = group.poll(timeout_s)
        if message is not None and message.error() is None:
            self.read_back.add(message.value() or b"")
        return message is not None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value())
        else:
            self.failed.append(str(error))


def test_the_state_of_streams_goes_to_this_version_and_back(versions: dict[str, str], tmp_path: Path) -> None:
    """Counts in files of SQLite, and marks of what was handled; each record is sent twice for the marks."""
    program = Path(__file__).with_name("counting_app.py")
    sent: Counter[bytes] = Counter()
    with BrokerProcess(tmp_path / "broker") as broker:
        client = Client(broker.bootstrap_servers, Ledger())
        for topic in ("orders", "counts", "payments"):
            client.create(topic)
        for number, version in enumerate(WAY):
            arguments = (versions[version], str(program), broker.bootstrap_servers, str(tmp_path))
            with running(*arguments, folder=tmp_path) as app:
                app.line_with("^started")
                sent.update(_send(client.servers, number))
                wanted = {key: b"%d" % count for key, count in sent.items()}
                assert _until_counted(client, wanted) == wanted
                _until_paid(tmp_path, set(_payments(number + 1)))
                app.stop()

    assert _paid(tmp_path) == sorted(_payments(len(WAY)))


def _send(servers: str, number: int) -> Iterator[bytes]:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for count in range(200):
        key = b"customer-%d" % (count % 7)
        producer.produce("orders", b"order", key)
        yield key
    for message in 2 * _payments(number + 1):  # copies, also of what the other version has handled
        producer.produce("payments", message, message)
    assert producer.flush(BOUND_S) == 0


def _payments(rounds: int) -> list[str]:
    return [f"{number}-{count}" for number in range(rounds) for count in range(50)]


def _paid(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        return sorted(row[0] for row in ledger.execute("SELECT message FROM payments"))


def _until_counted(client: Client, wanted: Mapping[bytes, bytes]) -> dict[bytes | None, bytes | None]:
    """Return the newest counts, as soon as they are the wanted ones."""
    deadline_s = time.monotonic() + BOUND_S
    while (counts := dict(client.read("counts"))) != wanted and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return counts


def _until_paid(folder: Path, wanted: set[str]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not wanted <= set(_paid(folder)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
