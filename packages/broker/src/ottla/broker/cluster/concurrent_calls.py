"""Calls of ZooKeeper that are under way together, which it stores together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

_T = TypeVar("_T")

READS_AT_ONCE: Final = 50
"""To begin an operation takes the event loop 0.1 ms; what is under way meanwhile keeps ZooKeeper busy."""


async def all_of(calls: Iterable[Awaitable[_T]], at_once: int = READS_AT_ONCE) -> list[_T]:
    """The results of calls, in their order; each is made when it begins, and none after one has failed."""
    rest, found, failed = enumerate(calls), dict[int, _T](), asyncio.Event()

    async def one_after_the_other() -> None:
        try:
            while not failed.is_set() and (following := next(rest, None)):
                found[following[0]] = await following[1]
        except BaseException:
            failed.set()
            raise

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return [found[number] for number in range(len(found))]
