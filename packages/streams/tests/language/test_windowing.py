"""Windows of event time: what they take, when they close, and that neither order nor crashes matter."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import groupby

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consumer import ConsumerRecord
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import WindowValue, tumbling
from peers.stream_member import Crashed, Log, Member, record

SIZE_MS = 10
GRACE_MS = 5
Finals = dict[tuple[bytes, int], int]


def windowed(*, final: bool) -> Topology:
    topology = Topology()
    windows = topology.stream("orders", key=bytes, value=int).window(tumbling(SIZE_MS), grace_ms=GRACE_MS)
    (windows.final() if final else windows).reduce(lambda a, b: a + b, name="sums").map_values(_row).to("out")
    return topology


def _row(window: WindowValue[int]) -> dict[str, int]:
    return {"start": window.start_ms, "value": window.value}


def emitted(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    return log.rows("out")


async def test_each_record_updates_its_window() -> None:
    log = Log()
    member = Member(windowed(final=False), "orders", log)

    await member.handle_all([record(0, b"k", b"1", 3), record(1, b"k", b"2", 9), record(2, b"k", b"4", 10)])

    assert [value for _, value in emitted(log)] == [
        b'{"start":0,"value":1}', b'{"start":0,"value":3}', b'{"start":10,"value":4}'
    ]  # fmt: skip


async def test_a_window_is_emitted_once_when_its_keys_time_is_beyond_the_grace() -> None:
    log = Log()
    member = Member(windowed(final=True), "orders", log)

    await member.handle_all([record(0, b"k", b"1", 3), record(1, b"k", b"2", 12), record(2, b"k", b"4", 9)])
    before = emitted(log)
    await member.handle(record(3, b"k", b"8", 15))

    assert before == []
    assert emitted(log) == [(b"k", b'{"start":0,"value":5}')]


async def test_a_record_of_a_closed_window_is_counted_and_dropped() -> None:
    log = Log()
    member = Member(windowed(final=True), "orders", log)

    await member.handle_all([record(0, b"k", b"1", 3), record(1, b"k", b"2", 15), record(2, b"k", b"4", 9)])

    assert member.counters.late == 1
    assert emitted(log) == [(b"k", b'{"start":0,"value":1}')]


async def test_closed_windows_are_emitted_before_the_changelog_forgets_them() -> None:
    log = Log()
    member = Member(windowed(final=True), "orders", log)

    await member.handle_all([record(0, b"k", b"1", 3), record(1, b"k", b"2", 15)])

    topics = [output.topic for output in log.outputs if output.key == b"k"]
    assert topics == ["sums-changelog", "out", "sums-changelog"]
    assert log.acknowledged_at == [len(log.outputs) - 1]


async def test_windows_of_an_idle_key_close_when_the_partitions_time_passes() -> None:
    log = Log()
    member = Member(windowed(final=True), "orders", log)
    await member.handle(record(0, b"idle", b"1", 3))

    await member.handle(record(1, b"busy", b"2", 30), time_ms=14)
    early = emitted(log)
    await member.handle(record(2, b"busy", b"2", 31), time_ms=15)

    assert early == []
    assert emitted(log) == [(b"idle", b'{"start":0,"value":1}')]
    assert (b"idle", None) in log.rows("sums-changelog")


async def test_a_late_record_stays_late_after_its_idle_key_was_dropped_and_the_partition_moved() -> None:
    log = Log()
    member = Member(windowed(final=True), "orders", log)
    await member.handle(record(0, b"idle", b"1", 3))
    await member.handle(record(1, b"busy", b"2", 30), time_ms=15)

    other = Member(windowed(final=True), "orders", log)
    await other.restore()
    await other.handle(record(2, b"idle", b"1", 4))

    assert other.counters.late == 1
    assert emitted(log) == [(b"idle", b'{"start":0,"value":1}')]


events = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 9), st.integers(0, 12)), max_size=40
)


def as_records(drawn: list[tuple[bytes, int, int]]) -> list[ConsumerRecord]:
    """Produce rising timestamps, with some records up to 12 ms behind: those beyond the grace are late."""
    return [
        record(at, key, str(value).encode(), max(0, at * 3 - behind))
        for at, (key, value, behind) in enumerate(drawn)
    ]


def recomputed(records: list[ConsumerRecord]) -> Finals:
    """Return the sums of closed windows, each key by itself."""
    sums: Finals = defaultdict(int)
    times: dict[bytes, int] = {}
    for each in records:
        start = each.timestamp_ms - each.timestamp_ms % SIZE_MS
        if start + SIZE_MS + GRACE_MS > times.get(each.key, -1):
            sums[each.key, start] += int(each.value)
        times[each.key] = max(times.get(each.key, -1), each.timestamp_ms)
    return {(k, s): v for (k, s), v in sums.items() if s + SIZE_MS + GRACE_MS <= times[k]}


def finals(log: Log) -> dict[tuple[bytes, int], set[int]]:
    found: dict[tuple[bytes, int], set[int]] = defaultdict(set)
    for key, value in emitted(log):
        row = msgspec.json.decode(value or b"", type=dict[str, int])
        found[key or b"", row["start"]].add(row["value"])
    return found


@given(events, st.randoms(use_true_random=False))
@settings(max_examples=200)
async def test_the_order_between_keys_does_not_matter(
    drawn: list[tuple[bytes, int, int]], chance: random.Random
) -> None:
    records, log = as_records(drawn), Log()
    by_key = [list(group) for _, group in groupby(sorted(records, key=_key), key=_key)]
    member = Member(windowed(final=True), "orders", log)

    while by_key := [lane for lane in by_key if lane]:
        await member.handle(chance.choice(by_key).pop(0))

    assert finals(log) == {window: {value} for window, value in recomputed(records).items()}


def _key(each: ConsumerRecord) -> bytes:
    key: bytes = each.key
    return key


@given(events, st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3))
@settings(max_examples=300)
async def test_after_crashes_anywhere_the_windows_are_those_of_a_recomputation(
    drawn: list[tuple[bytes, int, int]], crashes: list[int], behind: int
) -> None:
    records, log, at = as_records(drawn), Log(), 0
    member = Member(windowed(final=True), "orders", log)
    while at < len(records):
        log.crash_at = len(log.outputs) + crashes[0] if crashes else None
        try:
            while at < len(records):
                await member.handle(records[at])
                at += 1
        except Crashed:
            crashes = crashes[1:]
            member = Member(windowed(final=True), "orders", log)
            await member.restore()
            at = max(0, at - behind)  # the last commit

    assert finals(log) == {window: {value} for window, value in recomputed(records).items()}
