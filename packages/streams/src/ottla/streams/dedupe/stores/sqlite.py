"""A store in a SQLite file, on a thread of its own: the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from ottla.streams.dedupe.errors import DedupeMisconfigured, StoreUnavailable
from ottla.streams.dedupe.store import Batcher, Claim, Scope
from ottla.streams.dedupe.window import DAY_MS, WindowLimits
from ottla.streams.environment import now_ms

PART_LENGTH: Final = 1_000

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS marks"
    " (scope TEXT NOT NULL, identity BLOB NOT NULL, marked_ms INTEGER NOT NULL,"
    " PRIMARY KEY (scope, identity)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS claims (scope TEXT NOT NULL, identity BLOB NOT NULL, owner TEXT NOT NULL,"
    " until_ms INTEGER NOT NULL, PRIMARY KEY (scope, identity)) WITHOUT ROWID",
)
_BY_TIME: Final = "CREATE INDEX IF NOT EXISTS marks_by_time ON marks (marked_ms)"
_BY_SCOPE: Final = "CREATE INDEX IF NOT EXISTS marks_by_scope ON marks (scope, marked_ms)"
_PURGED_AT_ONCE: Final = 5_000


class SqliteStore:
    """Remembers identities in a file on this machine, by default for a day; the durable default.

    Members on one machine may share the file. Marks of concurrent handlers are committed together, with one
    fsync (`synchronous="full"`, which survives a power failure) or without (`"normal"`, which survives the
    end of the process). `max_bytes` limits the file, 0 does not. While the file is locked for longer than
    `busy_timeout_ms`, full, gone or damaged, calls raise StoreUnavailable.
    """

    claims = True
    has_topic_scope = True
    is_remote = True

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_ms: int | None = DAY_MS,
        max_ids: int | None = None,
        max_bytes: int = 0,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout_ms: int = 1_000,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise DedupeMisconfigured(f"synchronous must be 'full' or 'normal', not {synchronous!r}")
        self._limits = WindowLimits(ttl_ms, max_ids)
        settings = FileSettings(max_bytes, synchronous, busy_timeout_ms)
        # Absolute, because the file may be opened again after the working directory has changed.
        self._file = MarksFile(Path(os.path.abspath(path)), self._limits, settings)
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._batcher: Batcher[Operation, Any] | None = None
        self._open = AsyncExitStack()

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""
        return self._limits

    def __str__(self) -> str:
        return str(self._file)

    async def __aenter__(self) -> Self:
        self._file.check_folder()
        self._thread = ThreadPoolExecutor(1, "ottla-dedupe-sqlite")
        self._open.callback(self._thread.shutdown)
        self._open.push_async_callback(self._on_thread, self._file.close)
        self._batcher = await self._open.enter_async_context(Batcher(self._run))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(None, None, None)

    async def assign(self, scope: Scope) -> None:
        """Do nothing: what other members marked is in the file, if they share it."""

    def revoke(self, scope: Scope) -> None:
        """Do nothing: marks are in the file."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        found: set[bytes] = await self._submit(MarksFile.seen, scope, identities, self._clock(), writes=False)
        return found

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities, all or none, and end the claims on them."""
        await self._submit(MarksFile.mark, scope, identities, self._clock())

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Mark an identity as being handled by `owner`, unless it is marked or claimed by another one."""
        found: Claim = await self._submit(MarksFile.claim, scope, identity, owner, self._clock(), lease_ms)
        return found

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """End a claim of `owner` without a mark."""
        await self._submit(MarksFile.release, scope, identity, owner)

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""
        part: list[bytes] = []
        after: bytes | None = None
        while part or after is None:
            part = await self._submit(MarksFile.part, scope, after, PART_LENGTH, self._clock(), writes=False)
            yield part
            after = part[-1] if part else b""

    async def _submit(
        self, method: Callable[..., Any], scope: Scope, *arguments: object, writes: bool = True
    ) -> Any:
        assert self._batcher is not None, "use the store in `async with`"
        call = partial(_call, method, str(scope), arguments)
        return await self._batcher.submit(Operation(call, writes))

    async def _run(self, operations: list[Operation]) -> Sequence[Any]:
        results: Sequence[Any] = await self._on_thread(self._file.run, operations)
        return results

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _call(method: Callable[..., Any], scope: str, arguments: tuple[object, ...], file: MarksFile) -> Any:
    return method(file, scope, *arguments)


@dataclass(frozen=True, slots=True)
class Operation:
    """A call of a method of MarksFile, and whether it writes."""

    call: Callable[[MarksFile], Any]
    writes: bool = True


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How the file is written."""

    max_bytes: int = 0
    synchronous: str = "full"
    busy_timeout_ms: int = 1_000


class MarksFile:
    """Marks and claims in one SQLite file, opened when it is first used and again after errors."""

    def __init__(self, path: Path, limits: WindowLimits, settings: FileSettings) -> None:
        self._path = path
        self._limits = limits
        self._settings = settings
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._uses_claims = False
        self._marked_since_trim: dict[str, int] = {}

    def __str__(self) -> str:
        return str(self._path)

    def check_folder(self) -> None:
        """Raise DedupeMisconfigured if there is no folder for the file: it would not come by waiting."""
        if not self._path.parent.is_dir():
            raise DedupeMisconfigured(
                f"the folder of the dedupe store {self._path} does not exist: make it, or choose another file"
            )
        if self._path.is_dir():
            raise DedupeMisconfigured(f"the dedupe store {self._path} is a folder: name a file in it")

    def run(self, operations: Sequence[Operation]) -> list[Any]:
        """Run operations in one transaction; after an error none of them has had an effect.

        Raises StoreUnavailable if the file is locked, full, gone or damaged.
        """
        try:
            connection = self._opened()
            if any(operation.writes for operation in operations):
                connection.execute("BEGIN IMMEDIATE")
            results = [operation.call(self) for operation in operations]
            if connection.in_transaction:
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreUnavailable(str(self), str(error)) from error
        return results

    def close(self) -> None:
        """Close the file; a transaction under way is rolled back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def seen(self, scope: str, identities: Collection[bytes], now_ms: int) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        query = "SELECT 1 FROM marks WHERE scope = ? AND identity = ? AND marked_ms > ?"
        oldest_ms = self._limits.oldest_ms(now_ms)
        return {
            identity
            for identity in identities
            if self._execute(query, (scope, identity, oldest_ms)).fetchone() is not None
        }

    def mark(self, scope: str, identities: Collection[bytes], now_ms: int) -> None:
        """Remember identities and end the claims on them; forget marks outside of the window."""
        self._purge(scope, len(identities), now_ms)
        self._many(
            "INSERT INTO marks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET marked_ms = excluded.marked_ms",
            [(scope, identity, now_ms) for identity in identities],
        )
        if self._uses_claims:
            claimed = [(scope, identity) for identity in identities]
            self._many("DELETE FROM claims WHERE scope = ? AND identity = ?", claimed)

    def claim(self, scope: str, identity: bytes, owner: str, now_ms: int, lease_ms: int) -> Claim:
        """Claim an identity that is not marked, and on which no other owner has a claim that lasts."""
        self._uses_claims = True
        if self.seen(scope, (identity,), now_ms):
            return Claim.DONE
        taken = self._execute(
            "INSERT INTO claims VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET owner = excluded.owner, until_ms = excluded.until_ms"
            " WHERE claims.until_ms <= ? OR claims.owner = excluded.owner",
            (scope, identity, owner, now_ms + lease_ms, now_ms),
        )
        return Claim.NEW if taken.rowcount == 1 else Claim.TAKEN

    def release(self, scope: str, identity: bytes, owner: str) -> None:
        """End a claim of `owner`."""
        query = "DELETE FROM claims WHERE scope = ? AND identity = ? AND owner = ?"
        self._execute(query, (scope, identity, owner))

    def part(self, scope: str, after: bytes | None, length: int, now_ms: int) -> list[bytes]:
        """Return identities within the window in ascending order, from the one after `after`."""
        query = "SELECT identity FROM marks WHERE scope = ? AND identity > ? AND marked_ms > ?"
        if after is None:
            query, after = query.replace("identity > ?", "identity >= ?"), b""
        found = self._execute(
            f"{query} ORDER BY identity LIMIT ?", (scope, after, self._limits.oldest_ms(now_ms), length)
        )
        return [identity for (identity,) in found]

    def _purge(self, scope: str, arriving: int, now_ms: int) -> None:
        """Delete marks outside of the window, a bounded number at a time."""
        self._execute(
            "DELETE FROM marks WHERE (scope, identity) IN"
            " (SELECT scope, identity FROM marks WHERE marked_ms <= ? LIMIT ?)",
            (self._limits.oldest_ms(now_ms), _PURGED_AT_ONCE),
        )
        max_ids = self._limits.max_ids
        if max_ids is None:
            return
        marked = self._marked_since_trim[scope] = self._marked_since_trim.get(scope, 0) + arriving
        if marked > max_ids // 10:
            self._marked_since_trim[scope] = 0
            self._trim(scope, max(1, max_ids - arriving))

    def _trim(self, scope: str, length: int) -> None:
        """Delete all marks of a scope but the newest ones, and those of the same time as the last of them."""
        self._execute(
            "DELETE FROM marks WHERE scope = ? AND marked_ms <"
            " (SELECT marked_ms FROM marks WHERE scope = ? ORDER BY marked_ms DESC LIMIT 1 OFFSET ?)",
            (scope, scope, length - 1),
        )

    def _opened(self) -> sqlite3.Connection:
        """Return the connection; open it, unless the file has vanished while the store was in use."""
        if self._inode is not None:
            # A deleted file can still be written through its open handle, and everything in it is lost.
            try:
                inode = os.stat(self._path).st_ino
            except FileNotFoundError:
                raise FileNotFoundError(
                    "the file is gone: put it back, or restart to begin with an empty one"
                ) from None
            if inode != self._inode:
                self.close()
        if self._connection is None:
            self._connection = self._open()
            self._inode = os.stat(self._path).st_ino
        return self._connection

    def _open(self) -> sqlite3.Connection:
        timeout_s = self._settings.busy_timeout_ms / 1_000
        connection = sqlite3.connect(self._path, timeout=timeout_s, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._settings.synchronous}")
            if self._settings.max_bytes:
                with closing(connection.execute("PRAGMA page_size")) as found:
                    pages = self._settings.max_bytes // int(found.fetchone()[0])
                connection.execute(f"PRAGMA max_page_count = {max(1, pages)}")
            for statement in (*_TABLES, _BY_TIME, *([_BY_SCOPE] if self._limits.max_ids else [])):
                connection.execute(statement)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _execute(self, query: str, values: Sequence[object]) -> sqlite3.Cursor:
        assert self._connection is not None, "methods run inside of run()"
        return self._connection.execute(query, values)

    def _many(self, query: str, rows: Sequence[Sequence[object]]) -> None:
        assert self._connection is not None, "methods run inside of run()"
        self._connection.executemany(query, rows)
