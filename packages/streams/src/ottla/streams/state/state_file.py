"""A state file: the entries of a partition in SQLite, with the changelog offset they stand for.

Calls block; they are made on a thread, one at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ottla.streams.state.store import NEVER, Contents, Entry

BUSY_TIMEOUT_S: Final = 0.05
"""How long a call waits for a file that is locked: calls to other files wait for it on the same thread."""
MAX_AGE_MS: Final = 12 * 3_600_000
"""How long a file may have been closed: tombstones are gone from a compacted topic after 24 hours."""
KEYS_PER_QUERY: Final = 500

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, value BLOB,
    stamp INTEGER NOT NULL, revision INTEGER NOT NULL, due_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS due ON entries (due_ms) WHERE due_ms >= 0;
CREATE INDEX IF NOT EXISTS tombstones ON entries (stamp) WHERE value IS NULL;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
_UPSERT: Final = """
INSERT INTO entries VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET
    value = excluded.value, stamp = excluded.stamp, revision = excluded.revision, due_ms = excluded.due_ms
WHERE (excluded.stamp, excluded.revision) >= (stamp, revision)
"""


class StateFile:
    """One SQLite file. `identity` says which log it stands for: a file of another log is emptied.

    So is one that was closed longer than `MAX_AGE_MS`: it would keep keys that were removed meanwhile.
    `clock` returns the time of day in ms.
    """

    def __init__(
        self, path: Path, identity: str, clock: Callable[[], int], contents: Contents = Contents.STATE
    ) -> None:
        self._clock = clock
        self._contents = contents
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._begin(identity)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            remove(path)  # the changelog has everything
            self._begin(identity)

    def _begin(self, identity: str) -> None:
        self._database = _open(self._path)
        try:
            if self._fact("identity") != identity or self._is_too_old():
                self.clear(identity)
            self.next_due_ms()  # damage is found here, where the file is made again
        except BaseException:
            self._database.close()
            raise

    @property
    def checkpoint(self) -> int | None:
        """The offset up to which the log is in the file; None: the file is empty."""
        found = self._fact("checkpoint")
        return found if isinstance(found, int) else None

    def clear(self, identity: str | None = None) -> None:
        """Remove all entries, and the checkpoint."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("DELETE FROM entries")
            self._database.execute("DELETE FROM facts WHERE name = 'checkpoint'")
            if identity is not None:
                self._database.execute("REPLACE INTO facts VALUES ('identity', ?)", (identity,))

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Return the entries of keys; those without one are left out."""
        found: dict[bytes, Entry] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            rows = self._database.execute(f"SELECT * FROM entries WHERE key IN ({marks})", some)
            found.update((key, Entry(*rest)) for key, *rest in rows)
        return found

    def write(self, records: Iterable[tuple[bytes, Entry]], checkpoint: int) -> None:
        """Write entries and the checkpoint in one transaction; entries older than the file's are left out."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            if self._contents is Contents.STATE:
                self._database.executemany(_UPSERT, ((key, *entry) for key, entry in records))
            else:
                self._write_table(records)
            self._database.execute("REPLACE INTO facts VALUES ('checkpoint', ?)", (checkpoint,))
            self._note_time()

    def _write_table(self, records: Iterable[tuple[bytes, Entry]]) -> None:
        newest = dict(records)
        keeps_all = self._contents is Contents.GLOBAL_TABLE
        rows = [(key, *entry) for key, entry in newest.items() if keeps_all or entry.value is not None]
        self._database.executemany("REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", rows)
        removed = [(key,) for key, entry in newest.items() if not keeps_all and entry.value is None]
        self._database.executemany("DELETE FROM entries WHERE key = ?", removed)

    def due(self, until_ms: int, limit: int) -> list[bytes]:
        """Return keys that are due, the earliest first."""
        query = "SELECT key FROM entries WHERE due_ms BETWEEN 0 AND ? ORDER BY due_ms LIMIT ?"
        return [key for (key,) in self._database.execute(query, (until_ms, limit))]

    def next_due_ms(self) -> int | None:
        """Return the earliest due time; None without one."""
        (found,) = self._database.execute("SELECT min(due_ms) FROM entries WHERE due_ms >= 0").fetchone()
        return found if isinstance(found, int) and found != NEVER else None

    def forget(self, below: int) -> None:
        """Remove tombstones with stamps below an offset."""
        with self._database:
            self._database.execute("DELETE FROM entries WHERE value IS NULL AND stamp < ?", (below,))

    def tombstones(self) -> dict[bytes, Entry]:
        """Return the entries without a value."""
        rows = self._database.execute("SELECT * FROM entries WHERE value IS NULL")
        return {key: Entry(*rest) for key, *rest in rows}

    def remove(self, entries: Mapping[bytes, Entry]) -> None:
        """Remove entries that have not changed since they were returned."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "DELETE FROM entries WHERE key = ? AND stamp = ? AND revision = ?",
                ((key, entry.stamp, entry.revision) for key, entry in entries.items()),
            )

    def close(self) -> None:
        """Note the time, and close the file."""
        try:
            self._note_time()
        finally:
            self._database.close()

    def _note_time(self) -> None:
        self._database.execute("REPLACE INTO facts VALUES ('used_ms', ?)", (self._clock(),))

    def _is_too_old(self) -> bool:
        used_ms = self._fact("used_ms")
        return isinstance(used_ms, int) and self._clock() - used_ms > MAX_AGE_MS

    def _fact(self, name: str) -> object:
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]


def _open(path: Path) -> sqlite3.Connection:
    # Calls come from one thread of an executor after the other, never from two at once.
    database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        # A crash of the machine may cost the last transactions, not their order: the changelog has them.
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the file is damaged, not only locked, full or out of reach."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def remove(path: Path) -> None:
    """Remove a state file, with the files that SQLite keeps beside it."""
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
