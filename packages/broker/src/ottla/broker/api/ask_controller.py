"""Requests of clients that the controller answers partition by partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.protocol.errors import ErrorCode, RequestTimedOut, error_for
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller
    from ottla.broker.controller.events import Event
    from ottla.broker.peers.controller_requests import Answers
    from ottla.broker.requests.context import RequestContext

LEAST_TIMEOUT_MS: Final = 5_000
"""The least time for the controller to write: a timeout of 0 asks it not to wait for brokers."""


class Needs(Protocol):
    """The parts of the broker that these requests use."""

    controller: Controller


async def ask_controller(services: Needs, event: Event, timeout_ms: int) -> Answers:
    """Return the controller's answers. Raises RequestTimedOut, and NotController on another broker."""
    try:
        async with asyncio.timeout(max(LEAST_TIMEOUT_MS, timeout_ms) / 1000):
            return await services.controller.ask(event)
    except TimeoutError:
        raise RequestTimedOut from None


async def partitions_named(
    topics: Iterable[tuple[str, Sequence[int]]] | None, context: RequestContext
) -> frozenset[TopicPartition] | None:
    """The partitions that a request names by topic; None, which means all, stays None."""
    if topics is None:
        return None
    return frozenset(
        [
            TopicPartition(topic, number)
            for topic, numbers in topics
            async for number in context.paced(numbers)
        ]
    )


def message_of(code: int, message: str | None = None) -> str | None:
    """The words that go with the error of a partition: `message`, or else the error's own."""
    return (message or str(error_for(ErrorCode(code)))) if code else None
