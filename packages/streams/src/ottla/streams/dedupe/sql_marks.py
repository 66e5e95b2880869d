"""Marks in the user's own database, in the transaction of the effect: both are there, or neither is."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ottla.consumer.record import ConsumerRecord
from ottla.streams.dedupe.errors import DedupeMisconfigured, MissingIdentity
from ottla.streams.dedupe.identity import Identity, by_message_id, shortened
from ottla.streams.environment import now_ms

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Cursor(Protocol):
    """The part of a DB-API cursor that is used."""

    @property
    def rowcount(self) -> int: ...
    def execute(self, query: Any, parameters: Any = ..., /) -> Any: ...
    def close(self) -> Any: ...


class Connection(Protocol):
    """The part of a DB-API connection that is used, such as those of sqlite3 and psycopg."""

    def cursor(self) -> Any: ...


class AsyncConnection(Protocol):
    """The part of psycopg's AsyncConnection that is used."""

    async def execute(self, query: Any, params: Any = ..., /) -> Any: ...


class SqlMarks:
    """Identities of handled records in a table of the database that the handler writes to.

    Call `first_time` in the transaction of the effect. It commits nothing itself: the mark is there exactly
    if the effect is, after every crash. Works with SQLite and PostgreSQL.
    """

    def __init__(self, table: str = "ottla_marks", *, identity: Identity | None = None) -> None:
        if not _NAME.fullmatch(table):
            raise DedupeMisconfigured(f"table must be a plain name such as ottla_marks, not {table!r}")
        self.table = table
        self.identity = identity or by_message_id()

    def create_table(self, connection: Connection) -> None:
        """Create the table if it does not exist, in the connection's transaction."""
        self._run(connection, self._creation(_parameter_style(connection)))

    async def create_table_async(self, connection: AsyncConnection) -> None:
        """Create the table if it does not exist, in the connection's transaction."""
        await connection.execute(self._creation("%s"))

    def first_time(self, connection: Connection, record: ConsumerRecord | bytes | str) -> bool:
        """Mark a record, or an identity, in the connection's transaction; return False if it is marked.

        Another transaction that has marked the same identity and not ended yet is waited for. Raises
        MissingIdentity for a record without an identity, besides the errors of the database.
        """
        place = _parameter_style(connection)
        return self._run(connection, self._insertion(place), self._row(record)) == 1

    async def first_time_async(
        self, connection: AsyncConnection, record: ConsumerRecord | bytes | str
    ) -> bool:
        """Do what `first_time` does, on an asynchronous connection of psycopg."""
        cursor = await connection.execute(self._insertion("%s"), self._row(record))
        return int(cursor.rowcount) == 1

    def forget(self, connection: Connection, before_ms: int) -> int:
        """Delete marks made before a time of day, in ms since 1970; return how many."""
        query = f"DELETE FROM {self.table} WHERE marked_ms < {_parameter_style(connection)}"
        return self._run(connection, query, (before_ms,))

    def _creation(self, place: str) -> str:
        binary = "BLOB" if place == "?" else "BYTEA"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table}"
            f" (identity {binary} NOT NULL, topic TEXT NOT NULL, marked_ms BIGINT NOT NULL,"
            " PRIMARY KEY (identity, topic))"
        )

    def _insertion(self, place: str) -> str:
        return f"INSERT INTO {self.table} VALUES ({place}, {place}, {place}) ON CONFLICT DO NOTHING"

    def _row(self, record: ConsumerRecord | bytes | str) -> tuple[bytes, str, int]:
        if isinstance(record, str):
            record = record.encode()
        if isinstance(record, bytes):
            return shortened(record), "", now_ms()
        found = self.identity.of(record)
        if found is None:
            raise MissingIdentity(record.topic, record.partition, record.offset, self.identity.name)
        return found, record.topic, now_ms()

    def _run(self, connection: Connection, query: str, values: Sequence[object] = ()) -> int:
        cursor: Cursor = connection.cursor()
        try:
            cursor.execute(query, values)
            return cursor.rowcount
        finally:
            cursor.close()


def _parameter_style(connection: object) -> str:
    """Return the placeholder of a connection's driver."""
    for kind in type(connection).__mro__:
        driver = sys.modules.get(kind.__module__.partition(".")[0])
        style = getattr(driver, "paramstyle", None)
        if style in _PLACEHOLDERS:
            return _PLACEHOLDERS[style]
    name = type(connection).__module__
    raise DedupeMisconfigured(f"SqlMarks knows connections of sqlite3 and psycopg, not of {name}")
