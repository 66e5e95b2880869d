"""The log of a coordinator: the interface to an internal topic, and its implementation on replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.coordinators.coordinator_partitions import KeyValue
from ottla.broker.log.log import AppendOrigin
from ottla.broker.log.state.producer_state import NOT_REQUIRED, VerificationGuard
from ottla.protocol.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, RequestTimedOut
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.replicas import HostedPartition, Replicas

READ_BYTES: Final = 256 * 1024
"""Bytes that one step of a load decodes: about a millisecond of work."""
_BATCH_LIMIT: Final = 2**31 - 1


class AppendedBatch(NamedTuple):
    """One append: its base offset, and the wait until it is committed (None: it is committed already)."""

    position: int
    committed: Callable[[], Awaitable[None]] | None


class TransactionalProducer(NamedTuple):
    """The producer whose transaction a batch of records belongs to, with the guard of its verification."""

    producer_id: int
    epoch: int
    guard: VerificationGuard | None = NOT_REQUIRED


class CoordinatorStore(Protocol):
    """The partitions of a coordinator's topic. Every operation holds for one leader epoch only."""

    @property
    def topic(self) -> str:
        """The internal topic that holds the states."""
        ...

    def partition_count(self) -> int:
        """How many partitions the topic has, or will have once it exists."""
        ...

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        wall_ms: int,
        *,
        leader_epoch: int,
        required_acks: int = -1,
        producer: TransactionalProducer | None = None,
    ) -> AppendedBatch:
        """Append the records as one batch, at once; as a part of the transaction of `producer`, if any.

        Raises NotLeaderOrFollower or FencedLeaderEpoch when this leadership is over, and errors of the log.
        """
        ...

    def is_blank(self, partition: int) -> bool:
        """Whether the log of the partition holds no records. Raises NotLeaderOrFollower."""
        ...

    def is_alone(self, partition: int, leader_epoch: int) -> bool:
        """Whether no other replica is in the ISR, so that no other broker can have been elected.

        Raises NotLeaderOrFollower or FencedLeaderEpoch when this leadership is over.
        """
        ...

    def committed(self, partition: int, leader_epoch: int) -> Callable[[], Awaitable[None]] | None:
        """Return the wait until all that the log has now is committed; None if it is.

        Raises NotLeaderOrFollower or FencedLeaderEpoch when this leadership is over.
        """
        ...

    def read(self, partition: int, leader_epoch: int) -> AsyncIterator[bytes]:
        """Stream whole batches from the start of the log to its present end.

        Raises NotLeaderOrFollower or FencedLeaderEpoch as soon as this leadership is over. A store may also
        wait until all that it has read is committed, and raise RequestTimedOut when that takes too long.
        """
        ...


def build_batch(
    records: Sequence[KeyValue],
    wall_ms: int,
    codec: Codec = Codec.NONE,
    producer: TransactionalProducer | None = None,
) -> bytes:
    """Encode records as one batch, perhaps of a producer's transaction."""
    builder = BatchBuilder(_BATCH_LIMIT, codec=codec)
    for key, value, headers in records:
        builder.append(key, value, wall_ms, headers)
    if producer is None:
        return builder.build()
    return builder.build(
        producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0, transactional=True
    )


class ReplicatedStore:
    """`CoordinatorStore` on the partitions of an internal topic that this broker leads."""

    def __init__(
        self,
        replicas: Replicas,
        topic: str,
        partition_count: Callable[[], int],
        *,
        codec: Codec = Codec.NONE,
        read_bytes: int = READ_BYTES,
        commit_wait_ms: int | None = None,
    ) -> None:
        """With `commit_wait_ms`, a read ends once all that it has read is committed; it waits so long for it.

        A new leader may hold records that no other replica has: whoever acts on them, other than by writing
        more, must know that the next leader will find them.
        """
        self._replicas = replicas
        self._topic = topic
        self._partition_count = partition_count
        self._codec = codec
        self._read_bytes = min(read_bytes, READ_BYTES)
        self._commit_wait_ms = commit_wait_ms

    @property
    def topic(self) -> str:
        return self._topic

    def partition_count(self) -> int:
        return self._partition_count()

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        wall_ms: int,
        *,
        leader_epoch: int,
        required_acks: int = -1,
        producer: TransactionalProducer | None = None,
    ) -> AppendedBatch:
        leader = self._replicas.leader(TopicPartition(self._topic, partition), leader_epoch)
        appended = leader.append(
            build_batch(records, wall_ms, self._codec, producer),
            required_acks=required_acks,
            now_ms=wall_ms,
            origin=AppendOrigin.COORDINATOR,
            guard=NOT_REQUIRED if producer is None else producer.guard,
        )
        end = appended.last_offset + 1
        if leader.high_watermark >= end:
            return AppendedBatch(appended.base_offset, None)
        return AppendedBatch(appended.base_offset, lambda: leader.replicated(end))

    def is_blank(self, partition: int) -> bool:
        log = self._replicas.leader(TopicPartition(self._topic, partition)).log
        return log.log_start_offset >= log.log_end_offset

    def is_alone(self, partition: int, leader_epoch: int) -> bool:
        leader = self._replicas.leader(TopicPartition(self._topic, partition), leader_epoch)
        return len(leader.core.maximal_isr) <= 1

    def committed(self, partition: int, leader_epoch: int) -> Callable[[], Awaitable[None]] | None:
        leader = self._replicas.leader(TopicPartition(self._topic, partition), leader_epoch)
        end = leader.log.log_end_offset
        if leader.high_watermark >= end:
            return None

        async def wait() -> None:
            # Whoever may be elected has them, be it fewer than min.insync.replicas.
            with suppress(NotEnoughReplicasAfterAppend):
                await leader.replicated(end)

        return wait

    async def read(self, partition: int, leader_epoch: int) -> AsyncIterator[bytes]:
        topic_partition = TopicPartition(self._topic, partition)
        log = self._replicas.leader(topic_partition, leader_epoch).log
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            leader = self._replicas.leader(topic_partition, leader_epoch)
            slice_ = leader.read(offset, self._read_bytes, up_to=end, at_least_one=True)
            batches = await asyncio.to_thread(slice_.read)
            if not batches:
                break
            yield batches
            offset = slice_.end_offset
        if self._commit_wait_ms is not None:
            await self._committed(self._replicas.leader(topic_partition, leader_epoch), end)

    async def _committed(self, leader: HostedPartition, end: int) -> None:
        assert self._commit_wait_ms is not None
        try:
            async with asyncio.timeout(self._commit_wait_ms / 1000):
                await leader.replicated(end)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"its last records are not in all in-sync replicas after {self._commit_wait_ms} ms"
            ) from error
        except (
            NotEnoughReplicasAfterAppend
        ) as error:  # nothing is appended: records of an earlier leader wait
            core = leader.core
            raise NotEnoughReplicas(
                f"{len(core.isr)} in-sync replica(s), min.insync.replicas is {core.effective_min_isr}: "
                "its last records are not committed before more replicas have them"
            ) from error
