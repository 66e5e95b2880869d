"""The history of numbers: kept by the minute, merged and dropped with age, of a bounded number of series."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from pathlib import Path

import pytest

from ottla.console.watch.history import COARSE_S, FINE_FOR_S, KEPT_FOR_S, MINUTE_S, History, Point, Series

LAG = Series("local", "lag", "billing")
NOW_S = 1_767_225_600


async def test_points_of_a_minute_keep_its_lowest_and_its_highest_value(tmp_path: Path) -> None:
    path = tmp_path / "state" / "console.sqlite"
    async with History(path) as history:
        await history.add(NOW_S, {LAG: 10})
        await history.add(NOW_S + 30, {LAG: 30})
        await history.add(NOW_S + 60, {LAG: 5})
    async with History(path) as history:
        found = await history.read(LAG, 0)

    assert found == [Point(NOW_S, 10, 30, 20), Point(NOW_S + 60, 5, 5, 5)]


async def test_old_points_are_merged_and_very_old_ones_dropped() -> None:
    async with History(None) as history:
        for minute in range(0, 15 * 1440, 10):
            await history.add(NOW_S + 60 * minute, {LAG: minute})
            await history.add(NOW_S + 60 * minute + 60, {LAG: minute + 1})
        now_s = NOW_S + 15 * 86_400
        await history.thin(now_s)
        await history.thin(now_s)
        found = await history.read(LAG, 0)

    assert found[0].at_s >= now_s - KEPT_FOR_S - COARSE_S
    assert found[0].high - found[0].low == 1
    assert len([point for point in found if point.at_s < now_s - 86_400]) == 13 * 144
    assert len([point for point in found if point.at_s >= now_s - 86_400]) == 2 * 144


async def test_thinning_reads_only_what_has_become_old_since_the_last_time(tmp_path: Path) -> None:
    now_s = NOW_S + 2 * 86_400
    async with History(tmp_path / "console.sqlite") as history:
        for minute in range(0, 2 * 1440, 5):
            await history.add(NOW_S + 60 * minute, {LAG: minute})
        await history.thin(now_s)
        before = await history.read(LAG, 0)
        changes = await history.run(lambda database: database.total_changes)
        await history.add(now_s, {LAG: 1})
        await history.thin(now_s + 3_600)
        after = await history.run(lambda database: database.total_changes)
        found = await history.read(LAG, 0)

    assert after - changes < 30  # an hour of points, and the six of them; not the day before
    assert found[: len(before) - 288] == before[:-288]
    assert len(found) == len(before) - 12 + 6 + 1


async def test_a_history_that_was_not_thinned_for_days_is_merged_at_once() -> None:
    async with History(None) as history:
        await history.thin(NOW_S)
        for minute in range(0, 3 * 1440, 5):
            await history.add(NOW_S + 60 * minute, {LAG: minute})
        await history.thin(NOW_S + 3 * 86_400)
        found = await history.read(LAG, 0)

    assert len(found) == 2 * 144 + 288


async def test_a_history_that_is_closed_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await History(None).read(LAG, 0)


async def test_a_value_that_cannot_be_kept_spoils_no_series() -> None:
    async with History(None) as history:
        with pytest.raises(sqlite3.Error):
            await history.add(NOW_S, {LAG: math.nan})
        await history.add(NOW_S, {LAG: 3})

        assert await history.read(LAG, 0) == [Point(NOW_S, 3, 3, 3)]


async def test_a_history_takes_no_more_series_after_it_was_thinned_or_opened_again(tmp_path: Path) -> None:
    series = [Series("local", "lag", str(number)) for number in range(6)]
    async with History(tmp_path / "h.sqlite", most_series=2) as history:
        await history.add(NOW_S, dict.fromkeys(series[:2], 1.0))
        await history.thin(NOW_S)
        await history.add(NOW_S + 60, dict.fromkeys(series[3::-1], 1.0))
    async with History(tmp_path / "h.sqlite", most_series=2) as history:
        await history.add(NOW_S + 120, dict.fromkeys(series[::-1], 1.0))
        counts = [len(await history.read(name, 0)) for name in series]
        await history.thin(NOW_S + 15 * 86_400)
        await history.add(NOW_S + 15 * 86_400, {series[5]: 1.0})

        assert counts == [3, 3, 0, 0, 0, 0]
        assert len(await history.read(series[5], 0)) == 1


async def test_the_file_is_closed_behind_a_statement_that_was_given_up() -> None:
    runs, release, ended = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def change(database: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(runs.set)
        release.wait(30)
        ended.extend(database.execute("SELECT 1").fetchall())

    async with History(None) as history:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30) as bound:
                async with asyncio.TaskGroup() as group:
                    group.create_task(history.run(change))
                    await runs.wait()
                    bound.reschedule(loop.time())
        loop.call_later(0.05, release.set)

    assert ended == [(1,)]


async def test_a_row_of_two_weeks_takes_at_most_thirty_bytes(tmp_path: Path) -> None:
    kinds = ("lag", "committed", "members", "time_lag", "ends")
    series = [Series("local", kind, f"name-{number}") for kind in kinds for number in range(6)]
    path = tmp_path / "console.sqlite"
    coarse = range(NOW_S - KEPT_FOR_S, NOW_S - FINE_FOR_S, COARSE_S)
    times = [*coarse, *range(NOW_S - FINE_FOR_S, NOW_S, MINUTE_S)]
    async with History(path) as history:
        for at_s in times:
            await history.add(at_s, dict.fromkeys(series, at_s * 7_919 % 1_000_003))
        rows = await history.run(
            lambda database: int(database.execute("SELECT count(*) FROM points").fetchone()[0])
        )

    assert rows == len(series) * len(times) == 30 * 3_312
    assert path.stat().st_size / rows < 30


async def test_a_history_that_is_full_leaves_a_gap(tmp_path: Path) -> None:
    async with History(tmp_path / "console.sqlite") as history:
        await history.add(NOW_S, {LAG: 1})
        await history.run(lambda database: database.execute("PRAGMA max_page_count = 1"))
        with pytest.raises(sqlite3.Error, match="full"):
            for number in range(1_000):
                await history.add(NOW_S + 60 * number, {Series("local", "lag", f"g{number}"): 1})

        assert await history.read(LAG, 0) == [Point(NOW_S, 1, 1, 1)]
