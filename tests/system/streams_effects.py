"""The table that handlers change, and the marks of what they did: SQLite or PostgreSQL, one transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from streams_load import Change

from ottla.consumer import ConsumerRecord
from ottla.streams.dedupe import SqlMarks

_TABLE = "CREATE TABLE IF NOT EXISTS rows_of_keys (key INTEGER PRIMARY KEY, born INTEGER, changed INTEGER)"


class WrongRow(Exception):
    """A change met a row that was not as the changes before it leave it."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"change {change.change} of key {change.key}: no row to {change.verb}")


class Database(Protocol):
    """Where rows and marks are."""

    def create(self) -> None:
        """Create the tables."""

    def apply(self, records: Sequence[ConsumerRecord], changes: Sequence[Change]) -> None:
        """Apply changes that are not marked, in one transaction with their marks."""

    def rows(self) -> dict[int, tuple[int, int]]:
        """Return all rows: by key the change that made the row, and the last one."""

    def marks(self) -> int:
        """Return the number of marks."""


def database(address: str) -> Database:
    """Return the database of an address: a path of SQLite, or a dsn."""
    return _Postgres(address) if address.startswith("host=") else _Sqlite(address)


class _Tables:
    """The statements of both databases; `place` is the driver's placeholder."""

    def __init__(self, place: str) -> None:
        self._marks = SqlMarks()
        self._insert = f"INSERT INTO rows_of_keys VALUES ({place}, {place}, {place})"
        self._update = f"UPDATE rows_of_keys SET changed = {place} WHERE key = {place} AND changed = {place}"
        self._delete = f"DELETE FROM rows_of_keys WHERE key = {place} AND changed = {place}"

    def _create(self, connection: Any) -> None:
        connection.cursor().execute(_TABLE)
        self._marks.create_table(connection)

    def _apply_all(
        self, connection: Any, records: Sequence[ConsumerRecord], changes: Sequence[Change]
    ) -> None:
        for record, change in zip(records, changes, strict=True):
            if self._marks.first_time(connection, record):
                self._apply_one(connection.cursor(), change)

    def _apply_one(self, cursor: Any, change: Change) -> None:
        key, _, number = change
        if change.verb == "insert":
            cursor.execute(self._insert, (key, number, number))
        elif change.verb == "update":
            cursor.execute(self._update, (number, key, number - 1))
        else:
            cursor.execute(self._delete, (key, number - 1))
        if cursor.rowcount != 1:
            raise WrongRow(change)

    def _rows(self, connection: Any) -> dict[int, tuple[int, int]]:
        cursor = connection.cursor()
        cursor.execute("SELECT key, born, changed FROM rows_of_keys")
        return {int(key): (int(born), int(changed)) for key, born, changed in cursor.fetchall()}

    def _count(self, connection: Any) -> int:
        cursor = connection.cursor()
        cursor.execute(f"SELECT count(*) FROM {self._marks.table}")
        return int(cursor.fetchone()[0])


class _Sqlite(_Tables):
    """A file that all members share; one transaction writes at a time."""

    def __init__(self, path: str) -> None:
        super().__init__("?")
        self._path = path
        self._of_thread = threading.local()
        self._one_at_a_time = threading.Lock()

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            found = self._of_thread.connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = OFF")  # processes are killed, not the machine
        return found

    def create(self) -> None:
        self._create(self._connection())

    def apply(self, records: Sequence[ConsumerRecord], changes: Sequence[Change]) -> None:
        connection = self._connection()
        with self._one_at_a_time:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._apply_all(connection, records, changes)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def rows(self) -> dict[int, tuple[int, int]]:
        return self._rows(self._connection())

    def marks(self) -> int:
        return self._count(self._connection())


class _Postgres(_Tables):
    """A server; each thread has a connection."""

    def __init__(self, dsn: str) -> None:
        super().__init__("%s")
        self._dsn = dsn
        self._of_thread = threading.local()

    def _connection(self) -> Any:
        found = getattr(self._of_thread, "connection", None)
        if found is None or found.closed:
            import psycopg

            found = self._of_thread.connection = psycopg.connect(self._dsn)
        return found

    def create(self) -> None:
        with self._connection() as connection:
            self._create(connection)

    def apply(self, records: Sequence[ConsumerRecord], changes: Sequence[Change]) -> None:
        connection = self._connection()
        with connection.transaction():
            self._apply_all(connection, records, changes)

    def rows(self) -> dict[int, tuple[int, int]]:
        return self._rows(self._connection())

    def marks(self) -> int:
        return self._count(self._connection())
