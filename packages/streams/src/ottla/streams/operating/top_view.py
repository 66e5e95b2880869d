"""The tables and lines of `ottla streams top`, made of two statuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Status = Mapping[str, Any]

PROCESSOR_COLUMNS = (
    "handler", "group", "state", "rec/s", "lag", "lanes", "in flight", "oldest", "buffered", "parked",
    "retries", "dead", "dupes", "commit errors",
)  # fmt: skip
STREAM_COLUMNS = ("late", "no key", "no value")
"""Counters of records that streams dropped; shown when they are not 0."""
_DROPPED = ("late_total", "keyless_total", "valueless_total")
PARTITION_COLUMNS = (
    "topic", "partition", "offset", "lag", "rec/s", "in flight", "failed", "paused", "metadata",
    "oldest key", "age",
)  # fmt: skip


class Table(NamedTuple):
    """Rows under columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def heading(status: Status) -> str:
    """Return a line about the app."""
    state = "healthy" if status["healthy"] else "UNHEALTHY"
    return f"{status['app']}: {state}, {_count(len(status['processors']), 'handler')}"


def problems(status: Status) -> list[str]:
    """Return a line for each reason why it is not healthy."""
    return [f"{one['name']}: {reason}" for one in status["processors"] for reason in one["reasons"]]


def tables(status: Status, before: Status | None) -> list[Table]:
    """Return the handlers, and the partitions of each. Rates need a status from `before`."""
    elapsed_s = _elapsed_s(status, before)
    earlier = {} if before is None else {each["name"]: each for each in before["processors"]}
    rows = [_processor(each, earlier.get(each["name"]), elapsed_s) for each in status["processors"]]
    dropped = [[each.get(name, 0) for name in _DROPPED] for each in status["processors"]]
    if any(map(any, dropped)):
        rows = [(*row, *more) for row, more in zip(rows, dropped, strict=True)]
        found = [Table("handlers", (*PROCESSOR_COLUMNS, *STREAM_COLUMNS), rows)]
    else:
        found = [Table("handlers", PROCESSOR_COLUMNS, rows)]
    for one in status["processors"]:
        each_partition = _partitions(one, earlier.get(one["name"]), elapsed_s)
        found.append(Table(f"partitions of {one['name']}", PARTITION_COLUMNS, each_partition))
    return found


def with_rates(status: Status, before: Status | None) -> dict[str, Any]:
    """Return a status with `records_per_s` of handlers, for programs."""
    elapsed_s = _elapsed_s(status, before)
    earlier = {} if before is None else {each["name"]: each for each in before["processors"]}
    processors = [
        {**each, "records_per_s": _rate(each, earlier.get(each["name"]), "record_handled_total", elapsed_s)}
        for each in status["processors"]
    ]
    return {**status, "processors": processors}


def _processor(one: Status, before: Status | None, elapsed_s: float) -> Sequence[object]:
    lags = [each["lag"] for each in one["partitions"] if each["lag"] is not None]
    return (
        one["name"],
        one["group"],
        "healthy" if one["healthy"] else "unhealthy",
        _shown_rate(_rate(one, before, "record_handled_total", elapsed_s)),
        sum(lags) if lags else None,
        one["lanes"],
        one["in_flight"],
        _duration(one["oldest_in_flight_ms"]) if one["in_flight"] else None,
        one["buffered_records"],
        one["parked"],
        one["retry_total"],
        one["dead_letter_total"],
        one["dedupe_hit_total"],
        one["commit_error_total"],
    )


def _partitions(one: Status, before: Status | None, elapsed_s: float) -> list[Sequence[object]]:
    earlier = {} if before is None else {_place(each): each for each in before["partitions"]}
    rows: list[Sequence[object]] = []
    for each in one["partitions"]:
        oldest = each["oldest"] or {}
        row = (
            each["topic"],
            each["partition"],
            each["offset"],
            each["lag"],
            _shown_rate(_rate(each, earlier.get(_place(each)), "handled", elapsed_s)),
            each["in_flight"],
            each["failed"],
            each["paused"],
            each["metadata_bytes"],
            oldest.get("key_hash"),
            _duration(oldest["age_ms"]) if oldest else None,
        )
        rows.append(row)
    return rows


def _place(partition: Status) -> tuple[str, int]:
    return partition["topic"], partition["partition"]


def _elapsed_s(status: Status, before: Status | None) -> float:
    return 0.0 if before is None else (status["monotonic_ms"] - before["monotonic_ms"]) / 1_000


def _rate(now: Status, before: Status | None, name: str, elapsed_s: float) -> float | None:
    """Return a counter's growth per second; None without an earlier value, or after a restart."""
    if before is None or elapsed_s <= 0 or now[name] < before[name]:
        return None
    grown: int = now[name] - before[name]
    return round(grown / elapsed_s, 1)


def _shown_rate(rate: float | None) -> str | None:
    return None if rate is None else f"{rate:,.0f}"


def _duration(milliseconds: float) -> str:
    """Return a time in the unit that fits: 12 ms, 3.4 s, 2 min."""
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 120_000:
        return f"{milliseconds / 1_000:.1f} s"
    return f"{milliseconds / 60_000:.0f} min"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
