"""The share coordinator: it keeps the state of share partitions in `__share_group_state`.

Leaders of partitions initialize, read and write the state of their share partitions; group coordinators
initialize, delete and summarize it. A leader epoch fences a leader that is one no longer, a state epoch a
state that began again. What is asked for one share partition goes one after the other, so that a snapshot
holds all that was written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition
from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.coordinators.runtime import CoordinatorRuntime, LoadFacts
from ottla.broker.share.in_flight import StateBatch
from ottla.broker.share.state import (
    UNINITIALIZED,
    SharePartitionKey,
    ShareState,
    ShareStates,
    ShareUpdate,
    StateRecord,
    StateRecordCodec,
    combined,
)
from ottla.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRequest,
    KafkaError,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from ottla.protocol.topics import SHARE_GROUP_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_NO_TOPIC_ID: Final = UUID(int=0)
_FIND_ERRORS: Final = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: CoordinatorNotAvailable,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: CoordinatorLoadInProgress,
    ErrorCode.NOT_COORDINATOR: NotCoordinator,
}
_NOT_COORDINATOR_ANY_MORE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_RECORDS_IN_A_BATCH: Final = 500
_METRICS: Final = ("kafka.server", "share-coordinator-metrics")
_PRUNED: Final = "last-pruned-offset"

StatePartition = CoordinatorPartition[ShareStates]


class WrittenState(NamedTuple):
    """A change of a leader."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch] = ()


class ShareCoordinator:
    """Coordinates the share partitions whose key is in partitions that this broker leads.

    Every method raises the KafkaError of its answer.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        environment: Environment,
        store: CoordinatorStore,
        metrics: Metrics,
        tasks: BackgroundTasks,
        partition_count: Callable[[UUID], int],
        delete_before: Callable[[int, int], None],
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`partition_count` returns how many partitions the topic of an id has, 0 where it is unknown.

        `delete_before` deletes the records of a partition of the state topic before a position. A load waits
        for `ready`.
        """
        self._clock = environment.clock
        self._metrics = metrics
        self._pruned: dict[int, int] = {}
        """Where the records of each partition begin that are left after pruning."""
        self._writes = metrics.meter(*_METRICS, "write")
        self._write_time = metrics.histogram(*_METRICS, "write-latency")
        self._load_time = metrics.histogram(*_METRICS, "partition-load-time")
        self._budget = environment.budget
        self._updates_per_snapshot = config.share_coordinator_snapshot_update_records_per_snapshot
        self._cold_after_ms = config.share_coordinator_cold_partition_snapshot_interval_ms
        self._partition_count = partition_count
        self._delete_before = delete_before
        codec = StateRecordCodec()
        self._runtime: CoordinatorRuntime[ShareStates, StateRecord] = CoordinatorRuntime(
            store, codec, new_state=ShareStates, loaded=self._loaded, unloaded=self._unloaded,
            ready=ready, environment=environment, tasks=tasks,
        )  # fmt: skip
        self._writer: RecordWriter[ShareStates, StateRecord] = RecordWriter(
            store, codec, environment.clock, tasks, config.share_coordinator_write_timeout_ms
        )
        self._turns: dict[SharePartitionKey, tuple[asyncio.Lock, int]] = {}
        self._missing: set[SharePartitionKey] = set()

    def start(self, led: Iterable[tuple[TopicPartition, int]]) -> None:
        """Begin to serve, with the partitions that are led now; the tasks must be entered."""
        self._runtime.start()
        self._runtime.leadership_changed(list(led), [])

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Take over partitions of `__share_group_state`, and give others up; other topics are ignored."""
        self._runtime.leadership_changed(elected, resigned)

    def _loaded(self, partition: StatePartition, facts: LoadFacts) -> None:
        self._load_time.update(facts.took_ms)
        log.info(
            "state of share groups loaded",
            extra={"partition": partition.number, "share_partitions": len(partition.state.states),
                   "records": facts.records, "took_ms": round(facts.took_ms)},
        )  # fmt: skip

    def _unloaded(self, partition: StatePartition) -> None:
        if self._pruned.pop(partition.number, None) is not None:
            self._metrics.remove(*_METRICS, _PRUNED, **_pruned_tags(partition.number))

    # ---- requests

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin the state of a share partition, or begin it again; a lower `state_epoch` is fenced."""
        if key.topic_id == _NO_TOPIC_ID:
            raise UnknownTopicOrPartition
        _check_key(key)
        if state_epoch < 0:
            raise InvalidRequest("The state epoch cannot be negative.")
        async with self._in_turn(key):
            partition = self._find(key)
            present = partition.state.states.get(key)
            if present is not None and present.state_epoch > state_epoch:
                raise FencedStateEpoch
            self._check_topic(key)
            now_ms = self._clock.now_ms()
            state = ShareState(
                snapshot_epoch=0 if present is None else present.snapshot_epoch + 1,
                state_epoch=state_epoch, leader_epoch=0, start_offset=start_offset,
                delivery_complete_count=UNINITIALIZED if start_offset == UNINITIALIZED else 0,
                created_ms=now_ms, written_ms=now_ms,
            )  # fmt: skip
            await self._write(partition, [StateRecord(key, state)])

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state, which belongs to this leader epoch from now on."""
        _check_key(key)
        _check_leader_epoch(leader_epoch)
        async with self._in_turn(key):
            partition = self._find(key)
            state = partition.state.states.get(key)
            if state is None:
                raise InvalidRequest("The share partition is not initialized: it cannot be read.")
            self._check_epoch(partition, key, leader_epoch)
            self._check_topic(key)
            if partition.state.leader_epochs[key] != leader_epoch:
                written = WrittenState(
                    state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count
                )
                await self._write(partition, [self._record(partition, key, written, leader_epoch)])
            return partition.state.states.get(key, state)

    async def write(self, key: SharePartitionKey, written: WrittenState) -> None:
        """Take a change of a leader."""
        began_ms = self._clock.monotonic_ms()
        await self._write_in_turn(key, written)
        self._writes.mark()
        self._write_time.update(self._clock.monotonic_ms() - began_ms)

    async def _write_in_turn(self, key: SharePartitionKey, written: WrittenState) -> None:
        _check_key(key)
        _check_leader_epoch(written.leader_epoch)
        if written.state_epoch < 0:
            raise InvalidRequest("The state epoch cannot be negative.")
        async with self._in_turn(key):
            partition = self._find(key)
            state = partition.state.states.get(key)
            if state is None:
                raise InvalidRequest("The share partition is not initialized: it cannot be written.")
            self._check_epoch(partition, key, written.leader_epoch)
            if state.state_epoch > written.state_epoch:
                raise FencedStateEpoch
            self._check_topic(key)
            await self._write(partition, [self._record(partition, key, written, state.leader_epoch)])

    async def delete(self, key: SharePartitionKey) -> None:
        """Remove the state of a share partition; one without state has none to remove."""
        _check_key(key)
        async with self._in_turn(key):
            partition = self._find(key)
            self._check_topic(key)
            if key in partition.state.states:
                await self._write(partition, [StateRecord(key, None)])

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches being of interest; one that never began is uninitialized."""
        _check_key(key)
        partition = self._find(key)
        self._check_topic(key)
        state = partition.state.states.get(key)
        if state is None:
            return ShareState(state_epoch=0, leader_epoch=0, start_offset=UNINITIALIZED)
        return state

    def _find(self, key: SharePartitionKey) -> StatePartition:
        partition = self._runtime.find(key.text)
        if isinstance(partition, ErrorCode):
            raise _FIND_ERRORS[partition]
        return partition

    def _check_epoch(self, partition: StatePartition, key: SharePartitionKey, leader_epoch: int) -> None:
        if partition.state.leader_epochs[key] > leader_epoch:
            raise FencedLeaderEpoch

    def _check_topic(self, key: SharePartitionKey) -> None:
        if key.partition >= self._partition_count(key.topic_id):
            raise UnknownTopicOrPartition

    # ---- records

    def _record(
        self, partition: StatePartition, key: SharePartitionKey, written: WrittenState, leader_epoch: int
    ) -> StateRecord:
        """Return the record of a write: an update, or a snapshot after enough of them."""
        state = partition.state.states[key]
        start_offset = max(written.start_offset, state.start_offset)
        complete_count = written.delivery_complete_count
        if written.start_offset == state.start_offset:
            complete_count = max(complete_count, state.delivery_complete_count)
        elif written.start_offset < state.start_offset:
            complete_count = state.delivery_complete_count
        if partition.state.updates[key] >= self._updates_per_snapshot:
            return StateRecord(
                key,
                self._snapshot_of(
                    replace(
                        state,
                        leader_epoch=leader_epoch,
                        start_offset=start_offset,
                        delivery_complete_count=complete_count,
                        batches=combined(state.batches, written.batches, start_offset),
                    )
                ),
            )
        update = ShareUpdate(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete_count,
            batches=combined((), written.batches, start_offset),
        )
        return StateRecord(key, update)

    def _snapshot_of(self, state: ShareState) -> ShareState:
        now_ms = self._clock.now_ms()
        return replace(state, snapshot_epoch=state.snapshot_epoch + 1, created_ms=now_ms, written_ms=now_ms)

    async def _write(self, partition: StatePartition, records: Sequence[StateRecord]) -> None:
        done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

        def settled(error: KafkaError | None) -> None:
            if not done.done():
                done.set_result(error)

        self._writer.write(partition, records, settled)
        error = await done
        if error is not None:
            raise _as_coordinator_error(error)

    @asynccontextmanager
    async def _in_turn(self, key: SharePartitionKey) -> AsyncIterator[None]:
        """Exclude other requests for the same share partition; they are served in their order."""
        lock, waiting = self._turns.get(key) or (asyncio.Lock(), 0)
        self._turns[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns.pop(key)
            if waiting > 1:
                self._turns[key] = lock, waiting - 1

    # ---- upkeep

    async def write_cold_snapshots(self) -> None:
        """Write snapshots of share partitions that change seldom, so that the records before can go."""
        async for partition, key in self._each():
            async with self._in_turn(key):
                state = partition.state.states.get(key)
                if state is not None and self._clock.now_ms() - state.written_ms >= self._cold_after_ms:
                    await self._quietly(partition, [StateRecord(key, self._snapshot_of(state))])

    async def remove_states_of_deleted_topics(self) -> None:
        """Remove states whose topic was unknown twice in a row: a broker may not know a new topic yet."""
        missing: set[SharePartitionKey] = set()
        async for partition, key in self._each():
            if self._partition_count(key.topic_id):
                continue
            if key not in self._missing:
                missing.add(key)
                continue
            async with self._in_turn(key):
                if key in partition.state.states and not self._partition_count(key.topic_id):
                    await self._quietly(partition, [StateRecord(key, None)])
        self._missing = missing

    def prune(self) -> None:
        """Delete the records before the oldest snapshot that still counts."""
        for partition in self._runtime.partitions:
            position = partition.state.first_needed_position() if partition.loaded else None
            if position is None:
                continue
            try:
                self._delete_before(partition.number, position)
            except (KafkaError, OSError) as error:
                log.warning(
                    "state of share groups not pruned",
                    extra={"partition": partition.number, "reason": str(error)},
                )
            else:
                self._show_pruned(partition.number, position)

    def _show_pruned(self, partition: int, position: int) -> None:
        if partition not in self._pruned:
            self._metrics.gauge(
                *_METRICS, _PRUNED, lambda: self._pruned.get(partition, 0), **_pruned_tags(partition)
            )
        self._pruned[partition] = position

    async def _each(self) -> AsyncIterator[tuple[StatePartition, SharePartitionKey]]:
        turn = self._budget.turn()
        for partition in self._runtime.partitions:
            async for key in turn.over(list(partition.state.states) if partition.loaded else []):
                if self._runtime.partitions.get(partition.number) is partition:
                    yield partition, key

    async def _quietly(self, partition: StatePartition, records: Sequence[StateRecord]) -> None:
        try:
            await self._write(partition, records)
        except KafkaError as error:
            log.warning(
                "state of a share group not written",
                extra={"partition": partition.number, "error": error.code.name},
            )


def _check_key(key: SharePartitionKey) -> None:
    if key.topic_id == _NO_TOPIC_ID:
        raise InvalidRequest("The topic id cannot be zero.")
    if key.partition < 0:
        raise InvalidRequest("The partition cannot be negative.")


def _check_leader_epoch(leader_epoch: int) -> None:
    if leader_epoch < 0:
        raise InvalidRequest("The leader epoch cannot be negative.")


def _as_coordinator_error(error: KafkaError) -> KafkaError:
    if error.code in _NOT_COORDINATOR_ANY_MORE:
        return NotCoordinator()
    if isinstance(error, CoordinatorNotAvailable) or not error.retriable:
        return error
    return CoordinatorNotAvailable(str(error))


def _pruned_tags(partition: int) -> dict[str, str]:
    return {"topic": SHARE_GROUP_STATE_TOPIC, "partition": str(partition)}
