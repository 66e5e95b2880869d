"""A keyed store in a SQLite file: larger than memory, and restored from its own checkpoint.

The file holds what was read back from the changelog, and nothing else: so it is never ahead of the changelog,
not even of a transaction that is aborted later. An entry is in memory beside the file until it has come back.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from ottla.streams.environment import environment
from ottla.streams.state.state_file import StateFile, is_damage, remove
from ottla.streams.state.store import ELSEWHERE, NEVER, Contents, Elsewhere, Entry, StoreClosed, StoreDamaged

T = TypeVar("T")

MAX_UNAPPLIED_ENTRIES: Final = 10_000
CACHED_ENTRIES: Final = 10_000
RETRY_MS: Final = 500

_log = logging.getLogger(__name__)


class SqliteStore:
    """The entries of a partition in a file; `executor` has one thread, which all files may share.

    A file that is locked, full or gone stops nothing but the calls to this store: they wait until it works
    again, and one line in the log says so.
    """

    def __init__(
        self,
        path: Path,
        identity: str,
        executor: Executor,
        contents: Contents = Contents.STATE,
        *,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock or environment().now_ms  # bound here: it is read on a thread
        self._path = path
        self._identity = identity
        self._executor = executor
        self._contents = contents
        self._file: StateFile | None = None
        self._checkpoint: int | None = None
        self._next_due_ms: int | None = None
        self._unapplied: dict[bytes, Entry] = {}
        self._has_room = asyncio.Event()
        self._cache: OrderedDict[bytes, Entry | None] = OrderedDict()
        self._wanted: dict[bytes, asyncio.Future[Entry | None]] = {}
        self._is_reading = False
        self._is_failing = False
        self._is_given_up = False
        self._is_whole = asyncio.Event()
        """Whether the file has everything up to its checkpoint: not while a damaged one is rebuilt."""
        self._damages = 0
        self.on_damage: Callable[[], None] = _nothing

    async def open(self) -> None:
        """Open the file; a damaged one, and one of another log, is emptied."""
        await self._on_file(self._open)
        self._has_room.set()
        self._is_whole.set()

    async def rebuild(self) -> None:
        """Put an empty file in place of a damaged one. Reads wait for `go_on`."""
        is_replaced = False
        while not is_replaced:
            await asyncio.sleep(
                RETRY_MS / 1_000
            )  # a disk that damages each file must not keep the thread busy
            with suppress(StoreDamaged):
                await self._on_file(self._replace)
                is_replaced = True
        self._cache.clear()

    def go_on(self) -> None:
        """Resume reads: the file has everything again."""
        self._is_whole.set()

    @property
    def checkpoint(self) -> int | None:
        """The changelog offset up to which the file has everything."""
        return self._checkpoint

    @property
    def next_due_ms(self) -> int | None:
        """No entry is due before."""
        return self._next_due_ms

    async def clear(self) -> None:
        """Empty the file."""
        await self._on_file(self._opened().clear)
        self._checkpoint = self._next_due_ms = None
        self._cache.clear()

    async def get(self, key: bytes) -> Entry | None:
        """Return the entry of a key; keys asked for meanwhile are read in one query."""
        found = self.at_hand(key)
        return await self._persisting(lambda: self._read(key)) if found is ELSEWHERE else found

    def at_hand(self, key: bytes) -> Entry | Elsewhere | None:
        """Return the entry of a key that was used lately; ELSEWHERE for one that the file may have."""
        if key in self._unapplied:
            return self._unapplied[key]
        if key not in self._cache:
            return ELSEWHERE
        self._cache.move_to_end(key)
        return self._cache[key]

    @property
    def has_room(self) -> bool:
        """Whether few enough entries wait to come back from the changelog."""
        return self._has_room.is_set()

    def put(self, key: bytes, entry: Entry) -> None:
        """Replace an entry, in memory until it comes back from the changelog."""
        self._unapplied[key] = entry
        self._remember(key, entry)
        self._note_due(entry)
        if len(self._unapplied) >= MAX_UNAPPLIED_ENTRIES:
            self._has_room.clear()

    async def apply(self, records: Iterable[tuple[bytes, Entry]], next_offset: int) -> None:
        """Write records of the changelog and the offset after them to the file."""
        some = list(records)
        await self._on_file(lambda: self._opened().write(some, next_offset))
        self._checkpoint = next_offset
        for key, entry in some:
            self._applied(key, entry)
        if len(self._unapplied) < MAX_UNAPPLIED_ENTRIES:
            self._has_room.set()

    async def due(self, until_ms: int, limit: int) -> list[bytes]:
        """Return keys that are due in the file or in memory."""
        in_file, next_in_file = await self._persistently(
            lambda: self._due_in_file(until_ms, limit + len(self._unapplied))
        )
        unapplied = {key: entry.due_ms for key, entry in self._unapplied.items() if entry.due_ms != NEVER}
        keys = [key for key in in_file if key not in self._unapplied]
        keys += [key for key, due_ms in unapplied.items() if due_ms <= until_ms]
        times = [*unapplied.values(), *([] if next_in_file is None else [next_in_file])]
        self._next_due_ms = min(times, default=None)
        return keys[:limit]

    async def forget(self, below: int) -> None:
        """Remove tombstones below an offset."""
        await self._persistently(lambda: self._opened().forget(below))
        dead = [k for k, v in self._cache.items() if v is not None and v.value is None and v.stamp < below]
        for key in dead:
            del self._cache[key]

    async def tombstones(self) -> dict[bytes, Entry]:
        """Return the entries without a value."""
        return await self._persistently(lambda: self._opened().tombstones())

    async def entries(self, keys: Collection[bytes]) -> dict[bytes, Entry]:
        """Return the entries of keys; those without one are left out."""
        wanted = list(keys)
        return await self._persistently(lambda: self._opened().read(wanted))

    async def remove(self, entries: Mapping[bytes, Entry]) -> None:
        """Remove entries that have not changed since they were returned."""
        await self._persistently(lambda: self._opened().remove(entries))
        for key in entries:
            self._cache.pop(key, None)

    async def room(self) -> None:
        """Return once few enough entries wait to come back from the changelog."""
        if not self._has_room.is_set():
            await self._has_room.wait()

    def give_up(self) -> None:
        """Make calls that wait for the file raise StoreClosed: the partition goes to another member."""
        self._is_given_up = True
        self._has_room.set()
        self._is_whole.set()

    async def close(self) -> None:
        """Close the file."""
        self.give_up()
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):  # what is in the file stands
                await asyncio.get_running_loop().run_in_executor(self._executor, file.close)

    # --- on the thread

    def _open(self) -> None:
        self._file = StateFile(self._path, self._identity, self._clock, self._contents)
        self._checkpoint = self._file.checkpoint
        self._next_due_ms = self._file.next_due_ms()

    def _replace(self) -> None:
        if self._file is not None:
            with suppress(sqlite3.Error):
                self._file.close()
        remove(self._path)
        self._open()

    def _read_in_file(self, keys: list[bytes]) -> dict[bytes, Entry]:
        return self._opened().read(keys)

    def _due_in_file(self, until_ms: int, limit: int) -> tuple[list[bytes], int | None]:
        file = self._opened()
        return file.due(until_ms, limit), file.next_due_ms()

    # --- on the loop

    def _opened(self) -> StateFile:
        if self._file is None:
            raise StoreClosed(self._path)
        return self._file

    def _applied(self, key: bytes, entry: Entry) -> None:
        waiting = self._unapplied.get(key)
        if waiting is not None and waiting.age <= entry.age:
            del self._unapplied[key]
        cached = self._cache.get(key)
        if key in self._cache and (cached is None or cached.age < entry.age):
            self._cache[key] = entry
        self._note_due(entry)

    def _note_due(self, entry: Entry) -> None:
        if entry.due_ms != NEVER and (self._next_due_ms is None or entry.due_ms < self._next_due_ms):
            self._next_due_ms = entry.due_ms

    def _remember(self, key: bytes, entry: Entry | None) -> None:
        self._cache[key] = entry
        self._cache.move_to_end(key)
        if len(self._cache) > CACHED_ENTRIES:
            self._cache.popitem(last=False)

    async def _read(self, key: bytes) -> Entry | None:
        future = self._wanted.get(key)
        if future is None:
            future = self._wanted[key] = asyncio.get_running_loop().create_future()
        if not self._is_reading:
            self._read_wanted()
        return await asyncio.shield(future)

    def _read_wanted(self) -> None:
        """Read all wanted keys in one call to the thread; those that are asked for meanwhile come next."""
        wanted, self._wanted = self._wanted, {}
        self._is_reading = True
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._executor, self._read_in_file, list(wanted))
        reading.add_done_callback(partial(self._was_read, wanted, self._damages))

    def _was_read(
        self,
        wanted: dict[bytes, asyncio.Future[Entry | None]],
        damages: int,
        done: asyncio.Future[dict[bytes, Entry]],
    ) -> None:
        # A callback, not a continuation: entries enter the cache in the order in which the thread read and
        # wrote them, so that an older one never replaces what `apply` brought.
        self._is_reading = False
        error = None if done.cancelled() else done.exception()
        if error is None and damages != self._damages:  # it may have read the empty file of a rebuild
            error = StoreDamaged(self._path, None)
        for key, future in wanted.items():
            if future.done():
                continue
            if error is not None or done.cancelled():
                future.set_exception(error or sqlite3.OperationalError("the read was cancelled"))
                future.exception()  # its caller may be gone
                continue
            entry = done.result().get(key)
            self._remember(key, entry)
            future.set_result(entry)
        if self._wanted:
            self._read_wanted()

    async def _persistently(self, call: Callable[[], T]) -> T:
        """Call on the thread, as `_persisting` does."""
        return await self._persisting(partial(self._on_thread, call))

    async def _persisting(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call that reads the file, once the file is whole."""
        while True:
            if not self._is_whole.is_set():
                await self._is_whole.wait()
            damages = self._damages
            try:
                result = await self._until_it_works(call)
            except StoreDamaged:
                continue
            if damages == self._damages:  # otherwise it may have read the empty file of a rebuild
                return result

    async def _on_file(self, call: Callable[[], T]) -> T:
        """Call on the thread. Raises StoreDamaged."""
        return await self._until_it_works(partial(self._on_thread, call))

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def _until_it_works(self, call: Callable[[], Awaitable[T]]) -> T:
        damages = self._damages
        while True:
            try:
                result = await call()
            except sqlite3.ProgrammingError:  # a fault of ours: waiting does not help
                raise
            except sqlite3.Error as error:
                if self._is_given_up:
                    raise StoreClosed(self._path) from error
                if is_damage(error):
                    raise self._damaged(error, damages) from error
                self._note_failure(error)
                await asyncio.sleep(RETRY_MS / 1_000)
                continue
            if self._is_failing:
                self._is_failing = False
                _log.info("a state file works again", extra={"file": str(self._path)})
            return result

    def _damaged(self, error: sqlite3.Error, damages: int) -> StoreDamaged:
        """Note that the file is damaged, and report it: once, of all calls that meet the same damage."""
        damaged = StoreDamaged(self._path, error)
        if damages == self._damages:
            self._damages += 1
            self._is_whole.clear()
            _log.error(
                "a state file is damaged, and rebuilt from its topic: records that need it wait for that",
                extra={"file": str(self._path), "reason": str(error)},
            )
            self.on_damage()
        return damaged

    def _note_failure(self, error: sqlite3.Error) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.error(
                "a state file does not work: records that need it wait until it does",
                extra={"file": str(self._path), "reason": str(error)},
            )


def _nothing() -> None:
    """Do nothing."""
