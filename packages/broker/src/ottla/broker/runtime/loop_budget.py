"""The event loop's budget: the milliseconds of each of its turns that long work takes, and in which order.

Requests are short, and one loop serves all of them; work that is long is done in pieces. The budget divides
a turn of the loop into shares, one for each kind of long work. All work of a kind takes its share together.
When it is used up, the rest waits in line for a later turn. So many long requests hold up a short one as
long as one does.

Work takes a `Turn` of its share and asks it between two elements:

- `await turn.yield_if_spent()`, or `async for element in turn.over(elements)`;
- `await turn.run(steps)` for a generator, which yields wherever it may be interrupted;
- a pure core, which has no clock, divides a long loop with `slices`, and yields an `EndOfSlice` after each.

Work that is a callback is put into a `StepQueue`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from ottla.broker.runtime.clock import SystemClock
from ottla.broker.runtime.garbage_collection import Collector
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics

T = TypeVar("T")

LONG_REQUESTS_MS: Final = 10.0
"""Long requests, together."""
ARRIVED_REQUESTS_MS: Final = 5.0
"""Short requests of the general path, which begin in the turn in which they were read while there is time."""
WOKEN_FETCHES_MS: Final = 5.0
"""Waiting fetches that read again."""
MEMBER_ANSWERS_MS: Final = 5.0
"""Members of groups that get the answer they have waited for."""
BACKGROUND_MS: Final = 4.0
"""The broker's own work, together: roles, loading of coordinators, timers, markers, passes over all logs."""
HANDSHAKES_MS: Final = 5.0
"""Steps of TLS handshakes, a millisecond of arithmetic each."""
CLOSED_CONNECTIONS_MS: Final = 3.0
"""Connections whose clients have left."""
METRICS_MS: Final = 1.0
"""Snapshots and pages of metrics."""

LONG: Final = 256
"""Elements from which on a list is worked through in steps where there are two ways."""
SLICE: Final = 128
"""Elements between two looks at the clock where one takes about 10 µs."""
MANY: Final = 4_096
"""Elements from which on work has so many objects that no full collection shall look at them meanwhile."""
LAG_SAMPLE_INTERVAL_MS: Final = 100


class Disconnected(Exception):
    """The client has closed its connection: the answer has no receiver any more."""


class Client(Protocol):
    """The session of a request."""

    @property
    def is_gone(self) -> bool: ...


class LoopBudget:
    """The shares of one event loop."""

    def __init__(
        self,
        monotonic_ms: Callable[[], float] | None = None,
        *,
        background_ms: float = BACKGROUND_MS,
        arrived_requests_ms: float = ARRIVED_REQUESTS_MS,
        closed_connections_ms: float = CLOSED_CONNECTIONS_MS,
    ) -> None:
        """`monotonic_ms` never goes back, by default the machine's.

        It is not the loop's clock, which stands still during a turn of uvloop.
        """
        now_ms = monotonic_ms or SystemClock().monotonic_ms
        self.collector = Collector(now_ms)
        self.long_requests = Share(LONG_REQUESTS_MS, now_ms, self.collector.hold_off)
        self.arrived_requests = Share(arrived_requests_ms, now_ms)
        self.woken_fetches = Share(WOKEN_FETCHES_MS, now_ms)
        self.member_answers = Share(MEMBER_ANSWERS_MS, now_ms)
        self.background = Share(background_ms, now_ms)
        self.closed_connections = Share(closed_connections_ms, now_ms)
        self.handshakes = Share(HANDSHAKES_MS, now_ms)
        self.metrics = Share(METRICS_MS, now_ms)

    def turn(self) -> Turn:
        """Begin a piece of the broker's own long work."""
        return Turn(self.background)

    def close(self) -> None:
        """Leave the process as it was: the loop is about to end."""
        self.collector.allow()


class Share:
    """The milliseconds of each turn of the loop for one kind of work, and the work that waits for a turn."""

    __slots__ = (
        "_began_ms",
        "_is_taken",
        "_on_many",
        "_turn_ends",
        "_waiting",
        "limit_ms",
        "now_ms",
        "used_ms",
    )

    def __init__(
        self, limit_ms: float, now_ms: Callable[[], float], on_many: Callable[[], None] | None = None
    ) -> None:
        """`on_many` is called whenever work with many elements in memory has to wait for its next turn."""
        self.limit_ms = limit_ms
        self.now_ms = now_ms
        self.used_ms = 0.0
        """Milliseconds used of the present turn of the loop."""
        self._on_many = on_many
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turn_ends = False
        self._is_taken = False
        """Whether the next turn of the loop belongs to work that has waited for it."""
        self._began_ms: float | None = None

    def charge(self, used_ms: float) -> None:
        """Count time against the present turn of the loop."""
        self.used_ms += used_ms
        self._plan_end()

    def is_over(self) -> bool:
        """Return whether the share has passed since the first call in this turn of the loop.

        For callbacks of many objects that follow each other, and whose time is not counted one by one.
        """
        now_ms = self.now_ms()
        if self._began_ms is None:
            self._began_ms = now_ms
            self._plan_end()
            return False
        return now_ms - self._began_ms >= self.limit_ms

    async def next_turn(self, *, has_many: bool = False) -> None:
        """Wait for a turn of the loop, behind those that wait already.

        Work that `has_many` elements in memory says so.
        """
        if has_many and self._on_many is not None:
            self._on_many()
        if not self._is_taken:
            # The turn ends first in the next pass of the loop: `_end_turn` stands before this task.
            self._is_taken = True
            self._plan_end()
            await asyncio.sleep(0)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _plan_end(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Begin the next turn, and give the one after it to the first in line."""
        self.used_ms, self._began_ms = 0.0, None
        self._turn_ends = self._is_taken = False
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else its work was cancelled
                # Planned before the work goes on, so that it finds its share unused.
                self._plan_end()
                self._is_taken = True
                place.set_result(None)
                break


class Turn:
    """A piece of long work, which rests whenever its share of a turn of the loop is used up."""

    __slots__ = ("_client", "_share", "_since_ms", "steps")

    def __init__(self, share: Share, client: Client | None = None) -> None:
        """Work for a `client` ends when that has gone."""
        self._share = share
        self._client = client
        self._since_ms = share.now_ms()
        self.steps = 0
        """Elements and steps so far."""

    @property
    def is_long(self) -> bool:
        """Whether so much was done that further work is done in steps, too."""
        return self.steps > LONG

    @property
    def is_spent(self) -> bool:
        """Whether the share of this turn of the loop is used up."""
        share = self._share
        return share.used_ms + share.now_ms() - self._since_ms >= share.limit_ms

    async def yield_if_spent(self) -> None:
        """Rest if the share is used up. Raises `Disconnected`."""
        if self.is_spent:
            await self.rest()

    async def rest(self) -> None:
        """Wait for the next turn. Raises `Disconnected`."""
        await self.rest_without_client()
        if self._client is not None and self._client.is_gone:
            raise Disconnected

    async def rest_without_client(self) -> None:
        """Wait for the next turn, also after the client has gone."""
        self.charge()
        await self._share.next_turn(has_many=self.steps > MANY)
        self._since_ms = self._share.now_ms()

    def charge(self) -> None:
        """Count the time used since the last rest."""
        now_ms = self._share.now_ms()
        self._share.charge(now_ms - self._since_ms)
        self._since_ms = now_ms

    def over(self, items: Iterable[T], *, to_the_end: bool = False) -> Elements[T]:
        """Iterate with `async for`, resting between elements when the share is used up.

        With `to_the_end` also after the client has gone: for work that must not stay half done.
        """
        return Elements(self, iter(items), self.rest_without_client if to_the_end else self.rest)

    async def drop(self, items: list[Any]) -> None:
        """Empty a list that is needed no more: 100,000 elements that go at once take more than a turn."""
        while items:
            del items[-LONG:]
            await self.yield_if_spent()

    async def run(self, steps: Generator[Any, None, T]) -> T:
        """Run a generator to its end, resting between its steps when the share is used up."""
        while True:
            await self.yield_if_spent()
            try:
                next(steps)
            except StopIteration as end:
                self.charge()
                done: T = end.value
                return done
            self.steps += 1


class Elements(Generic[T]):
    """An iteration that rests between its elements."""

    __slots__ = ("_items", "_rest", "_turn")

    def __init__(self, turn: Turn, items: Iterator[T], rest: Callable[[], Any]) -> None:
        self._turn = turn
        self._items = items
        self._rest = rest

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        turn = self._turn
        if turn.is_spent:
            await self._rest()
        for item in self._items:
            turn.steps += 1
            return item
        turn.charge()
        raise StopAsyncIteration


def at_once(steps: Generator[Any, None, T]) -> T:
    """Run a generator of steps to its end, for a list that is short."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            done: T = end.value
            return done


@frozen
class EndOfSlice:
    """The end of a slice of a pure core's loop: the loop of events may go on with other work here."""


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Divide items, in their order; an `EndOfSlice` belongs behind each slice."""
    rest = iter(items)
    while some := list(islice(rest, SLICE)):
        yield some


class StepQueue:
    """Callbacks that are called in the order in which they came, as many in a turn as the share has time for.

    Their cost is estimated, not timed: most of it comes in later turns, when a transport reports the end of
    its connection, or a fetch that was woken reads again.
    """

    def __init__(self, share: Share, cost_ms: float) -> None:
        """`cost_ms` is what one step takes, later work included."""
        self.most = max(1, round(share.limit_ms / cost_ms))
        """Steps of one turn."""
        self._left = self.most
        self._steps: deque[Callable[[], object]] = deque()
        self._is_planned = False

    def put(self, step: Callable[[], object]) -> None:
        """Call a step in a later turn of the loop."""
        self._steps.append(step)
        self._plan()

    def call(self, step: Callable[[], object]) -> None:
        """Call a step in this turn of the loop if there is time, else in a later one."""
        if self._left and not self._steps:
            self._left -= 1
            step()
        else:
            self._steps.append(step)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left, self._is_planned = self.most, False
        try:
            while self._steps and self._left:
                self._left -= 1
                self._steps.popleft()()
        finally:  # a step that raises does not hold up those behind it
            if self._left < self.most:
                self._plan()


async def watch_event_loop_lag(metrics: Metrics) -> None:
    """Measure until cancelled how much later than due a timer of the running loop fires.

    The lag is `ottla.broker:type=EventLoop,name=LagMs`: a task that blocks the loop also delays this timer.
    It serves as a garbage-collection log does for a JVM.
    """
    loop = asyncio.get_running_loop()
    lag = metrics.histogram("ottla.broker", "EventLoop", "LagMs")
    while True:
        due = loop.time() + LAG_SAMPLE_INTERVAL_MS / 1000
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_MS / 1000)
        lag.update(max(0.0, (loop.time() - due) * 1000))
