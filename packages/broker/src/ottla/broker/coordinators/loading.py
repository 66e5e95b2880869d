"""Rebuild the state of a coordinator partition by replaying its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import (
    CoordinatorPartition,
    CoordinatorState,
    RecordCodec,
    S,
)
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.protocol.errors import KafkaError
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.records import (
    BatchHeader,
    ControlType,
    iter_records,
    read_end_transaction_marker,
    read_header,
    split_batches,
)

if TYPE_CHECKING:
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.loop_budget import Turn

log = logging.getLogger(__name__)

RETRY_MS: Final = 500

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LoadedState(Generic[S]):
    """A complete state, and how many records of the log it was built from."""

    state: S
    records: int


class StateLoader(Generic[S, R]):
    """Loads the states of one coordinator. A failed load is repeated for as long as it is wanted.

    An empty state would tell consumers that they never committed, so requests wait for the load instead.
    """

    def __init__(
        self,
        store: CoordinatorStore,
        codec: RecordCodec[R],
        new_state: Callable[[int], S],
        environment: Environment,
    ) -> None:
        self._store = store
        self._codec = codec
        self._new_state = new_state
        self._budget = environment.budget
        self._failures = LimitedWarnings(log, environment.clock.monotonic_ms)

    async def load_until_complete(
        self, partition: CoordinatorPartition[S], is_wanted: Callable[[], bool]
    ) -> LoadedState[S] | None:
        """Load a partition, repeatedly after failures; None once `is_wanted` is false."""
        while is_wanted():
            try:
                loaded = await self.load(partition.number, partition.leader_epoch)
            except KafkaError as error:
                # Most often the leadership has ended, or goes on in a newer epoch. All partitions of the
                # topic may fail, twice a second.
                self._failures.warn(
                    error.code.name,
                    "coordinator state not loaded, repeated",
                    extra={"topic": self._store.topic, "partition": partition.number,
                           "error": error.code.name, "reason": str(error)},
                )  # fmt: skip
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception:
                log.exception(
                    "coordinator state not loaded",
                    extra={"topic": self._store.topic, "partition": partition.number},
                )
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                return loaded if is_wanted() else None
        return None

    async def load(self, number: int, leader_epoch: int) -> LoadedState[S]:
        """Replay one partition from start to end into a new state. Raises the errors of the store.

        A record that cannot be decoded is skipped: one bad record must not keep every group of the partition
        from its offsets. The first is logged, and how many more there were.
        """
        partition = f"{self._store.topic}-{number}"
        replay = _LogReplay(self._new_state(number), self._codec, self._budget.turn(), partition)
        async for batches in self._store.read(number, leader_epoch):
            for batch in split_batches(batches):
                await replay.take(read_header(batch), batch)
            await replay.turn.yield_if_spent()
        replay.state.complete_load()
        if replay.skipped > 1:
            more = {"partition": partition, "records": replay.skipped - 1}
            log.warning("more coordinator records skipped", extra=more)
        return LoadedState(replay.state, replay.records)


class _LogReplay(Generic[S, R]):
    """One pass over a log into one state, in turns of the event loop."""

    def __init__(self, state: S, codec: RecordCodec[R], turn: Turn, partition: str) -> None:
        self.state = state
        self.records = self.skipped = 0
        self._partition = partition
        self._codec = codec
        self.turn = turn

    async def take(self, header: BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            _end_transaction(self.state, header, batch)
            return
        producer_id = header.producer_id if header.is_transactional else None
        for record in iter_records(batch):
            self.records += 1
            if self.turn.is_spent:
                await self.turn.rest()
            if record.key is None:
                continue
            try:
                decoded = self._codec.decode(record.key, record.value, record.headers)
            except (MalformedMessage, ValueError) as error:
                self._skip(record.offset, error)
                continue
            if decoded is not None:
                self.state.replay(decoded, header.base_offset, producer_id)

    def _skip(self, offset: int, error: Exception) -> None:
        self.skipped += 1
        if self.skipped == 1:
            facts = {"partition": self._partition, "offset": offset, "error": str(error)}
            log.warning("coordinator record skipped", extra=facts)


def _end_transaction(state: CoordinatorState[Any], header: BatchHeader, batch: memoryview) -> None:
    marker = read_end_transaction_marker(batch)
    if marker is not None:
        state.end_transaction(header.producer_id, commit=marker.type is ControlType.COMMIT)
