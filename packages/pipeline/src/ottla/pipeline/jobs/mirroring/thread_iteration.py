"""Iteration over a blocking source from a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar, cast

T = TypeVar("T")

_NO_MORE = object()


async def iterate_in_thread(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield items; the event loop continues during the wait, because connections need it."""
    waiting = iter(things)
    while (thing := await asyncio.to_thread(next, waiting, _NO_MORE)) is not _NO_MORE:
        yield cast("T", thing)
