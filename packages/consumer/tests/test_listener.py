from __future__ import annotations

import asyncio

import pytest

from ottla.consumer.errors import ListenerFailed
from ottla.consumer.subscription import Partitions, RebalanceListener, tell
from ottla.protocol.topics import TopicPartition

SOME = frozenset({TopicPartition("t", 0)})


class Plain(RebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, Partitions]] = []

    def on_partitions_revoked(self, revoked: Partitions) -> None:
        self.heard.append(("revoked", revoked))


class Asynchronous(RebalanceListener):
    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.heard: list[Partitions] = []

    async def on_partitions_assigned(self, assigned: Partitions) -> None:
        await self.gate.wait()
        self.heard.append(assigned)


class WithoutLost:
    """As other libraries have them."""

    def __init__(self) -> None:
        self.revoked: list[Partitions] = []

    def on_partitions_revoked(self, revoked: Partitions) -> None:
        self.revoked.append(revoked)


async def test_lost_partitions_are_revoked_for_a_listener_without_on_partitions_lost() -> None:
    plain, other = Plain(), WithoutLost()

    await tell(plain, "lost", SOME, 1)
    await tell(other, "lost", SOME, 1)
    await tell(other, "assigned", SOME, 1)

    assert plain.heard == [("revoked", SOME)]
    assert other.revoked == [SOME]


async def test_an_async_method_is_waited_for() -> None:
    gate = asyncio.Event()
    listener = Asynchronous(gate)
    gate.set()

    await tell(listener, "assigned", SOME, 1)

    assert listener.heard == [SOME]


async def test_a_method_that_does_not_end_is_given_up() -> None:
    with pytest.raises(ListenerFailed, match="on_partitions_assigned did not end within"):
        await tell(Asynchronous(asyncio.Event()), "assigned", SOME, 0.01)


class Cancelled:
    """Awaits something of its own that somebody cancels."""

    async def on_partitions_assigned(self, assigned: Partitions) -> None:
        work = asyncio.create_task(asyncio.sleep(60))
        work.cancel()
        await work


async def test_a_method_that_ends_by_a_cancellation_of_its_own_has_failed() -> None:
    with pytest.raises(ListenerFailed, match="on_partitions_assigned was cancelled"):
        await tell(Cancelled(), "assigned", SOME, 1)


async def test_a_call_of_a_listener_may_be_cancelled() -> None:
    telling = asyncio.create_task(tell(Asynchronous(asyncio.Event()), "assigned", SOME, 60))
    await asyncio.sleep(0)
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await telling
