"""Where groups are kept: the seam to `__consumer_offsets`, and its implementation on replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.groups.records import KeyValue
from ottla.broker.log.log import AppendOrigin
from ottla.protocol.records import BatchBuilder, Codec, read_headers
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.replicas import Replicas

READ_BYTES: Final = 256 * 1024
"""Bytes looked at in one go while loading: about a millisecond of work."""
_BATCH_LIMIT: Final = 2**31 - 1


class Written(NamedTuple):
    """An append to the log: its offset, and the wait until all replicas have it (None: they have)."""

    position: int
    committed: Callable[[], Awaitable[None]] | None


class OffsetsStore(Protocol):
    """The log of groups and offsets, partition by partition."""

    def partition_count(self) -> int:
        """How many partitions there are, or will be once the topic exists."""
        ...

    def append(
        self, partition: int, records: Sequence[KeyValue], wall_ms: int, *, required_acks: int = -1
    ) -> Written:
        """Append as one batch, at once. Raises Kafka's errors."""
        ...

    def is_blank(self, partition: int) -> bool:
        """Whether nothing is there to be loaded. Raises NotLeaderOrFollower."""
        ...

    def read(self, partition: int) -> AsyncIterator[bytes]:
        """Stream whole batches from the start to the end that the log has now.

        Raises NotLeaderOrFollower when leadership is lost on the way.
        """
        ...


def build_batch(records: Sequence[KeyValue], wall_ms: int, codec: Codec = Codec.NONE) -> bytes:
    """Put records into one batch."""
    builder = BatchBuilder(_BATCH_LIMIT, codec=codec)
    for key, value in records:
        builder.append(key, value, wall_ms)
    return builder.build()


class ReplicatedOffsets:
    """`OffsetsStore` on the partitions of `__consumer_offsets` led here."""

    def __init__(
        self,
        replicas: Replicas,
        partition_count: Callable[[], int],
        *,
        codec: Codec = Codec.NONE,
        read_bytes: int = READ_BYTES,
    ) -> None:
        self._replicas = replicas
        self._partition_count = partition_count
        self._codec = codec
        self._read_bytes = min(read_bytes, READ_BYTES)

    def partition_count(self) -> int:
        return self._partition_count()

    def append(
        self, partition: int, records: Sequence[KeyValue], wall_ms: int, *, required_acks: int = -1
    ) -> Written:
        leader = self._replicas.leader(_topic_partition(partition))
        batch = build_batch(records, wall_ms, self._codec)
        appended = leader.append(
            batch, required_acks=required_acks, now_ms=wall_ms, origin=AppendOrigin.COORDINATOR
        )
        end = appended.last_offset + 1
        if leader.high_watermark >= end:
            return Written(appended.base_offset, None)
        return Written(appended.base_offset, lambda: leader.replicated(end))

    def is_blank(self, partition: int) -> bool:
        log = self._replicas.leader(_topic_partition(partition)).log
        return log.log_start_offset >= log.log_end_offset

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        topic_partition = _topic_partition(partition)
        first = self._replicas.leader(topic_partition)
        offset, end, epoch = first.log.log_start_offset, first.log.log_end_offset, first.leader_epoch
        while offset < end:
            leader = self._replicas.leader(topic_partition, epoch)
            piece = leader.read(offset, self._read_bytes, up_to=end, at_least_one=True)
            batches = await asyncio.to_thread(piece.read)
            if not batches:
                return
            yield batches
            offset = read_headers(batches)[-1].next_offset


def _topic_partition(partition: int) -> TopicPartition:
    return TopicPartition(GROUP_METADATA_TOPIC, partition)
