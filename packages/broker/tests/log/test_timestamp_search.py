"""A search by time while other work changes the segments of the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from ottla.broker.log.compaction.cleaner_testing import clean, fill, registry
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.segments.timestamp_search import Candidate, Search, TimestampOffset
from ottla.broker.log.testing import PARTITION, commit, records_of, truncate_to
from ottla.protocol.storage.segments import SegmentFile, parse_file_name

RECORDS: Final = 120
FIRST_MS: Final = 1_000
"""The time of the first record; each one behind it is a millisecond later."""

Change = Callable[[LogRegistry, Log], Awaitable[object]]


async def exchanged(logs: LogRegistry, log: Log) -> None:
    before = len(log.segments)
    assert await clean(logs)
    assert len(log.segments) < before, "segments are merged"
    await LogPasses(logs).delete_due(1 << 40)


async def dropped(logs: LogRegistry, log: Log) -> None:
    log.advance_log_start(RECORDS // 2)
    await LogPasses(logs).retain(0)
    await LogPasses(logs).delete_due(1 << 40)


async def truncated(logs: LogRegistry, log: Log) -> None:
    truncate_to(log, RECORDS // 2)
    commit(log)


def after_looks(search: Search, looks: int) -> Candidate | None:
    """Let a number of looks find nothing; returns the next candidate, None at the end."""
    candidate = next(search)
    try:
        for _ in range(looks):
            candidate = search.send(None)
    except StopIteration:
        return None
    return candidate


def finished(search: Search) -> TimestampOffset | None:
    """Go on with a search whose last look finds nothing."""
    found: TimestampOffset | None = None
    try:
        while True:
            candidate = search.send(found)
            found = None if candidate is None else candidate.look()
    except StopIteration as end:
        result: TimestampOffset | None = end.value
        return result


@pytest.mark.parametrize("change", [exchanged, dropped, truncated])
async def test_a_search_by_time_goes_on_where_segments_change_at_any_candidate(change: Change) -> None:
    for looks in range(RECORDS):
        async with registry() as logs:
            log = logs.create(PARTITION)
            fill(log, RECORDS // 2)
            await clean(logs)
            fill(log, RECORDS // 2, start=RECORDS // 2)
            search = log.search_timestamp(FIRST_MS)
            candidate = after_looks(search, looks)
            if candidate is None:
                break

            await change(logs, log)
            found = finished(search)

            behind = [one for one in records_of(log) if one.offset > candidate.base_offset]
            assert found == ((behind[0].timestamp_ms, behind[0].offset) if behind else None), looks
            names = map(parse_file_name, logs.files.list(log.directory))
            indexes = [one for one in names if one is not None and one.kind is SegmentFile.TIME_INDEX]
            assert {one.base_offset for one in indexes} <= set(log.segments.bases)
    assert looks > RECORDS // 2
