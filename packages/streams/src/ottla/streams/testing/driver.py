"""Runs the product's own code on a log in memory and in virtual time, step by step as a test asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from random import Random  # noqa: TID251 - seeded: each run is the same
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerConfig, ProducerRecord, RecordMetadata
from ottla.protocol.topics import TopicPartition
from ottla.streams.app import App
from ottla.streams.environment import environment_of
from ottla.streams.language.topology import Plan
from ottla.streams.processing.processor import Processor
from ottla.streams.testing.cluster import Life, MemoryCluster, MemoryGroup
from ottla.streams.testing.members import Member, Target, VirtualEnvironment
from ottla.streams.testing.memory_log import MemoryLog
from ottla.streams.testing.memory_producer import MemoryProducer
from ottla.streams.testing.records import (
    DeadLetter,
    DriverMisused,
    dead_letters,
    decoded,
    key_bytes,
    to_bytes,
)
from ottla.streams.testing.virtual_loop import START_S, NeverSettles, VirtualLoop

START_MS: Final = 1_700_000_000_000
"""The time of day at which tests begin: 2023-11-14 22:13:20 UTC."""
STEP_LIMIT_S: Final = 600.0
"""How much virtual time a start, a stop or a rebalance may take."""


class StreamsTest:
    """Runs an app, or a processor, without a broker and in virtual time, inside `with`.

        def test_prices():
            with StreamsTest(app) as test:
                test.send("orders", {"amount": 3}, key="anna")
                test.settle()
                assert test.received("priced") == [{"amount": 3, "price": 9}]

    It is for plain test functions: it has an event loop of its own, which runs only inside the calls of this
    class. `target` is an App; or a function that makes an App or a Processor, which is called for each
    member and each restart; or an async function that runs one. The code is the product's own; only its
    consumers, producers and admins read and write a log in memory, so servers in settings are not used.

    `topics` names topics with their partition counts; others have `partitions`, and are created when they
    are first used. Topics that the app's streams and tables read exist from the start. `members` start
    together. Handlers on threads and processes run really: time stands still until they end, or `patience_s`
    of real time has passed for those that hang. `seed` is that of retries' jitter.

    What stopped a member is raised by the call in which it happened, and by leaving the block otherwise.
    Leaving the block stops all members in an orderly way; after an exception in it they are killed.
    """

    def __init__(
        self,
        target: Target,
        *,
        topics: Mapping[str, int] | None = None,
        partitions: int = 1,
        members: int = 1,
        start_ms: int = START_MS,
        patience_s: float = 10.0,
        seed: int = 0,
    ) -> None:
        if isinstance(target, Processor):
            raise DriverMisused(
                "give a function that makes the processor: StreamsTest(lambda: Processor(...))"
            )
        if not callable(target) and not isinstance(target, App):
            raise DriverMisused(
                f"StreamsTest needs an app, or a function that makes one, not {target!r}; app.override(...) "
                "changes the app and returns nothing: call it on a line of its own"
            )
        if isinstance(target, App) and members > 1:
            raise DriverMisused("an app is one member; give a function that makes one, for several members")
        self._target = target
        self._count = members
        self._start_ms = start_ms
        self._patience_s = patience_s
        self._chance = Random(seed).random
        self._members: dict[int, Member] = {}
        self._numbers = 0
        self._log = MemoryLog(partitions)
        for topic, count in (topics or {}).items():
            self._log.create(topic, count)
        self._cluster = MemoryCluster(self._log, self._serve)
        self._writer = MemoryProducer(ProducerConfig(), self._cluster, Life(0), lambda: self.now_ms)
        self._groups: list[asyncio.Task[None]] = []
        self._running_loop: VirtualLoop | None = None

    # --- the life of a test

    def __enter__(self) -> Self:
        if asyncio._get_running_loop() is not None:
            raise DriverMisused("StreamsTest has an event loop of its own: use it in def, not in async def")
        self._running_loop = VirtualLoop(patience_s=self._patience_s, on_task=_note_task)
        if isinstance(self._target, App) and not self._target.is_empty:
            self._log.ensure(_read_topics(self._target.plan()))
        try:
            for _ in range(self._count):
                self._start_one()
            self._until_started()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for member in list(self._members.values()):
                    member.stop()
                self._drive_until(
                    lambda: all(member.is_done for member in self._members.values()), "the stop"
                )
                self._raise_failures()
        finally:
            self._end()

    def _end(self) -> None:
        loop, self._running_loop = self._loop, None
        try:
            for member in self._members.values():
                member.kill(lambda: loop.drive(loop.now_s))
            for task in self._groups:
                task.cancel()
            loop.drive(loop.now_s)
            loop.finish(loop.shutdown_asyncgens())
            loop.finish(loop.shutdown_default_executor())
        finally:
            loop.close()

    # --- time

    @property
    def now_ms(self) -> int:
        """The virtual time of day, in milliseconds since 1970."""
        return self._start_ms + round((self._loop.now_s - START_S) * 1_000)

    def settle(self) -> None:
        """Do everything that can be done without time passing."""
        self._loop.drive(self._loop.now_s)
        self._raise_failures()

    def advance(self, *, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0) -> None:
        """Advance time, and do everything that is due meanwhile, each at its time."""
        span_s = hours * 3_600 + minutes * 60 + seconds + ms / 1_000
        self._loop.drive(self._loop.now_s + span_s)
        self._raise_failures()

    def wait_until(self, condition: Callable[[], object], *, hours: float = 1) -> None:
        """Advance time until a condition is true. Raises NeverSettles if it is not within `hours`."""
        self._drive_until(lambda: bool(condition()), "the condition", hours * 3_600)
        self._raise_failures()

    # --- records

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. Raises TopicAlreadyExists."""
        self._log.create(topic, partitions)

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
    ) -> RecordMetadata:
        """Write a record, and return where it is; members read it during `settle` or `advance`.

        A value of bytes is written as it is, None is a tombstone, all else becomes JSON. Keys are bytes or
        text, and choose the partition as Kafka's clients do.
        """
        return self._writer.write(
            ProducerRecord(topic, to_bytes(value), key_bytes(key), partition, timestamp_ms, headers)
        )

    def received(self, topic: str, of: Any = Any) -> list[Any]:
        """Return the values in a topic, partition by partition, in order; those of open transactions not.

        They are decoded as handlers get them: from JSON or msgpack, as the type `of`, which may be `bytes` or
        `str`. Tombstones are None.
        """
        return decoded(self.records(topic), of)

    def records(self, topic: str) -> list[ConsumerRecord]:
        """Return the records in a topic, partition by partition, in order."""
        return [record for log in self._log.topics.get(topic, ()) for record in log.records]

    def dead_letters(self, topic: str) -> list[DeadLetter]:
        """Return the dead letters in a topic."""
        return dead_letters(self.records(topic))

    # --- commits

    def committed(self, topic: str, partition: int = 0, *, group: str | None = None) -> int | None:
        """Return the committed offset of a partition; None if there is none.

        `group` may be left out while there is one group.
        """
        found = self._committed(topic, partition, group)
        return None if found is None else found.offset

    def committed_metadata(self, topic: str, partition: int = 0, *, group: str | None = None) -> str | None:
        """Return the metadata of a commit: which records after the offset are finished, too."""
        found = self._committed(topic, partition, group)
        return None if found is None else found.metadata

    def _committed(self, topic: str, partition: int, group: str | None) -> OffsetAndMetadata | None:
        names = sorted(self._cluster.groups)
        if group is None and len(names) > 1:
            raise DriverMisused(f"there are several groups; give group= one of {', '.join(names)}")
        found = self._cluster.groups.get(group or next(iter(names), ""))
        return None if found is None else found.offsets.get(TopicPartition(topic, partition))

    # --- members

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the members that run, in the order of their starts."""
        return tuple(number for number, member in self._members.items() if not member.is_done)

    def start_member(self) -> int:
        """Start another member, or one again after a stop or a kill; return its number."""
        if isinstance(self._target, App) and self.members:
            raise DriverMisused("the app runs already; give a function that makes one, for several members")
        number = self._start_one()
        self._until_started()
        return number

    def stop_member(self, member: int | None = None) -> None:
        """Stop a member, which drains and leaves: the one with this number, or the only one. Time passes."""
        found = self._member(member)
        found.stop()
        self._drive_until(lambda: found.is_done, "the stop")
        del self._members[found.number]
        self._raise_failures()
        if found.failure is not None:
            raise found.failure
        self._until_stable()

    def kill_member(self, member: int | None = None) -> None:
        """End a member as a crash does: it sends and commits nothing any more.

        The group notices at once, while a broker takes `session_timeout_ms`. A thread or a process cannot be
        killed: the call waits for those that run a handler.
        """
        found = self._member(member)
        del self._members[found.number]
        loop = self._loop
        found.kill(lambda: loop.drive(loop.now_s))
        self._until_stable()

    def rebalance(self) -> None:
        """Rebalance: every member drains and gives up its partitions, and takes those of the next one.

        A single member gets its own again. Time passes as the drain needs.
        """
        for group in self._cluster.groups.values():
            group.move_all()
        self._until_stable()

    def _member(self, number: int | None) -> Member:
        running = self.members
        if number is None and len(running) == 1:
            number = running[0]
        if number not in running:
            raise DriverMisused(f"give the number of a member that runs: one of {list(running)}")
        return self._members[number]

    # --- inside

    @property
    def _loop(self) -> VirtualLoop:
        if self._running_loop is None:
            raise DriverMisused("use the test inside its with block")
        return self._running_loop

    def _start_one(self) -> int:
        self._numbers += 1
        life = Life(self._numbers)
        environment = VirtualEnvironment(self._cluster, life, self._loop, lambda: self.now_ms, self._chance)
        member = self._members[self._numbers] = Member(self._numbers, self._target, life, environment)
        member.start(self._loop)
        return self._numbers

    def _serve(self, group: MemoryGroup) -> None:
        """Serve a group, in a context of no member, until the end of the test."""
        serving = self._loop.create_task(group.serve(), context=Context(), name=f"group {group.group_id}")
        self._groups.append(serving)

    def _until_started(self) -> None:
        def is_started() -> bool:
            return all(member.is_started or member.is_done for member in self._members.values())

        self._drive_until(is_started, "the start")
        self._until_stable()

    def _until_stable(self) -> None:
        groups = self._cluster.groups.values()
        self._drive_until(lambda: all(group.is_stable for group in groups), "the rebalance")
        self._raise_failures()

    def _drive_until(self, condition: Callable[[], bool], what: str, limit_s: float = STEP_LIMIT_S) -> None:
        """Advance time until a condition is true, and nothing can be done at that time."""
        self._loop.drive(self._loop.now_s + limit_s, until=lambda: condition() or self._has_failed())
        if not condition() and not self._has_failed():
            raise NeverSettles(f"{what} has not come within {limit_s:g} s of virtual time")

    def _has_failed(self) -> bool:
        return any(member.failure is not None for member in self._members.values())

    def _raise_failures(self) -> None:
        for number, member in list(self._members.items()):
            if member.failure is not None:
                del self._members[number]
                raise member.failure


def _note_task(task: asyncio.Task[Any], context: Context) -> None:
    found = environment_of(context)
    if isinstance(found, VirtualEnvironment):
        found.tasks.add(task)
        task.add_done_callback(found.tasks.discard)


def _read_topics(plan: Plan) -> list[str]:
    """Return the topics that must exist for a plan: those of streams and tables, without those it feeds."""
    sources = [part.topic for part in plan.parts.values() if part.fed_by is None]
    tables = [table.topic for part in plan.parts.values() for table in part.tables]
    return [*sources, *tables, *(table.topic for table in plan.global_tables)]
