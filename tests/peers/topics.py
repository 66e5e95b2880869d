"""Topics for synchronous tests: created, filled, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ottla.admin import Admin
from ottla.client.blocking import LoopThread
from ottla.producer import SyncProducer
from ottla.protocol.storage.checkpoints import encode_uuid
from ottla.protocol.topics import TopicPartition

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record to send; without a partition the producer chooses."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()


class Topics:
    """Creates and fills topics of one cluster, from any thread. Use it as a context manager.

    The number of records in a batch depends on the load of the machine; `batch_size` bounds it, in bytes.
    """

    def __init__(self, bootstrap_servers: str, batch_size: int = 16_384) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = LoopThread(lambda: Admin(bootstrap_servers), name="topics of a test")
        self._producer = SyncProducer(bootstrap_servers=bootstrap_servers, linger_ms=0, batch_size=batch_size)

    def __enter__(self) -> Self:
        self._admin.start()
        self._producer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.stop()
        self._admin.close()

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic and return its name; `retention_ms` stands for retention.ms."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        opened = self._admin.start()
        self._admin.call(
            lambda: opened.topics.create(name, partitions=partitions, replication_factor=1, configs=settings)
        )
        return name

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic."""
        opened = self._admin.start()
        self._admin.call(lambda: opened.topics.add_partitions(name, total))

    def id_of(self, name: str) -> str:
        """Return the id of a topic as Kafka writes it."""
        opened = self._admin.start()
        return encode_uuid(self._admin.call(lambda: opened.topics.describe(name)).id)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        opened = self._admin.start()
        self._admin.call(lambda: opened.topics.delete(name))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records of partitions before an offset."""
        opened = self._admin.start()
        self._admin.call(lambda: opened.offsets.delete_records(before))

    def send(self, name: str, records: Iterable[Sent]) -> int:
        """Send records, wait until all are acknowledged, and return their number."""
        acknowledgements = [
            self._producer.send(
                name, each.value, each.key, each.partition, each.timestamp_ms, list(each.headers) or None
            )
            for each in records
        ]
        for each in acknowledgements:
            each.result()
        return len(acknowledgements)

    def fill(self, name: str, counts: Mapping[int, int], start: int = 0) -> None:
        """Send this many records to each partition: the value `0-7` is the eighth of partition 0."""
        for partition, count in counts.items():
            self.send(
                name,
                [
                    Sent(value=b"%d-%d" % (partition, start + index), partition=partition)
                    for index in range(count)
                ],
            )
