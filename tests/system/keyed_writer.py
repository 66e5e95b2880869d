"""A transactional writer of few keys into a compacted topic, which knows what must be left of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

KEYS: Final = 40
EACH: Final = 20
"""Records of a transaction."""
ABORTED_EVERY: Final = 5
TOMBSTONE_EVERY: Final = 7
PADDING: Final = b"x" * 100
CALL_S: Final = 60.0
PAUSE_S: Final = 0.05

Latest = Mapping[bytes, tuple[int, int, bytes | None]]
"""Partition, offset and value of each key's last record."""


@dataclass
class Open:
    """The records of a transaction; `delivered` has those that the brokers have acknowledged."""

    number: int
    delivered: dict[bytes, tuple[int, int, bytes | None]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        key, partition, offset = message.key(), message.partition(), message.offset()
        assert isinstance(key, bytes)
        assert partition is not None
        assert offset is not None
        self.delivered[key] = (partition, offset, message.value())


class KeyedWriter(threading.Thread):
    """Writes one transaction after the other while entered; every fifth is aborted.

    `latest` has what committed transactions wrote last, `written` and `aborted` count records and
    transactions, `refused` the commits that brokers refused, `failure` says why it has ended before its time.
    """

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.latest: dict[bytes, tuple[int, int, bytes | None]] = {}
        self.written = 0
        self.aborted = 0
        self.refused = 0
        self.failure = ""
        self._topic = topic
        self._partitions = partitions
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers, "transactional.id": "keyed", "transaction.timeout.ms": 60_000,
                "linger.ms": 5, "log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20, "topic.metadata.refresh.interval.ms": 2_000,
            }
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Wait for the end of the transaction under way."""
        self._stopping.set()
        self.join(2 * CALL_S)

    def run(self) -> None:
        try:
            self._producer.init_transactions(CALL_S)
            for number in itertools.count(1):
                if self._stopping.is_set():
                    return
                self._transact(number)
                time.sleep(PAUSE_S)
        except KafkaException as error:
            self.failure = f"{error}"

    def _transact(self, number: int) -> None:
        self._producer.begin_transaction()
        transaction = Open(number)
        for index in range(number * EACH, (number + 1) * EACH):
            self._write(index, transaction)
        if number % ABORTED_EVERY == 0:
            self._producer.flush(CALL_S)  # they are in the log, to be aborted there
            self._producer.abort_transaction(CALL_S)
            self.aborted += 1
        elif self._commit():
            self.latest |= transaction.delivered
        self.written += EACH

    def _write(self, index: int, transaction: Open) -> None:
        key = b"key-%d" % (index * 7 % KEYS)
        value = None if index % TOMBSTONE_EVERY == 0 else b"%d %s" % (index, PADDING)
        partition = index * 7 % KEYS % self._partitions
        self._producer.produce(self._topic, value, key, partition=partition, on_delivery=transaction.note)

    def _commit(self) -> bool:
        """Return whether the transaction is committed, aborted otherwise."""
        while True:
            try:
                self._producer.commit_transaction(CALL_S)
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    self._producer.abort_transaction(CALL_S)
                    self.refused += 1
                    return False
                if not error.args[0].retriable():
                    raise
            else:
                return True


def read_latest(servers: str, topic: str, partitions: int) -> tuple[Latest, int]:
    """Read a compacted topic's committed records; return the last one of each key, and how many there are."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": "judge", "enable.auto.commit": False,
            "enable.partition.eof": True, "check.crcs": True, "isolation.level": "read_committed",
            "log_level": 0,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    latest: dict[bytes, tuple[int, int, bytes | None]] = {}
    ended: set[int | None] = set()
    count = 0
    deadline = time.monotonic() + CALL_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{topic} was read up to its end in partitions {ended} only"
        for message in consumer.consume(1_000, timeout=1):
            if error := message.error():
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            record = Open(0)
            record.note(None, message)
            latest |= record.delivered
            count += 1
    consumer.close()
    return latest, count


def cleaned_to(directory: Path, topic: str) -> dict[int, int]:
    """Return up to which offset a broker's cleaner has cleaned partitions, from its checkpoint."""
    file = directory / "cleaner-offset-checkpoint"
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    entries = (line.split() for line in lines)
    return {int(words[1]): int(words[2]) for words in entries if words[0] == topic}
