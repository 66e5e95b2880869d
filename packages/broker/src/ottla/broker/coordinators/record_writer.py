"""Append records of a coordinator, and replay them into the state once they are committed.

    append refused                                        -> settled(error)
    appended, high watermark already past the batch       -> replay, settled(None)
    appended, high watermark reaches it in time           -> replay, settled(None)
    appended, leadership ends or `timeout_ms` passes      -> settled(error)
    appended, the coordinator stops                       -> settled(CoordinatorNotAvailable)
    any other failure, in whichever step                  -> logged, settled(UnknownServerError)
    appended in a transaction, or written `at_once`       -> replay at once, then as above without a replay

`settled` is called exactly once for each write: with an error the coordinator undoes its pending mark.
After a timeout the records may still be committed later; they are then replayed by the next load. Records of
a transaction only become pending, so they are replayed when they are appended: with any result of the write,
the marker behind them in the log, or a tombstone, finds them here as a load does. Records of a state whose
next write builds on the last one are replayed `at_once`: they stay in it after a timeout, as in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition, RecordCodec, S
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    RequestTimedOut,
    UnknownServerError,
)

if TYPE_CHECKING:
    from ottla.broker.coordinators.internal_topic_log import (
        AppendedBatch,
        CoordinatorStore,
        TransactionalProducer,
    )
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Clock

log = logging.getLogger(__name__)

_TOMBSTONES_IN_A_BATCH: Final = 1_000

R = TypeVar("R")
Settled = Callable[[KafkaError | None], None]


class _Once:
    """Calls `settled` with the first outcome, and with no other."""

    __slots__ = ("_settled",)

    def __init__(self, settled: Settled) -> None:
        self._settled: Settled | None = settled

    def __call__(self, error: KafkaError | None) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(error)


class RecordWriter(Generic[S, R]):
    """Writes to the partitions of one coordinator, each in the leader epoch that its state was loaded in."""

    def __init__(
        self,
        store: CoordinatorStore,
        codec: RecordCodec[R],
        clock: Clock,
        tasks: BackgroundTasks,
        timeout_ms: int,
    ) -> None:
        self._store = store
        self._codec = codec
        self._clock = clock
        self._tasks = tasks
        self._timeout_ms = timeout_ms

    def write(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        settled: Settled,
        *,
        producer: TransactionalProducer | None = None,
        at_once: bool = False,
    ) -> bool:
        """Append records as one batch, and settle the write as the module describes.

        They belong to the transaction of `producer`, if there is one.

        Returns whether the batch was appended; `settled` may have been called by then.
        """
        try:
            appended = self._append(partition, records, required_acks=-1, producer=producer)
            if producer is not None or at_once:
                producer_id = None if producer is None else producer.producer_id
                self._replay(partition, records, appended.position, producer_id)
                records = ()
        except Exception as error:
            settled(self._failure(partition, error))
            return False
        if appended.committed is None:
            settled(self._replayed(partition, records, appended.position))
        else:
            self._settle_later(partition, records, appended, settled)
        return True

    def _settle_later(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        appended: AppendedBatch,
        settled: Settled,
    ) -> None:
        once = _Once(settled)
        # In a task of its own: a client that disconnects must not keep a committed record from its state.
        task = self._tasks.spawn(
            self._settle(partition, records, appended, once), f"{self._store.topic}-write"
        )
        # Settled also when the coordinator stops and cancels the task, perhaps before its first step: the
        # request still waits.
        task.add_done_callback(lambda _: once(CoordinatorNotAvailable()))

    def write_tombstones(self, partition: CoordinatorPartition[S], tombstones: Sequence[R]) -> None:
        """Append tombstones without waiting: a lost one is written again when its key expires again."""
        for start in range(0, len(tombstones), _TOMBSTONES_IN_A_BATCH):
            try:
                self._append(partition, tombstones[start : start + _TOMBSTONES_IN_A_BATCH], required_acks=1)
            except Exception as error:
                log.warning(
                    "tombstones not written",
                    extra={"topic": self._store.topic, "partition": partition.number, "error": repr(error)},
                    exc_info=None if isinstance(error, KafkaError) else error,
                )
                return

    async def confirm_leadership(self, partition: CoordinatorPartition[S], unused: R) -> KafkaError | None:
        """Return None once this broker is known to have led the partition since the call; else why not.

        A broker that was paused or cut off may have a successor and not know it: its state is then old. The
        successor was in the ISR, and has stopped to fetch from here before its first write. So `unused`, a
        record that changes no state, is appended; when all in-sync replicas have fetched it, no other broker
        had been elected before. Nothing is appended where no other replica could have been elected.
        """
        try:
            if self._store.is_alone(partition.number, partition.leader_epoch):
                return None
            appended = self._append(partition, [unused], required_acks=1)
        except KafkaError as error:
            return error
        return None if appended.committed is None else await self._outcome_of(appended.committed)

    def is_committed(self, partition: CoordinatorPartition[S]) -> bool:
        """Whether all that the log has now is known to be committed."""
        try:
            return self._store.committed(partition.number, partition.leader_epoch) is None
        except KafkaError:
            return False

    async def until_committed(self, partition: CoordinatorPartition[S]) -> KafkaError | None:
        """Return None once all that the log has now is committed; else why it is not."""
        try:
            committed = self._store.committed(partition.number, partition.leader_epoch)
        except KafkaError as error:
            return error
        return None if committed is None else await self._outcome_of(committed)

    def _append(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        *,
        required_acks: int,
        producer: TransactionalProducer | None = None,
    ) -> AppendedBatch:
        encode = self._codec.encode
        return self._store.append(
            partition.number,
            [encode(record) for record in records],
            self._clock.now_ms(),
            leader_epoch=partition.leader_epoch,
            required_acks=required_acks,
            producer=producer,
        )

    def _replay(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        position: int,
        producer_id: int | None = None,
    ) -> None:
        for record in records:
            partition.state.replay(record, position, producer_id)

    def _replayed(
        self, partition: CoordinatorPartition[S], records: Sequence[R], position: int
    ) -> KafkaError | None:
        """Replay committed records; return the error of the write, if that fails."""
        try:
            self._replay(partition, records, position)
        except Exception as error:
            return self._failure(partition, error)
        return None

    def _failure(self, partition: CoordinatorPartition[S], error: Exception) -> KafkaError:
        """Return the error of a write; what has no code of Kafka's is a fault of ours, and is logged."""
        if isinstance(error, KafkaError):
            return error
        log.error(
            "a write failed",
            extra={"topic": self._store.topic, "partition": partition.number},
            exc_info=error,
        )
        return UnknownServerError()

    async def _settle(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        appended: AppendedBatch,
        settled: Settled,
    ) -> None:
        assert appended.committed is not None
        error = await self._outcome_of(appended.committed)
        settled(self._replayed(partition, records, appended.position) if error is None else error)

    async def _outcome_of(self, committed: Callable[[], Awaitable[None]]) -> KafkaError | None:
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await committed()
        except TimeoutError:
            return RequestTimedOut()
        except KafkaError as error:
            return error
        return None
