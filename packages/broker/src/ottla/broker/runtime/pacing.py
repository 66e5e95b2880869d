"""Long requests share the event loop: together they take 10 ms of each of its turns.

A request over a long list does its work in steps, and asks after each whether to let others go on. Those that
have used up a turn wait in line, so that many long requests hold up a short one no longer than one does. Work
for a client that has gone ends at the next step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from ottla.broker.runtime.environment import SystemClock
from ottla.broker.runtime.full_collections import FullCollections

T = TypeVar("T")

SLICE_MS: Final = 10.0
LONG: Final = 256
"""Elements from which on a list is worked through in steps where a handler has two ways."""


class Disconnected(Exception):
    """The client has closed its connection: nobody waits for the answer any more."""


class Connected(Protocol):
    """The session of a request."""

    @property
    def is_gone(self) -> bool: ...


class Turns:
    """The turns of one event loop, and the long requests that wait for one."""

    def __init__(self, now_ms: Callable[[], float] | None = None) -> None:
        """`now_ms` is a clock that never goes back; by default the machine's."""
        self.now_ms = now_ms or SystemClock().monotonic_ms
        self.used_ms = 0.0
        """Milliseconds that long requests have used of the present turn of the loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._full_collections = FullCollections()
        self._ends = False

    def charge(self, used_ms: float) -> None:
        """Count time against the present turn of the loop."""
        self.used_ms += used_ms
        if not self._ends:
            self._ends = True
            asyncio.get_running_loop().call_soon(self._next)

    def close(self) -> None:
        """End what outlasts a request: the loop is about to end."""
        self._full_collections.allow()

    async def next(self) -> None:
        """Wait for a turn, behind those that wait already."""
        self._full_collections.hold_off()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.charge(0.0)
        await turn

    def _next(self) -> None:
        self._ends, self.used_ms = False, 0.0
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            self.charge(0.0)


class Pace:
    """The pace of one request."""

    __slots__ = ("_session", "_since_ms", "_turns", "steps")

    def __init__(self, turns: Turns, session: Connected) -> None:
        self._turns = turns
        self._session = session
        self._since_ms = turns.now_ms()
        self.steps = 0
        """Elements and steps so far."""

    @property
    def is_long(self) -> bool:
        """Whether so much was done that what follows is done in steps, too."""
        return self.steps > LONG

    @property
    def is_due(self) -> bool:
        """Whether the turn of the loop is used up."""
        turns = self._turns
        return turns.used_ms + turns.now_ms() - self._since_ms >= SLICE_MS

    async def rest(self) -> None:
        """Let others go on. Raises `Disconnected`."""
        await self.let_others_go_on()
        if self._session.is_gone:
            raise Disconnected

    async def let_others_go_on(self) -> None:
        """Rest, also where the client has gone."""
        self.charge()
        await self._turns.next()
        self._since_ms = self._turns.now_ms()

    def charge(self) -> None:
        """Count what was used since the last rest."""
        now_ms = self._turns.now_ms()
        self._turns.charge(now_ms - self._since_ms)
        self._since_ms = now_ms

    def over(self, items: Iterable[T], *, to_the_end: bool = False) -> Paced[T]:
        """Iterate with `async for`, resting when a turn is used up.

        With `to_the_end` also where the client has gone: for work that must not stay half done.
        """
        return Paced(self, iter(items), self.let_others_go_on if to_the_end else self.rest)

    async def drop(self, items: list[Any]) -> None:
        """Empty a list that nobody needs any more: 100,000 elements that go at once take more than a turn."""
        while items:
            del items[-LONG:]
            if self.is_due:
                await self.rest()

    async def run(self, steps: Generator[Any, None, T]) -> T:
        """Run a generator to its end, resting between its steps when a turn is used up."""
        while True:
            if self.is_due:
                await self.rest()
            try:
                next(steps)
            except StopIteration as end:
                self.charge()
                done: T = end.value
                return done
            self.steps += 1


class Paced(Generic[T]):
    """An iteration that rests between its elements."""

    __slots__ = ("_items", "_pace", "_rest")

    def __init__(self, pace: Pace, items: Iterator[T], rest: Callable[[], Awaitable[None]]) -> None:
        self._pace = pace
        self._items = items
        self._rest = rest

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        pace = self._pace
        if pace.is_due:
            await self._rest()
        for item in self._items:
            pace.steps += 1
            return item
        pace.charge()
        raise StopAsyncIteration


def at_once(steps: Generator[Any, None, T]) -> T:
    """Run a generator of steps to its end, for a list that is short."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: T = end.value
            return done
