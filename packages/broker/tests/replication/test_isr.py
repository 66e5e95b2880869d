"""The rules of the in-sync replica set."""

from __future__ import annotations

import pytest

from ottla.broker.replication.isr import (
    UNKNOWN_OFFSET,
    Progress,
    Proposal,
    holding_back,
    lagging_members,
    maximal_isr,
    may_expand,
)

LAG_MS = 1_000
ISR = frozenset({1, 2})


@pytest.mark.parametrize(
    ("proposal", "maximal"),
    [
        (None, {1, 2}),
        (Proposal(1, frozenset({1, 2, 3})), {1, 2, 3}),
        (Proposal(1, frozenset({1})), {1, 2}),
    ],
)
def test_a_proposed_addition_counts_at_once_and_a_proposed_removal_does_not(
    proposal: Proposal | None, maximal: set[int]
) -> None:
    assert maximal_isr(ISR, proposal) == maximal


@pytest.mark.parametrize(
    ("log_end", "high_watermark", "epoch_start", "may"),
    [
        (10, 10, 10, True),
        (9, 10, 5, False),
        (9, 5, 10, False),
        (UNKNOWN_OFFSET, UNKNOWN_OFFSET, UNKNOWN_OFFSET, False),
    ],
)
def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch(
    log_end: int, high_watermark: int, epoch_start: int, may: bool
) -> None:
    assert may_expand(Progress(log_end_offset=log_end), high_watermark, epoch_start) is may


def test_only_members_that_lag_for_longer_than_allowed_leave_the_isr() -> None:
    followers = {
        2: Progress(log_end_offset=5, last_caught_up_ms=0),
        3: Progress(log_end_offset=5, last_caught_up_ms=0),
    }
    assert lagging_members(ISR, followers, 10, LAG_MS, LAG_MS) == set()
    assert lagging_members(ISR, followers, 10, LAG_MS + 1, LAG_MS) == {2}
    assert lagging_members(ISR, followers, 5, LAG_MS + 1, LAG_MS) == set()


def test_the_high_watermark_waits_for_members_and_for_followers_that_are_about_to_join() -> None:
    member = Progress(log_end_offset=1, last_caught_up_ms=0)
    joining = Progress(log_end_offset=8, last_caught_up_ms=500)
    below_the_epoch = Progress(log_end_offset=4, last_caught_up_ms=500)
    unknown = Progress(last_caught_up_ms=500)
    followers = {2: member, 3: joining, 4: below_the_epoch, 5: unknown}
    assert holding_back(ISR, followers, 5, LAG_MS, LAG_MS) == [member, joining]
    assert holding_back(ISR, followers, 5, 501 + LAG_MS, LAG_MS) == [member]
