"""The short way of Fetch: a consumer's request for one partition that can be answered at once.

The network finds it in the bytes (`FrameReader.next_fetch`), so no message object is made. Whatever is not
plain, or has to wait, or fails, goes the long way, `handlers.fetch`; where both give an answer it is the
same, byte for byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.replication.partition import Role
from ottla.protocol.errors import KafkaError
from ottla.protocol.storage import CorruptStorage

if TYPE_CHECKING:
    from ottla.broker.handlers.services import Services
    from ottla.broker.log.log import Slice
    from ottla.broker.replication.replicas import LeaderPartition
    from ottla.protocol.topics import TopicPartition

_FIRST_WITH_ZSTD: Final = 10
_FIRST_FLEXIBLE: Final = 12
_NO_EPOCH: Final = -1
_NO_TAGS: Final = b"\0\0\0"
"""Behind the records: of the partition, the topic and the response."""


class Ask(Protocol):
    """A plain Fetch request (`network.frames.PlainFetch`)."""

    @property
    def key(self) -> bytes:
        """The topic's bytes and the partition's four bytes."""
        ...

    @property
    def target(self) -> Any:
        """What the index holds for the key."""
        ...

    @property
    def version(self) -> int: ...

    @property
    def max_wait_ms(self) -> int: ...

    @property
    def min_bytes(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def committed_only(self) -> bool: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def partition_max_bytes(self) -> int: ...

    def head(self, high_watermark: int, last_stable_offset: int, log_start_offset: int, size: int) -> bytes:
        """Return the response, framed, up to its `size` bytes of records."""
        ...


class Target:
    """A partition and its topic's meter, as the index holds them."""

    __slots__ = ("bytes_out", "partition")

    def __init__(self, services: Services, partition: LeaderPartition) -> None:
        self.partition = partition
        self.bytes_out = services.topic_metrics.of(partition.topic_partition.topic).bytes_out


class PlainFetches:
    """Answers plain requests for one broker. The long way adds partitions to `index` as they are fetched."""

    def __init__(self, services: Services) -> None:
        self.index: dict[bytes, Target] = {}
        self._services = services
        self._bytes_out = services.topic_metrics.all_topics.bytes_out
        self._requests = services.topic_metrics.all_topics.fetch_requests

    def learn(self, topic_partition: TopicPartition) -> None:
        """A fetch from this partition went well; its next ones may go the short way."""
        partition = self._services.replicas.hosted(topic_partition)
        if partition is not None:
            key = topic_partition.topic.encode() + topic_partition.partition.to_bytes(4)
            self.index[key] = Target(self._services, partition)

    def answer(self, ask: Ask) -> list[bytes | Slice] | None:
        """Return the whole response, or None where it has to be found the long way."""
        target: Target = ask.target
        partition = target.partition
        core = partition.core
        epoch = ask.leader_epoch
        if core.role is not Role.LEADER:
            self.index.pop(ask.key, None)
            return None
        if epoch != _NO_EPOCH and epoch != core.leader_epoch:
            return None
        try:
            return self._read(ask, target, partition)
        except (KafkaError, OSError, CorruptStorage):
            return None

    def _read(self, ask: Ask, target: Target, partition: LeaderPartition) -> list[bytes | Slice] | None:
        log, offset, version = partition.log, ask.offset, ask.version
        high_watermark, stable = partition.core.high_watermark, log.last_stable_offset
        up_to = stable if ask.committed_only else high_watermark
        if not log.log_start_offset <= offset < up_to:
            return None
        if version < _FIRST_WITH_ZSTD and log.config.compression_type == "zstd":
            return None
        limit = min(ask.partition_max_bytes, ask.max_bytes, self._services.config.fetch_max_bytes)
        records = log.read(offset, limit, up_to=up_to, wait=False)
        size = records.length
        if not size or (size < ask.min_bytes and ask.max_wait_ms > 0) or partition.is_cold(offset, records):
            return None
        if ask.committed_only and log.aborted_transactions(offset, up_to):
            return None
        self._requests.count += 1
        self._bytes_out.count += size
        target.bytes_out.count += size
        head = ask.head(high_watermark, stable, log.log_start_offset, size)
        return [head, records, _NO_TAGS] if version >= _FIRST_FLEXIBLE else [head, records]
