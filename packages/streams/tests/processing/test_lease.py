"""Handlers start only while the group surely keeps the member."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Stop, Verdict, Work
from ottla.streams.testing.virtual_loop import START_S, VirtualLoop

P0 = TopicPartition("orders", 0)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(patience_s=10, max_turns=10_000)
    yield loop
    loop.close()


class NoOutputs:
    def settle(self, work: Work) -> asyncio.Future[None] | None: ...

    def discard(self, work: Work) -> None: ...

    def revoked(self, partition: TopicPartition) -> None: ...


class Stopping:
    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        return Stop()

    async def set_aside(self, work: Work, error: BaseException) -> None: ...


class Session:
    """Handlers of a second each, two at once, and the end of the session that a test sets."""

    def __init__(self, loop: VirtualLoop, ends_s: float | None) -> None:
        self.loop, self.ends_s = loop, ends_s
        self.started_s: list[float] = []
        self.failures: list[BaseException] = []
        self.scheduler = scheduler = Scheduler("none")
        self.workers = Workers(
            scheduler, self.handle, Stopping(), NoOutputs(), None, max_concurrency=2,
            handler_timeout_ms=None, fail=self.failures.append, on_resume_due=lambda: None,
            session_ends_s=lambda: None if self.ends_s is None else START_S + self.ends_s,
        )  # fmt: skip
        scheduler.assign(P0, 0)
        scheduler.add(P0, [ConsumerRecord("orders", 0, each, key=b"k", value=b"v") for each in range(20)], 20)
        self.running = loop.create_task(self._run())

    async def handle(self, work: Work) -> None:
        self.started_s.append(round(self.loop.time() - START_S, 1))
        await asyncio.sleep(1)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.workers.start(tasks)
            self.workers.wake()

    def until(self, time_s: float) -> list[float]:
        self.loop.drive(START_S + time_s)
        return self.started_s

    def end(self) -> None:
        self.workers.stop()
        self.loop.drive(START_S + 1_000, until=self.running.done)
        assert not self.failures


def test_no_handler_starts_after_the_session_and_all_go_on_when_a_heartbeat_is_answered(
    loop: VirtualLoop, caplog: Any
) -> None:
    session = Session(loop, ends_s=2.5)

    assert session.until(10) == [0, 0, 1, 1, 2, 2]
    assert [each.message for each in caplog.records] == [
        "no heartbeat was answered for session_timeout_ms: no handler starts until one is"
    ]
    session.ends_s = 12.5
    resumed = [each for each in session.until(20) if each > 2]
    assert [round(each - resumed[0], 1) for each in resumed] == [0, 0, 1, 1, 2, 2]
    assert len(caplog.records) == 2

    session.end()


def test_without_a_session_all_handlers_start(loop: VirtualLoop) -> None:
    session = Session(loop, ends_s=None)

    assert len(session.until(10.5)) == 20

    session.end()
