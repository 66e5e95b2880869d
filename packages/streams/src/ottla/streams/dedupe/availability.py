"""Waiting for a store that is unavailable: one log line when it begins, one when it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ottla.streams.dedupe.errors import StoreUnavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 2.0


class Availability:
    """Repeats calls of a store until it answers. There is one for what reads, and one for what writes.

    A full store still answers what it is asked: one for both would report it as available in between.
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._waiting = 0
        self._available = asyncio.Event()
        self._available.set()

    @property
    def is_available(self) -> bool:
        """Whether no call is being repeated."""
        return self._waiting == 0

    async def wait(self) -> None:
        """Wait until no call is being repeated: all have succeeded, or their callers were cancelled."""
        await self._available.wait()

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an operation, which is repeated while it raises StoreUnavailable."""
        try:
            return await operation()
        except StoreUnavailable as error:
            self._begin(error)
            return await self._repeat(operation, error.store)

    async def _repeat(self, operation: Callable[[], Awaitable[T]], store: str) -> T:
        wait_s = FIRST_WAIT_S
        try:
            while True:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                try:
                    result = await operation()
                except StoreUnavailable:
                    continue
                if self._waiting == 1:
                    log.info("the dedupe store %s is available again", store)
                return result
        finally:
            self._end()

    def _begin(self, error: StoreUnavailable) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._available.clear()
            log.warning("%s: %s until it is back", error, self._consequence)

    def _end(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self._available.set()
