from __future__ import annotations

from typing import Any

from ottla.streams.operating.top import heading, problems, tables, view, with_rates


def status(at_ms: int, handled: int, **changed: Any) -> dict[str, Any]:
    """Make the status of an app with one handler and one partition."""
    counters = dict.fromkeys(
        ("retry_total", "dead_letter_total", "dedupe_hit_total", "commit_error_total", "parked"), 0
    )
    oldest = {
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "key_hash": "ab12",
        "attempt": 1,
        "age_ms": 3_400,
    }
    partition = {
        "topic": "orders", "partition": 0, "offset": 5, "lag": 12, "handled": handled, "failed": 1,
        "in_flight": 2, "metadata_bytes": 40, "paused": False, "oldest": oldest,
    }  # fmt: skip
    processor: dict[str, Any] = {
        "name": "charge", "group": "billing", "healthy": True, "reasons": [], "record_handled_total": handled,
        "lanes": 3, "in_flight": 2, "oldest_in_flight_ms": 3_400, "buffered_records": 9, "oldest": oldest,
        "partitions": [partition],
    } | counters | changed  # fmt: skip
    return {
        "version": 1, "app": "billing", "monotonic_ms": at_ms, "healthy": processor["healthy"],
        "processors": [processor],
    }  # fmt: skip


def test_rates_are_those_between_two_looks() -> None:
    handlers, partitions = tables(status(3_000, 2_500), status(1_000, 500))

    row = dict(zip(handlers.columns, handlers.rows[0], strict=True))
    assert (row["rec/s"], row["lag"], row["lanes"], row["oldest"]) == ("1,000", 12, 3, "3.4 s")
    row = dict(zip(partitions.columns, partitions.rows[0], strict=True))
    assert (row["rec/s"], row["oldest key"], row["age"]) == ("1,000", "ab12", "3.4 s")


def test_no_rate_is_shown_at_first_and_after_a_restart() -> None:
    assert tables(status(3_000, 2_500), None)[0].rows[0][3] is None
    assert tables(status(3_000, 10), status(1_000, 500))[0].rows[0][3] is None
    assert with_rates(status(3_000, 10), None)["processors"][0]["records_per_s"] is None


def test_reasons_stand_above_the_tables() -> None:
    ill = status(1, 1, healthy=False, reasons=["commits have failed for 90 s: no broker"])

    assert heading(ill) == "billing: UNHEALTHY, 1 handler"
    assert problems(ill) == ["charge: commits have failed for 90 s: no broker"]
    assert view(ill, None)[:4] == [heading(ill), f"! {problems(ill)[0]}", "", "handlers"]


def test_records_that_streams_dropped_are_shown_once_there_are_some() -> None:
    handlers, _ = tables(status(1_000, 500, late_total=3, keyless_total=0, valueless_total=2), None)

    row = dict(zip(handlers.columns, handlers.rows[0], strict=True))
    assert (row["late"], row["no key"], row["no value"]) == (3, 0, 2)
    plain, _ = tables(status(1_000, 500), None)
    assert "late" not in plain.columns
