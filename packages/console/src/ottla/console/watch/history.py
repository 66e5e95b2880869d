"""The history of a number: kept in SQLite by the minute for a day, by ten minutes for two weeks.

    history = History(path)
    await history.add(at_s, {Series("local", "lag", "billing"): 17})
    await history.read(Series("local", "lag", "billing"), since_s)

A point has the lowest, the highest and the mean value of its minute, so that a peak stays visible when days
are drawn. A row takes 27 bytes: 1,000 series need 89 MB for two weeks.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

MINUTE_S: Final = 60
COARSE_S: Final = 600
FINE_FOR_S: Final = 86_400
KEPT_FOR_S: Final = 14 * 86_400
MOST_SERIES: Final = 5_000
"""Clusters with more groups and topics are watched in part."""
MOST_BYTES: Final = 1 << 30
"""The size of the file; what does not fit leaves a gap."""
_WAIT_S: Final = 10.0

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    UNIQUE (cluster, kind, name)
);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, at_s INTEGER NOT NULL, low REAL NOT NULL, high REAL NOT NULL, mean REAL NOT NULL,
    PRIMARY KEY (series, at_s)
) WITHOUT ROWID;
"""


class Series(NamedTuple):
    """The name of a number: its cluster, what it counts, and of which group or topic."""

    cluster: str
    kind: str
    name: str


class Point(NamedTuple):
    """A number at a time: lowest, highest and mean value of the minute, or the ten, that begin there."""

    at_s: int
    low: float
    high: float
    mean: float


class History:
    """Points of many series in one file; its work is done on a thread, one statement at a time."""

    def __init__(self, path: Path | None, *, most_series: int = MOST_SERIES) -> None:
        """`path` None keeps everything in memory, for as long as the console runs."""
        self._path = path
        self._most_series = most_series
        self._thread = ThreadPoolExecutor(1, "console-history")
        """One thread for all: work that is given up while it runs ends before the next begins."""
        self._database: sqlite3.Connection | None = None
        self._ids: dict[Series, int] = {}
        self._series: int | None = None
        """Series of the file, also those that no look has any more; None: to be counted."""

    async def __aenter__(self) -> History:
        await self._on_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._on_thread(self._close)
        finally:
            self._thread.shutdown(wait=False)

    async def _on_thread(self, do: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do, *arguments)

    async def add(self, at_s: int, values: Mapping[Series, float]) -> None:
        """Add the values of one moment."""
        await self._on_thread(self._add, at_s // MINUTE_S * MINUTE_S, values)

    async def read(self, series: Series, since_s: int) -> list[Point]:
        """Return the points of a series from a time on, in order."""
        return await self._on_thread(self._read, series, since_s)

    async def run(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Do something else with the file, in one transaction. Raises sqlite3.Error."""
        return await self._on_thread(self._run, change)

    async def thin(self, now_s: int) -> None:
        """Merge minutes older than a day into ten, and drop points older than two weeks."""
        await self._on_thread(self._thin, now_s)

    # --- on a thread

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            raise RuntimeError("the history is used outside of its `async with`")
        return self._database

    def _open(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = sqlite3.connect(
            ":memory:" if self._path is None else self._path, timeout=_WAIT_S, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.executescript(_SCHEMA)
        with closing(self._database.execute("PRAGMA page_size")) as found:
            page_bytes = int(found.fetchone()[0])
        self._database.execute(f"PRAGMA max_page_count = {MOST_BYTES // page_bytes}")

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _run(self, change: Callable[[sqlite3.Connection], T]) -> T:
        with self._opened as database:
            return change(database)

    def _add(self, minute_s: int, values: Mapping[Series, float]) -> None:
        try:
            self._insert(minute_s, values)
        except sqlite3.Error:
            self._forget()  # ids of new series were rolled back, and others will get them
            raise

    def _insert(self, minute_s: int, values: Mapping[Series, float]) -> None:
        with self._opened as database:
            rows = [(self._id(series), minute_s, value, value, value) for series, value in values.items()]
            database.executemany(
                "INSERT INTO points VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "low = min(low, excluded.low), high = max(high, excluded.high), "
                "mean = (mean + excluded.mean) / 2",
                [row for row in rows if row[0] is not None],
            )

    def _id(self, series: Series) -> int | None:
        """Return the number of a series; None for one more than there may be."""
        if (known := self._ids.get(series)) is not None:
            return known
        find = "SELECT id FROM series WHERE cluster = ? AND kind = ? AND name = ?"
        with closing(self._opened.execute(find, series)) as found:
            row = found.fetchone()
        if row is None:
            if self._count() >= self._most_series:
                return None
            row = (
                self._opened.execute(
                    "INSERT INTO series (cluster, kind, name) VALUES (?, ?, ?)", series
                ).lastrowid,
            )
            self._series = self._count() + 1
        self._ids[series] = int(row[0])
        return self._ids[series]

    def _count(self) -> int:
        if self._series is None:
            with closing(self._opened.execute("SELECT count(*) FROM series")) as found:
                self._series = int(found.fetchone()[0])
        return self._series

    def _forget(self) -> None:
        self._ids.clear()
        self._series = None

    def _read(self, series: Series, since_s: int) -> list[Point]:
        rows = self._opened.execute(
            "SELECT at_s, low, high, mean FROM points JOIN series ON series.id = points.series "
            "WHERE cluster = ? AND kind = ? AND name = ? AND at_s >= ? ORDER BY at_s",
            (*series, since_s),
        )
        return [Point(*row) for row in rows]

    def _thin(self, now_s: int) -> None:
        """Merge what has become older than a day since the last time; `user_version` has that time.

        The rows of a series stand together, so each series is asked for its own few: all others stay unread.
        """
        fine_from_s = (now_s - FINE_FOR_S) // COARSE_S * COARSE_S
        with self._opened as database:
            with closing(database.execute("PRAGMA user_version")) as found:
                merged_to_s = int(found.fetchone()[0]) * COARSE_S
            with closing(database.execute("SELECT id FROM series")) as found:
                ids = [int(row[0]) for row in found]
            oldest_s = now_s - KEPT_FOR_S
            database.executemany(
                "DELETE FROM points WHERE series = ? AND at_s < ?", [(series, oldest_s) for series in ids]
            )
            for series in ids:
                self._merge(database, series, merged_to_s, fine_from_s)
            database.execute(
                "DELETE FROM series WHERE NOT EXISTS (SELECT 1 FROM points WHERE series = series.id)"
            )
            database.execute(f"PRAGMA user_version = {fine_from_s // COARSE_S}")
        self._forget()

    @staticmethod
    def _merge(database: sqlite3.Connection, series: int, from_s: int, to_s: int) -> None:
        span = (series, from_s, to_s)
        merged = database.execute(
            f"SELECT series, at_s / {COARSE_S} * {COARSE_S}, min(low), max(high), avg(mean) FROM points "
            f"WHERE series = ? AND at_s >= ? AND at_s < ? GROUP BY at_s / {COARSE_S}",
            span,
        ).fetchall()
        database.execute("DELETE FROM points WHERE series = ? AND at_s >= ? AND at_s < ?", span)
        database.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", merged)
