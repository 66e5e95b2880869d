"""Things that come from somewhere that blocks, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar, cast

T = TypeVar("T")

_NO_MORE = object()


async def iterate_in_thread(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield things; while one is waited for, the event loop goes on: connections need it to live."""
    waiting = iter(things)
    while (thing := await asyncio.to_thread(next, waiting, _NO_MORE)) is not _NO_MORE:
        yield cast("T", thing)
