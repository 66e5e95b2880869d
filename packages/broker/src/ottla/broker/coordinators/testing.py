"""Tests of coordinators: the log of an internal topic in memory, and a small coordinator on top of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from ottla.broker.controller.testing import run_in_virtual_time
from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition, Headers, KeyValue
from ottla.broker.coordinators.internal_topic_log import (
    AppendedBatch,
    CoordinatorStore,
    TransactionalProducer,
    build_batch,
)
from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.coordinators.runtime import CoordinatorRuntime, LoadFacts
from ottla.broker.coordinators.timers import Timers
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import ErrorCode, FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from ottla.protocol.records import assign_offsets
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition


@dataclass(slots=True)
class _HeldAppend:
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: KafkaError | None = None


class MemoryStore:
    """`CoordinatorStore` in memory.

    `hold` keeps appends uncommitted until `release`; `fail_with` refuses them. `led` names the partitions
    that are led here, `leader_epochs` the epoch of each: an operation in an older one is fenced.
    """

    def __init__(
        self, partitions: int = 4, batches_in_a_chunk: int = 8, topic: str = GROUP_METADATA_TOPIC
    ) -> None:
        self.topic = topic
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.hold = False
        self.has_followers = False
        self.fail_with: Exception | None = None
        self.led: set[int] = set(range(partitions))
        self.leader_epochs = [0] * partitions
        self.read_gate = asyncio.Event()
        self.read_gate.set()
        self._chunk = batches_in_a_chunk
        self._held: list[_HeldAppend] = []

    def partition_count(self) -> int:
        return len(self.batches)

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
        if self.fail_with is not None:
            raise self.fail_with
        self._check(partition, leader_epoch)
        position = self.append_batch(partition, build_batch(records, wall_ms, producer=producer))
        if not self.hold:
            return AppendedBatch(position, None)
        held = _HeldAppend()
        self._held.append(held)
        return AppendedBatch(position, lambda: self._wait(held))

    def append_batch(self, partition: int, batch: bytes) -> int:
        """Append an encoded batch, as another leader might have done; return its base offset."""
        position, copy = self.ends[partition], bytearray(batch)
        self.ends[partition] = assign_offsets(copy, position, 0)
        self.batches[partition].append(bytes(copy))
        return position

    def _check(self, partition: int, leader_epoch: int) -> None:
        if partition not in self.led:
            raise NotLeaderOrFollower
        if leader_epoch < self.leader_epochs[partition]:
            raise FencedLeaderEpoch

    async def _wait(self, held: _HeldAppend) -> None:
        await held.done.wait()
        if held.error is not None:
            raise held.error

    def release(self, error: KafkaError | None = None) -> None:
        """Commit the held appends, or fail their waits."""
        for held in self._held:
            held.error = error
            held.done.set()
        self._held.clear()

    def is_blank(self, partition: int) -> bool:
        return not self.batches[partition]

    def is_alone(self, partition: int, leader_epoch: int) -> bool:
        self._check(partition, leader_epoch)
        return not self.has_followers

    def committed(self, partition: int, leader_epoch: int) -> Callable[[], Awaitable[None]] | None:
        self._check(partition, leader_epoch)
        if not self.hold:
            return None
        held = _HeldAppend()
        self._held.append(held)
        return lambda: self._wait(held)

    async def read(self, partition: int, leader_epoch: int) -> AsyncIterator[bytes]:
        present = list(self.batches[partition])
        for start in range(0, len(present), self._chunk):
            await self.read_gate.wait()
            self._check(partition, leader_epoch)
            yield b"".join(present[start : start + self._chunk])


# ---- a second coordinator

LEDGER_TOPIC = "__ledger"
WRITE_TIMEOUT_MS = 5_000
FOLLOWS = {None: "Ongoing", "Ongoing": "Prepared", "Prepared": "Complete", "Complete": "Ongoing"}


class Transition(NamedTuple):
    """A record: transaction `key` enters `status`; None makes it unknown."""

    key: str
    status: str | None
    deadline_ms: int = 0


class TransitionCodec:
    """The `RecordCodec` of the ledger; it skips keys that begin with `#`."""

    def encode(self, record: Transition) -> KeyValue:
        value = None if record.status is None else f"{record.status} {record.deadline_ms}".encode()
        return KeyValue(record.key.encode(), value)

    def decode(self, key: bytes, value: bytes | None, headers: Headers = ()) -> Transition | None:
        if key.startswith(b"#"):
            return None
        if value is None:
            return Transition(key.decode(), None)
        status, deadline_ms = value.decode().split()
        return Transition(key.decode(), status, int(deadline_ms))


@dataclass
class Entry:
    """One transaction: its status, and when an ongoing one is aborted (0: never)."""

    status: str
    deadline_ms: int


@dataclass
class LedgerState:
    """The transactions of one partition, and what was replayed into them."""

    number: int
    entries: dict[str, Entry] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    ended: list[tuple[int, bool]] = field(default_factory=list)
    transactional: list[tuple[str, int]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    is_complete: bool = False

    def replay(self, record: Transition, position: int, producer_id: int | None) -> None:
        self.positions.append(position)
        if producer_id is not None:
            self.transactional.append((record.key, producer_id))
        elif record.status is None:
            self.entries.pop(record.key, None)
        else:
            self.entries[record.key] = Entry(record.status, record.deadline_ms)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.ended.append((producer_id, commit))

    def complete_load(self) -> None:
        self.is_complete = True


class LedgerCoordinator:
    """A coordinator of transactions by id, with the parts that groups use too.

        unknown -> Ongoing -> Prepared -> Complete -> Ongoing

    A transition that waits for replicas excludes another one of the same id. A transaction that is Ongoing at
    its deadline is Prepared by the timer.
    """

    def __init__(self, store: CoordinatorStore, environment: Environment) -> None:
        codec = TransitionCodec()
        clock = self.clock = environment.clock
        self.tasks = BackgroundTasks(Metrics(), clock)
        self.loads: list[LoadFacts] = []
        self.unloads: list[int] = []
        self.runtime: CoordinatorRuntime[LedgerState, Transition] = CoordinatorRuntime(
            store,
            codec,
            new_state=LedgerState,
            loaded=self._loaded,
            unloaded=self._unloaded,
            environment=environment,
            tasks=self.tasks,
        )
        self.writer: RecordWriter[LedgerState, Transition] = RecordWriter(
            store, codec, clock, self.tasks, WRITE_TIMEOUT_MS
        )
        self.timers: Timers[str] = Timers(environment, self._expired)

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        self.runtime.start()
        self.tasks.lasting(self.timers.run(), "ledger-time")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runtime.stop()
        await self.tasks.__aexit__(kind, error, trace)

    # ---- leadership

    def elect(self, *numbers: int, epoch: int = 0) -> None:
        """Lead these partitions."""
        self.runtime.leadership_changed(
            [(TopicPartition(LEDGER_TOPIC, number), epoch) for number in numbers], []
        )

    def resign(self, *numbers: int, epoch: int = 1) -> None:
        """Give these partitions up."""
        self.runtime.leadership_changed(
            [], [(TopicPartition(LEDGER_TOPIC, number), epoch) for number in numbers]
        )

    # ---- transactions

    def status(self, key: str) -> str | ErrorCode | None:
        """The status of a transaction, None when it is unknown, or the error that a client would get."""
        partition = self.runtime.find(key)
        if isinstance(partition, ErrorCode):
            return partition
        entry = partition.state.entries.get(key)
        return entry.status if entry else None

    async def advance(self, key: str, deadline_ms: int = 0) -> ErrorCode:
        """Write the next status of a transaction; return once it is committed, or the error."""
        partition = self.runtime.find(key)
        if isinstance(partition, ErrorCode):
            return partition
        state = partition.state
        if key in state.pending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        entry = state.entries.get(key)
        status = FOLLOWS[entry.status if entry else None]
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settled(error: KafkaError | None) -> None:
            state.pending.discard(key)
            if error is None:
                self._set_timer(key, state)
            if not answer.done():
                answer.set_result(ErrorCode.NONE if error is None else error.code)

        state.pending.add(key)
        self.writer.write(partition, [Transition(key, status, deadline_ms)], settled)
        return await answer

    def forget(self, keys: Sequence[str], partition: CoordinatorPartition[LedgerState]) -> None:
        """Drop transactions, and write their tombstones."""
        for key in keys:
            partition.state.entries.pop(key, None)
        self.writer.write_tombstones(partition, [Transition(key, None) for key in keys])

    def _set_timer(self, key: str, state: LedgerState) -> None:
        entry = state.entries[key]
        ongoing = entry.status == "Ongoing" and entry.deadline_ms
        self.timers.set(key, entry.deadline_ms if ongoing else None)

    def _expired(self, key: str) -> None:
        if key.startswith("broken"):
            raise RuntimeError(key)
        self.tasks.spawn(self._abort(key), "abort")

    async def _abort(self, key: str) -> None:
        await self.advance(key)

    def _loaded(self, partition: CoordinatorPartition[LedgerState], facts: LoadFacts) -> None:
        self.loads.append(facts)
        for key in partition.state.entries:
            self._set_timer(key, partition.state)

    def _unloaded(self, partition: CoordinatorPartition[LedgerState]) -> None:
        self.unloads.append(partition.number)
        for key in partition.state.entries:
            self.timers.cancel(key)


# ---- tests of them

Story = Callable[[], Coroutine[Any, Any, None]]


def in_virtual_time(story: Story) -> Callable[[], None]:
    """Run an asynchronous test in virtual time, for thirty days at most."""

    def test() -> None:
        run_in_virtual_time(asyncio.wait_for(story(), 30 * 24 * 3600))

    test.__name__ = story.__name__
    return test


class LoggedErrors(logging.Handler):
    """Collects the errors that coordinators log while it watches them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch until the block ends."""
        logger = logging.getLogger("ottla.broker.coordinators")
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)


class LoggedWarnings(logging.Handler):
    """The warnings of a span, which is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
