"""Runs a topology: the handler and the observer of a processor, with the state of its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ottla.admin import LATEST, Admin
from ottla.client.errors import ClientError
from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import environment
from ottla.streams.errors import StateUnavailable
from ottla.streams.language.partition_state import PartitionState
from ottla.streams.language.runs import Counters, Run
from ottla.streams.language.steps import CompiledPart
from ottla.streams.language.stores import PartitionLookup, StoreFactory, Tables
from ottla.streams.language.topics import changelog_topic, prepare_topics
from ottla.streams.language.topology import Plan
from ottla.streams.seams import Work, state_of
from ottla.streams.state.topic_reader import EndOffsets, TopicReader

log = logging.getLogger(__name__)

RESTORE_IN_REBALANCE_S: Final = 10.0
"""How long a rebalance waits for state; after that the records of the partition wait for it."""
FOLLOW_GLOBAL_TABLES_S: Final = 10.0
"""The time between two looks for partitions that were added to global tables."""
CLOSING_S: Final = 10.0
"""How long the end waits for files to close."""


class Outputs(Protocol):
    """The outputs of handlers: they go to the producer, or into the next transaction."""

    async def send(self, work: Work, record: ProducerRecord) -> None:
        """Take a record; the work is not finished before it is acknowledged."""

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """Return a future of the acknowledgement of everything taken so far; None if it is there."""


class _WorkOutbox:
    """Sends the outputs of one run for its work."""

    __slots__ = ("_is_transactional", "_outputs", "_work")

    def __init__(self, outputs: Outputs, work: Work, *, is_transactional: bool) -> None:
        self._outputs = outputs
        self._work = work
        self._is_transactional = is_transactional

    def send(self, output: ProducerRecord) -> Awaitable[None]:
        return self._outputs.send(self._work, output)

    async def acknowledged(self) -> None:
        if not self._is_transactional and (settled := self._outputs.settle(self._work)) is not None:
            await settled


class TopologyRuntime:
    """Handles the records of a plan's topics. Enter it before the processor, and give it to that.

    It implements `Handler` by being called, and `PartitionStates`. Topics are checked on entry; stores
    and tables of a partition are restored when it is assigned, and its records wait for that.
    """

    def __init__(
        self,
        plan: Plan,
        config: StreamsConfig,
        outputs: Outputs,
        *,
        app_id: str,
        state_dir: Path | str,
        counters: Counters | None = None,
        follow_tables_s: float = FOLLOW_GLOBAL_TABLES_S,
    ) -> None:
        self.counters = counters or Counters()
        self._plan = plan
        self._config = config
        self._outputs = outputs
        self._app_id = app_id
        self._follow_tables_s = follow_tables_s
        self._state_dir = Path(state_dir) / app_id
        self._is_transactional = config.processing_guarantee == "exactly-once"
        self._parts = {topic: CompiledPart(part) for topic, part in plan.parts.items()}
        self._stack = AsyncExitStack()
        self._admin: Admin | None = None
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

    def __call__(self, work: Work) -> Coroutine[Any, Any, None]:
        """Handle records one after the other."""
        if len(work.records) == 1:
            return self._handle(work, work.record)
        return self._handle_all(work)

    # --- what the processor tells

    async def assigned(self, partition: TopicPartition, offset: int | None) -> asyncio.Future[None] | None:
        """Restore the state of a partition. After a while its records wait for it instead of the group.

        Raises TopologyError for a partition that was added to a topic whose state has no place for it.
        """
        if partition.partition >= self._counts[partition.topic]:
            await self._check_grown_topics()
        before = self._closing.pop(partition, None)
        state = self._partitions[partition] = PartitionState(
            partition,
            self._parts[partition.topic].part,
            self._app_id,
            self._stores,
            self._tables,
            PartitionLookup(self._tables, partition.partition, self._counts),
        )
        state.time.commit(offset or 0)
        state.opening = self._tasks.create_task(self._open(state, before), name=f"restore {partition}")
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTORE_IN_REBALANCE_S):
                await asyncio.shield(state.restored)
                return None
        return state.restored

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
        self._admin = admin
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
        stack.push_async_callback(self._close_global_tables)
        for table in self._plan.global_tables:
            await self._tables.open(table, range(self._counts[table.topic]))
            await self._tables.drop_tombstones(table, range(self._counts[table.topic]))
        if self._plan.global_tables:
            following = self._tasks.create_task(
                self._follow_global_tables(admin), name="follow global tables"
            )
            stack.callback(following.cancel)

    async def _follow_global_tables(self, admin: Admin) -> None:
        """Read partitions that are added to global tables, and drop tombstones; until cancelled."""
        while True:
            await asyncio.sleep(self._follow_tables_s)
            for table in self._plan.global_tables:
                before = self._counts[table.topic]
                try:
                    now = len((await admin.topics.describe(table.topic)).partitions)
                except (ClientError, KafkaError) as error:
                    facts = {"topic": table.topic, "reason": str(error)}
                    log.warning("the partitions of a table are not known", extra=facts)
                    continue
                if now > before:
                    await self._tables.open(table, range(before, now))
                    # Not before they are loaded: a row of theirs may be older than the one that is known.
                    self._counts[table.topic] = now
                    counts = {"topic": table.topic, "before": before, "now": now}
                    log.info("a table has more partitions", extra=counts)
                await self._tables.drop_tombstones(table, range(self._counts[table.topic]))

    async def _close_global_tables(self) -> None:
        for table in self._plan.global_tables:
            await self._tables.close(table, range(self._counts[table.topic]))

    async def _leave(self) -> None:
        try:
            await self._stack.aclose()
        except BaseExceptionGroup as group:
            found: BaseException = group
            while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
                found = found.exceptions[0]
            raise found from None

    async def _check_grown_topics(self) -> None:
        """Check again that topics fit together: changelogs and tables may lack the partitions of a stream."""
        assert self._admin is not None
        counts = await prepare_topics(self._admin, self._plan, self._app_id)
        followed = {
            table.topic for table in self._plan.global_tables
        }  # their new partitions are loaded first
        self._counts.update((topic, count) for topic, count in counts.items() if topic not in followed)

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

    async def _handle_all(self, work: Work) -> None:
        for record in work.records:
            await self._handle(work, record)

    async def _handle(self, work: Work, record: ConsumerRecord) -> None:
        state = self._partitions[record.topic_partition]
        if not state.is_restored:
            await _restored(record.topic_partition, state)
        if state.stores:
            state_of(work).changelogs = state.changelogs
        run = Run(record, state.stores, state.lookup, self.counters)
        try:
            waiting = self._parts[record.topic].process(run, state.time.time_ms)
            if waiting is not None:
                await waiting
            await run.finish(_WorkOutbox(self._outputs, work, is_transactional=self._is_transactional))
        finally:
            run.release()
        if state.stores:
            state.time.handled(record.offset, run.timestamp_ms)
            if state.may_forget:
                await state.forget_tombstones()


async def _restored(partition: TopicPartition, state: PartitionState) -> None:
    """Wait for the state of a partition; that it failed is no failure of the record that waits."""
    try:
        await asyncio.shield(state.restored)
    except Exception as error:
        raise StateUnavailable(partition, error) from error


def _end_offsets(admin: Admin) -> EndOffsets:
    async def find(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await admin.offsets.find(dict.fromkeys(partitions, LATEST))

    return find
