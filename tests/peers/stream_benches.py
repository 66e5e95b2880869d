"""The same test on the driver without a broker and on a broker: one interface, two implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ottla.admin import Admin
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams import App
from ottla.streams.testing import StreamsTest

T = TypeVar("T")
WAIT_S = 60
Make = Callable[..., App]


class Bench(Protocol):
    """Runs apps that `make` returns, given settings."""

    def create(self, **topics: int) -> None:
        """Create topics."""

    def start(self, make: Make) -> int:
        """Start a member."""

    def stop(self, member: int) -> None:
        """Stop a member in an orderly way."""

    def failure(self, member: int) -> BaseException:
        """Wait until a member fails, and return why."""

    def send(self, topic: str, value: bytes | None, key: bytes, timestamp_ms: int | None = None) -> None:
        """Write a record."""

    def records(self, topic: str, count: int) -> list[ConsumerRecord]:
        """Wait until a topic has as many records, and return them by partition and offset."""

    def committed(self, group: str, topic: str, offset: int) -> str:
        """Wait until an offset of partition 0 is committed, and return its metadata."""

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition of this process is true."""


class DriverBench:
    """Without a broker: each bench is one StreamsTest, whose members are apps that `start` gives."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._open = ExitStack()
        self._test: StreamsTest | None = None
        self._make: Make = App

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    @property
    def test(self) -> StreamsTest:
        """The test, which begins with the first use."""
        if self._test is None:
            made = StreamsTest(lambda: self._make(), topics=self._topics, members=0)
            self._test = self._open.enter_context(made)
        return self._test

    def create(self, **topics: int) -> None:
        self._topics.update(topics)

    def start(self, make: Make) -> int:
        self._make = make
        return self.test.start_member()

    def stop(self, member: int) -> None:
        self.test.stop_member(member)

    def failure(self, member: int) -> BaseException:
        try:
            self.test.wait_until(lambda: False)
        except Exception as error:
            return error
        raise AssertionError("the member goes on")

    def send(self, topic: str, value: bytes | None, key: bytes, timestamp_ms: int | None = None) -> None:
        self.test.send(topic, value, key=key, timestamp_ms=timestamp_ms)

    def records(self, topic: str, count: int) -> list[ConsumerRecord]:
        self.test.wait_until(lambda: len(self.test.records(topic)) >= count)
        return self.test.records(topic)

    def committed(self, group: str, topic: str, offset: int) -> str:
        self.test.wait_until(lambda: self.test.committed(topic, group=group) == offset)
        return self.test.committed_metadata(topic, group=group) or ""

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.test.wait_until(condition)


class BrokerBench:
    """With a broker, in real time. Members run on a loop that runs while a method waits."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._runner = asyncio.Runner()
        self._members: list[tuple[App, asyncio.Task[None]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner:
            for member, (_, task) in enumerate(self._members):
                if not task.done():
                    self.stop(member)

    def create(self, **topics: int) -> None:
        async def create() -> None:
            async with Admin(self._servers) as admin:
                for topic, count in topics.items():
                    await admin.topics.create(topic, partitions=count)

        self._run(create())

    def start(self, make: Make) -> int:
        app, started = make(bootstrap_servers=self._servers), asyncio.Event()

        async def run() -> None:
            async with app:
                started.set()
                await app.wait()

        task = self._runner.get_loop().create_task(run())
        self._members.append((app, task))
        self.wait_until(lambda: started.is_set() or task.done())
        return len(self._members) - 1

    def stop(self, member: int) -> None:
        app, task = self._members[member]
        app.stop()
        self._run(asyncio.wait_for(task, WAIT_S))

    def failure(self, member: int) -> BaseException:
        _, task = self._members[member]
        self.wait_until(task.done)
        found = task.exception()
        assert found is not None
        return found

    def send(self, topic: str, value: bytes | None, key: bytes, timestamp_ms: int | None = None) -> None:
        async def send() -> None:
            async with Producer(self._servers) as producer:
                await producer.send_and_wait(topic, value, key, timestamp_ms=timestamp_ms)

        self._run(send())

    def records(self, topic: str, count: int) -> list[ConsumerRecord]:
        return self._run(self._read(topic, count))

    async def _read(self, topic: str, count: int) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        async with asyncio.timeout(WAIT_S):
            async with Consumer(
                bootstrap_servers=self._servers,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer:
                numbers = None
                while not numbers:
                    numbers = await consumer.partitions_for_topic(topic)
                    await asyncio.sleep(0.01)
                consumer.assign([TopicPartition(topic, each) for each in numbers])
                while len(found) < count:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found.extend(records)
        return sorted(found, key=lambda each: (each.partition, each.offset))

    def committed(self, group: str, topic: str, offset: int) -> str:
        async def wait() -> str:
            async with asyncio.timeout(WAIT_S), Admin(self._servers) as admin:
                while True:
                    found = await admin.groups.committed(group, [TopicPartition(topic, 0)])
                    if (now := found.get(TopicPartition(topic, 0))) is not None and now[0] == offset:
                        return now[1]
                    await asyncio.sleep(0.01)

        return self._run(wait())

    def wait_until(self, condition: Callable[[], object]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

        self._run(wait())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)
