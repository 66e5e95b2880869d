from __future__ import annotations

from ottla.streams.operating.health import HealthFacts, HealthLimits, judge

LIMITS = HealthLimits(
    stuck_handler_ms=5_000, standing_partition_ms=4_000, stalled_intake_ms=3_000, failing_commits_ms=2_000
)


def test_a_processor_without_troubles_is_healthy() -> None:
    facts = HealthFacts(
        oldest_in_flight_ms=5_000, standing_ms=4_000, since_intake_ms=3_000, commits_failing_ms=2_000
    )

    assert judge(facts, LIMITS).is_healthy


def test_each_trouble_is_named_with_its_facts() -> None:
    facts = HealthFacts(
        failure="fenced by another",
        oldest_in_flight_ms=61_000,
        oldest_offset="orders-0 at offset 7",
        standing_ms=70_000,
        standing="orders-1 at offset 6, 13 records unfinished",
        since_intake_ms=9_000,
        commits_failing_ms=8_000,
        commit_error="no broker",
    )

    found = judge(facts, LIMITS)

    assert not found.is_healthy
    assert found.reasons == (
        "failed: fenced by another",
        "a handler has run for 61 s: orders-0 at offset 7",
        "a partition has stood still for 70 s: orders-1 at offset 6, 13 records unfinished",
        "intake stalled: there is lag, and no record has come for 9 s",
        "commits have failed for 8 s: no broker",
    )


def test_a_processor_that_stopped_is_not_healthy() -> None:
    assert judge(HealthFacts(is_stopped=True), LIMITS).reasons == ("stopped",)
