"""Runs a topology: the handler and the observer of a processor, with the state of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from ottla.client.admin import LATEST, Admin
from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import environment
from ottla.streams.language.aggregating import Windowing
from ottla.streams.language.nodes import TableNode
from ottla.streams.language.partition_state import PartitionState
from ottla.streams.language.runs import Counters, Output, Run
from ottla.streams.language.steps import Compiler, SourceStep
from ottla.streams.language.stores import StoreFactory
from ottla.streams.language.tables import Tables
from ottla.streams.language.topics import changelog_topic, prepare_topics
from ottla.streams.language.topology import Plan, SubTopology
from ottla.streams.seams import Work
from ottla.streams.state.topic_reader import EndOffsets, TopicReader

RESTORE_IN_REBALANCE_S: Final = 10.0
"""How long a rebalance waits for state; after that the records of the partition wait for it."""
CLOSING_S: Final = 10.0
"""How long the end waits for files to close."""


class Outputs(Protocol):
    """What takes the outputs of handlers: the producer, or the next transaction."""

    async def send(self, work: Work, record: ProducerRecord) -> None:
        """Take a record; the work is not finished before it is acknowledged."""

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """Return what is done when everything taken so far is acknowledged; None if it is."""


class _WorkOutbox:
    """Sends the outputs of one run for its work."""

    def __init__(self, outputs: Outputs, work: Work, *, is_transactional: bool) -> None:
        self._outputs = outputs
        self._work = work
        self._is_transactional = is_transactional

    async def send(self, output: Output) -> None:
        await self._outputs.send(
            self._work,
            ProducerRecord(
                output.topic, output.value, output.key, output.partition, output.timestamp_ms, output.headers
            ),
        )

    async def acknowledged(self) -> None:
        if not self._is_transactional and (settled := self._outputs.settle(self._work)) is not None:
            await settled


class _Lookup:
    """Looks rows up in the partition of a run, or in all partitions of a global table."""

    def __init__(self, tables: Tables, partition: int, counts: dict[str, int]) -> None:
        self._tables = tables
        self._partition = partition
        self._counts = counts

    async def row(self, table: TableNode, key: bytes) -> bytes | None:
        partitions = range(self._counts[table.topic]) if table.is_global else (self._partition,)
        return await self._tables.row(table, partitions, key)


class _Part:
    """A compiled sub-topology."""

    def __init__(self, part: SubTopology) -> None:
        compiler = Compiler()
        self.part = part
        self.steps: list[SourceStep] = [compiler.source(source) for source in part.sources]
        steps = (compiler.step(node) for node in part.aggregates)
        self.sweeping = [step for step in steps if isinstance(step, Windowing)]

    async def process(self, run: Run, time_ms: int) -> None:
        """Run all streams of the topic, and close windows of idle keys."""
        for step in self.steps:
            await step(run)
        for windowing in self.sweeping:
            await windowing.sweep(run, time_ms)


class TopologyRuntime:
    """Handles the records of a plan's topics. Enter it before the processor, and give it to that.

    It implements `Handler` by being called, and `PartitionStates`. Topics are checked on entry; stores
    and tables of a partition are restored when it is assigned, and its records wait for that.
    """

    def __init__(
        self, plan: Plan, config: StreamsConfig, outputs: Outputs, *, app_id: str, state_dir: Path | str
    ) -> None:
        self.counters = Counters()
        self._plan = plan
        self._config = config
        self._outputs = outputs
        self._app_id = app_id
        self._state_dir = Path(state_dir) / app_id
        self._is_transactional = config.processing_guarantee == "exactly-once"
        self._parts = {topic: _Part(part) for topic, part in plan.parts.items()}
        self._stack = AsyncExitStack()
        self._counts: dict[str, int] = {}
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._closing: dict[TopicPartition, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._enter(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The stack is not told of an error: its groups would wrap it, and cancel what closes files.
        try:
            for partition in list(self._partitions):
                self.revoked(partition)
            if self._closing:
                await asyncio.wait(self._closing.values(), timeout=CLOSING_S)
        finally:
            await self._leave()

    async def __call__(self, work: Work) -> None:
        """Handle records one after the other."""
        for record in work.records:
            await self._handle(work, record)

    # --- what the processor tells

    async def assigned(self, partition: TopicPartition, offset: int | None) -> None:
        """Restore the state of a partition. After a while records wait for it instead of the group."""
        before = self._closing.pop(partition, None)
        state = self._partitions[partition] = PartitionState(
            partition, self._parts[partition.topic].part, self._app_id, self._stores, self._tables
        )
        state.time.commit(offset or 0)
        state.opening = self._tasks.create_task(self._open(state, before), name=f"restore {partition}")
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTORE_IN_REBALANCE_S):
                await state.restored()

    def committed(self, partition: TopicPartition, offset: int) -> None:
        """Note up to which offset everything is finished."""
        if (state := self._partitions.get(partition)) is not None:
            state.time.commit(offset)

    def revoked(self, partition: TopicPartition) -> None:
        """Give up the state of a partition."""
        state = self._partitions.pop(partition, None)
        if state is not None:
            self._closing[partition] = self._tasks.create_task(state.close(), name=f"close {partition}")

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions whose state is here, or is being restored."""
        return frozenset(self._partitions)

    # --- inside

    async def _enter(self, stack: AsyncExitStack) -> None:
        client = self._config.consumer.client
        admin = await stack.enter_async_context(environment().admin(client))
        self._counts = await prepare_topics(admin, self._plan, self._app_id)
        executor = ThreadPoolExecutor(1, "ottla-state")
        stack.callback(executor.shutdown)
        reading = self._config.consumer
        if self._is_transactional:
            reading = replace(reading, isolation_level="read_committed")
        reader = await stack.enter_async_context(TopicReader(reading, _end_offsets(admin)))
        self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
        self._stores = StoreFactory(reader, executor, self._state_dir, await self._topic_ids(admin))
        self._tables = Tables(self._stores)
        for table in self._plan.global_tables:
            await self._tables.open(table, range(self._counts[table.topic]))

    async def _leave(self) -> None:
        try:
            await self._stack.aclose()
        except BaseExceptionGroup as group:
            found: BaseException = group
            while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
                found = found.exceptions[0]
            raise found from None

    async def _topic_ids(self, admin: Admin) -> dict[str, str]:
        parts = self._plan.parts.values()
        changelogs = [changelog_topic(self._app_id, store) for part in parts for store in part.stores]
        tables = [table.topic for part in parts for table in part.tables]
        return {
            topic: str((await admin.topics.describe(topic)).id)
            for topic in {*changelogs, *tables, *self._plan.topics}
        }

    async def _open(self, state: PartitionState, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await state.open()

    async def _handle(self, work: Work, record: ConsumerRecord) -> None:
        state = self._partitions[record.topic_partition]
        if not state.is_restored:
            await state.restored()
        lookup = _Lookup(self._tables, record.partition, self._counts)
        run = Run(record, state.stores, lookup, self.counters)
        outbox = _WorkOutbox(self._outputs, work, is_transactional=self._is_transactional)
        try:
            await self._parts[record.topic].process(run, state.time.time_ms)
            await run.finish(outbox)
        finally:
            run.release()
        state.time.handled(record.offset, run.timestamp_ms)
        await state.forget_tombstones()


def _end_offsets(admin: Admin) -> EndOffsets:
    async def find(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await admin.offsets.find(dict.fromkeys(partitions, LATEST))

    return find
