"""Work for tests of dedupe, run as a processor runs it: handler, then settled outputs or a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe import Dedupe, Guard
from ottla.streams.seams import Retry, Skip, Verdict, Work

WAIT_S = 60.0


class Clock:
    """A time of day that a test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms


class SomeWork:
    """Records of one partition, as one call of a handler."""

    def __init__(self, *identities: bytes | None, partition: int = 0, offset: int = 0) -> None:
        self.context: Any = None
        self.attempt = 1
        self.started_ms = 0
        self.lane: Hashable = None
        self.partition = TopicPartition("orders", partition)
        self.records = [
            ConsumerRecord(
                "orders", partition, offset + number,
                headers=[] if identity is None else [("message-id", identity)],
            )
            for number, identity in enumerate(identities)
        ]  # fmt: skip

    @property
    def record(self) -> ConsumerRecord:
        return self.records[0]

    @property
    def offset(self) -> int:
        return self.records[0].offset


class Effects:
    """A handler that notes what it handles; `fail` raises, `proceed` lets it wait."""

    def __init__(self) -> None:
        self.handled: list[bytes | None] = []
        self.failures: list[Exception] = []
        self.proceed = asyncio.Event()
        self.proceed.set()
        self.started = asyncio.Event()

    async def __call__(self, work: Work) -> None:
        self.started.set()
        await self.proceed.wait()
        if self.failures:
            raise self.failures.pop()
        self.handled += [dict(record.headers).get("message-id") for record in work.records]


class SomeOutputs:
    """Outputs that are acknowledged when the test says so; None stands for nothing sent."""

    def __init__(self) -> None:
        self.acknowledgement: asyncio.Future[None] | None = None
        self.discarded: list[Work] = []

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        return self.acknowledgement

    def discard(self, work: Work) -> None:
        self.discarded.append(work)

    def revoked(self, partition: TopicPartition) -> None:
        pass


class SomeFailures:
    """A policy that decides what the test wants."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.verdict = verdict or Skip()
        self.asked: list[BaseException] = []

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        self.asked.append(error)
        return self.verdict

    async def set_aside(self, work: Work, error: BaseException) -> None:
        pass


class Member:
    """A member of the group: a guard with its handler, which runs work as a processor does."""

    def __init__(self, dedupe: Dedupe, verdict: Verdict | None = None) -> None:
        self.dedupe = dedupe
        self.effects = Effects()
        self.outputs = SomeOutputs()
        self.failures = SomeFailures(verdict)
        self.guard = Guard(dedupe, self.effects, self.outputs, self.failures)

    async def run(self, work: SomeWork) -> Verdict | None:
        """Run one attempt until the work is finished; return the verdict about a failure."""
        if (verdict := await self.attempt(work)) is None:
            await self.settle(work)
        return verdict

    async def attempt(self, work: SomeWork) -> Verdict | None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self.guard.handler(work)
        except Exception as error:
            self.guard.outputs.discard(work)
            work.attempt += 1
            return self.guard.failures.decide(work, error, 0)
        return None

    async def settle(self, work: SomeWork) -> None:
        settled = self.guard.outputs.settle(work)
        if settled is not None:
            async with asyncio.timeout(WAIT_S):
                await settled

    async def run_all(self, *works: SomeWork) -> Sequence[Verdict | None]:
        return await asyncio.gather(*map(self.run, works))


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


__all__ = ["Clock", "Effects", "Member", "Retry", "Skip", "SomeWork", "until"]
