"""Append records of a coordinator, and replay them into the state once they are committed.

    append refused                                        -> settled(error)
    appended, high watermark already past the batch       -> replay, settled(None)
    appended, high watermark reaches it in time           -> replay, settled(None)
    appended, leadership ends or `timeout_ms` passes      -> settled(error)
    appended in a transaction                             -> replay at once, then as above without a replay

`settled` is called exactly once for each write: with an error the coordinator undoes its pending mark.
After a timeout the records may still be committed later; they are then replayed by the next load. Records of
a transaction only become pending, so they are replayed when they are appended: whatever comes of the write,
the marker behind them in the log, or a tombstone, finds them here as a load does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition, S
from ottla.broker.coordinators.coordinator_state import RecordCodec
from ottla.protocol.errors import CoordinatorNotAvailable, KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from ottla.broker.background_tasks import BackgroundTasks
    from ottla.broker.coordinators.internal_topic_log import (
        AppendedBatch,
        CoordinatorStore,
        TransactionalProducer,
    )
    from ottla.broker.environment import Clock

log = logging.getLogger(__name__)

_TOMBSTONES_IN_A_BATCH: Final = 1_000

R = TypeVar("R")
Settled = Callable[[KafkaError | None], None]


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
    ) -> bool:
        """Append records as one batch, and settle the write as the module describes.

        They belong to the transaction of `producer`, if there is one.

        Returns whether the batch was appended; `settled` may have been called by then.
        """
        try:
            appended = self._append(partition, records, required_acks=-1, producer=producer)
        except KafkaError as error:
            settled(error)
            return False
        if producer is not None:
            self._replay(partition, records, appended.position, producer.producer_id)
            records = ()
        if appended.committed is None:
            self._replay(partition, records, appended.position)
            settled(None)
        else:
            # In a task of its own: a client that disconnects must not keep a committed record from its state.
            self._tasks.spawn(
                self._settle(partition, records, appended, settled), f"{self._store.topic}-write"
            )
        return True

    def write_tombstones(self, partition: CoordinatorPartition[S], tombstones: Sequence[R]) -> None:
        """Append tombstones without waiting: a lost one is written again when its key expires again."""
        for start in range(0, len(tombstones), _TOMBSTONES_IN_A_BATCH):
            try:
                self._append(partition, tombstones[start : start + _TOMBSTONES_IN_A_BATCH], required_acks=1)
            except KafkaError as error:
                log.warning(
                    "tombstones not written",
                    extra={"topic": self._store.topic, "partition": partition.number, "error": repr(error)},
                )
                return

    async def confirm_leadership(self, partition: CoordinatorPartition[S], unused: R) -> KafkaError | None:
        """Return None once this broker is known to have led the partition since the call; else why not.

        A broker that was paused or cut off may have a successor and not know it: its state is then old. The
        successor was in the ISR, and has stopped to fetch from here before its first write. So `unused`, a
        record that changes no state, is appended; when all in-sync replicas have fetched it, nobody had been
        elected before. Nothing is appended where no other replica could have been elected.
        """
        try:
            if self._store.is_alone(partition.number, partition.leader_epoch):
                return None
            appended = self._append(partition, [unused], required_acks=1)
        except KafkaError as error:
            return error
        return None if appended.committed is None else await self._outcome_of(appended)

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

    async def _settle(
        self,
        partition: CoordinatorPartition[S],
        records: Sequence[R],
        appended: AppendedBatch,
        settled: Settled,
    ) -> None:
        # Settled also when the coordinator stops and this task is cancelled: the request still waits.
        error: KafkaError | None = CoordinatorNotAvailable()
        try:
            error = await self._outcome_of(appended)
            if error is None:
                self._replay(partition, records, appended.position)
        finally:
            settled(error)

    async def _outcome_of(self, appended: AppendedBatch) -> KafkaError | None:
        assert appended.committed is not None
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await appended.committed()
        except TimeoutError:
            return RequestTimedOut()
        except KafkaError as error:
            return error
        return None
