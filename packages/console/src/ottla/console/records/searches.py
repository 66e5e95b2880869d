"""The searches of a console: each in a process of its own, few of a cluster at once, the others in sight.

A search belongs to one request. It ends with it, whatever the reason: the process is killed and its place
given to the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgpack

from ottla.client.environment import unique_suffix
from ottla.client.errors import ClientError
from ottla.console.logins.access import Viewer
from ottla.console.records.search_process import LENGTH, Job, packed_answer
from ottla.console.registry.searching import SentSchema
from ottla.registry.schemas import SchemaText

_log = logging.getLogger(__name__)

SEARCHES_AT_ONCE: Final = 2
"""Of one cluster: each takes a share of its brokers' time, and of the processors of this machine."""
TAILS_AT_ONCE: Final = 8
TAILS_OF_NEWCOMERS: Final = 2
"""Of these, those that stay free for people without a tail."""
MOST_OF_A_PERSON: Final = 20
"""Searches and exports, and as many tails, that one person may have open."""
MOST_WAITING: Final = 100
_FRAME_BYTES: Final = 64 << 20
_READ_BYTES: Final = 256 << 10
_WAIT_S: Final = 1.0
_END_S: Final = 10.0
_SCHEMA_S: Final = 10.0
_MAIN: Final = "from ottla.console.records.search_process import main; main()"
"""Not `-m`: the class of the job would be another one in a module that is the main one."""
_FEW_ARENAS: Final = {
    # Address space is bounded, and these would reserve much of it for threads.
    "MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1",
}  # fmt: skip

Frame = Mapping[str, Any]
ReadSchema = Callable[[int | str], Awaitable[SchemaText]]


class TooManySearches(Exception):
    """A person has too many searches open, or too many wait already; it is answered with `status_code`."""

    status_code: Final = HTTPStatus.TOO_MANY_REQUESTS


class SearchFailed(Exception):
    """A search has ended without its result; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A place of a person, or the wish for one."""

    person: str


class Places:
    """A number of places. The first wish of each person goes before the second of anybody, and so on.

    The last `for_newcomers` of them are for people who have none: places that are kept for long would all be
    one person's otherwise.
    """

    def __init__(self, count: int, for_newcomers: int = 0) -> None:
        self._count = count
        self._for_newcomers = for_newcomers
        self._taken: list[Ticket] = []
        self._waiting: list[Ticket] = []
        self._moved = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def enter(self, person: str) -> Ticket:
        """Return a ticket for the next place."""
        ticket = Ticket(person)
        self._waiting.append(ticket)
        self._fill()
        return ticket

    def ahead(self, ticket: Ticket) -> int:
        """Return how many others must leave before this ticket has a place; 0 when it has one."""
        return 0 if ticket in self._taken else self._in_order().index(ticket) + 1

    def leave(self, ticket: Ticket) -> None:
        """Give back a place, or stop waiting."""
        (self._taken if ticket in self._taken else self._waiting).remove(ticket)
        self._fill()
        self._moved.set()
        self._moved = asyncio.Event()

    def _fill(self) -> None:
        while self._waiting and len(self._taken) < self._count:
            first = self._in_order()[0]
            is_newcomer = all(ticket.person != first.person for ticket in self._taken)
            if not is_newcomer and len(self._taken) >= self._count - self._for_newcomers:
                return
            self._waiting.remove(first)
            self._taken.append(first)

    def _in_order(self) -> list[Ticket]:
        before = Counter(ticket.person for ticket in self._taken)
        ranks = list[int]()
        for ticket in self._waiting:
            ranks.append(before[ticket.person])
            before[ticket.person] += 1
        return [self._waiting[at] for at in sorted(range(len(ranks)), key=ranks.__getitem__)]

    async def moved(self) -> None:
        """Wait until somebody leaves, for a second at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                await self._moved.wait()


@dataclass(slots=True)
class RunningSearch:
    """A search that waits or runs. `progress` is the last frame of progress."""

    job: Job
    cluster: str
    viewer: Viewer
    since_s: float
    places: Places = field(repr=False)
    schemas: ReadSchema | None = field(default=None, repr=False)
    id: str = field(default_factory=unique_suffix)
    ahead: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    _ticket: Ticket | None = None
    _process: asyncio.subprocess.Process | None = None
    _is_cancelled: bool = False

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Wait for a place, run, and return the frames up to `done`. Raises SearchFailed."""
        self._ticket = self.places.enter(self.viewer.identity)
        while self.ahead_now():
            yield {"kind": "queued", "ahead": self.ahead}
            await self.places.moved()
        self._process = await _start(self.job)
        output = self._process.stdout
        assert output is not None
        unpacker = msgpack.Unpacker(max_buffer_size=_FRAME_BYTES, strict_map_key=False)
        while part := await output.read(_READ_BYTES):
            unpacker.feed(part)
            for frame in unpacker:
                if frame["kind"] == "progress":
                    self.progress = frame
                if frame["kind"] == "schema":
                    await self._answer(frame["schema"])
                    continue
                if frame["kind"] == "failed":
                    raise SearchFailed(frame["reason"])
                yield frame
                if frame["kind"] == "done":
                    return
        raise SearchFailed(self._why_ended(await self._process.wait()))

    async def _answer(self, schema: int | str) -> None:
        """Send a schema to the process, or that there is none."""
        found: SentSchema | None = None
        if self.schemas is not None:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_SCHEMA_S):
                    text = await self.schemas(schema)
                    found = text.kind, text.text, text.references
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # its end says why
            self._process.stdin.write(packed_answer(schema, found))
            await self._process.stdin.drain()

    def ahead_now(self) -> int:
        """Return how many others run first. Raises SearchFailed for one that was cancelled."""
        if self._is_cancelled:
            raise SearchFailed("it was cancelled")
        assert self._ticket is not None
        self.ahead = self.places.ahead(self._ticket)
        return self.ahead

    def cancel(self) -> None:
        """End the search; its request learns that it was cancelled."""
        self._is_cancelled = True
        self._kill()

    async def close(self) -> None:
        """End the process, and give back the place."""
        self._kill()
        if self._process is not None:
            await ended(self._process)
        if self._ticket is not None:
            self.places.leave(self._ticket)
            self._ticket = None

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def _why_ended(self, status: int) -> str:
        limits = self.job.limits
        if self._is_cancelled:
            return "it was cancelled"
        if status == -signal.SIGALRM:
            return f"it has run for {limits.wall_s} s, and no search may run longer"
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it was ended by the system: it may use {limits.cpu_s} s of CPU time"
        if status == -signal.SIGSEGV:
            return f"it needs more than {limits.memory_bytes >> 20} MiB of memory"
        return f"its process has ended with {status}; the console's log may say why"


async def _start(job: Job) -> asyncio.subprocess.Process:
    """Start the process of a job; it ends once its input is closed."""
    try:
        packed = pickle.dumps(job)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise SearchFailed(f"the login of this cluster cannot be handed to a process: {error}") from None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _MAIN,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, **_FEW_ARENAS},
    )  # fmt: skip
    assert process.stdin is not None
    with suppress(ConnectionError):  # its end says why
        process.stdin.write(LENGTH.pack(len(packed)) + packed)
        await process.stdin.drain()
    return process


async def ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process that was killed."""
    try:
        async with asyncio.timeout(_END_S):
            await process.communicate()  # without reading on, a full pipe would keep `wait` from returning
    except TimeoutError:
        _log.error("a search does not end", extra={"pid": process.pid})


class Searches:
    """All searches of a console."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._places: dict[str, Places] = {}
        self._tail_places = Places(TAILS_AT_ONCE, TAILS_OF_NEWCOMERS)
        self._running: dict[str, RunningSearch] = {}

    def of_cluster(self, cluster: str) -> list[RunningSearch]:
        """Return those that run or wait, the oldest first."""
        return [search for search in self._running.values() if search.cluster == cluster]

    def age_s(self, search: RunningSearch) -> float:
        """Return for how long one has waited and run."""
        return self._now_s() - search.since_s

    def get(self, search_id: str) -> RunningSearch | None:
        """Return one of those that run or wait."""
        return self._running.get(search_id)

    @asynccontextmanager
    async def open(
        self, job: Job, cluster: str, viewer: Viewer, schemas: ReadSchema | None = None
    ) -> AsyncIterator[RunningSearch]:
        """Keep a search; it is ended with the block. Raises TooManySearches."""
        self._check(viewer, is_tail=job.kind == "tail")
        places = self._tail_places
        if job.kind != "tail":
            places = self._places.setdefault(cluster, Places(SEARCHES_AT_ONCE))
        if places.waiting >= MOST_WAITING:
            raise TooManySearches(f"{places.waiting} searches wait already: try again later")
        search = RunningSearch(job, cluster, viewer, self._now_s(), places, schemas)
        self._running[search.id] = search
        try:
            yield search
        finally:
            del self._running[search.id]
            await search.close()

    def _check(self, viewer: Viewer, *, is_tail: bool) -> None:
        own = [search for search in self._running.values() if search.viewer.identity == viewer.identity]
        alike = sum((search.job.kind == "tail") is is_tail for search in own)
        if alike >= MOST_OF_A_PERSON:
            kind = "live tails" if is_tail else "searches and exports"
            raise TooManySearches(f"you have {alike} {kind} open, and no more are possible: end one first")
