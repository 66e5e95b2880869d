"""Trends of a lag, since when it is there, and why: judged by what looks have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ottla.admin import (
    ClusterState,
    MemberDescription,
)  # fmt: skip
from ottla.admin.groups import GroupDescription, GroupProgress, PartitionProgress
from ottla.console.watch.collecting import Watched, watched
from ottla.console.watch.history import Point
from ottla.console.watch.looks import Look
from ottla.console.watch.paces import UNKNOWN, Pace
from ottla.console.watch.trends import (
    Since,
    Trend,
    behind_since,
    diagnosis,
    falls_behind,
    growth,
    held_since,
    rates,
    trend,
)
from ottla.protocol.topics import TopicPartition

NOW_S = 1_767_225_600
STATE = ClusterState("id", 1, (), ())


def line(*values: float) -> list[Point]:
    first_s = NOW_S - 60 * len(values)
    return [Point(first_s + 60 * index, value, value, value) for index, value in enumerate(values)]


def test_a_trend_says_how_fast_a_lag_grows_or_when_it_is_caught_up() -> None:
    assert trend(line(0, 600, 1200, 1800), NOW_S) == Trend(10.0)
    assert trend(line(3000, 2400, 1800, 1200), NOW_S) == Trend(-10.0, 120.0)
    assert trend(line(1000, 1001, 999, 1000), NOW_S) == Trend(0.0)
    assert trend(line(1, 2), NOW_S) is None
    assert trend(line(*range(100)), NOW_S + 7_200) is None
    assert Trend(10.0).text == "grows by 10 records/s"
    assert (Trend(-0.25).text, Trend(0.0).text) == ("shrinks by 0.25 records/s", "steady")


def test_growth_leaves_out_what_was_made_again() -> None:
    points = [Point(at, 0.0, 0.0, mean) for at, mean in ((0, 100.0), (60, 160.0), (120, 10.0), (180, 40.0))]

    assert [(point.at_s, point.mean) for point in rates(points)] == [(60, 1.0), (180, 0.5)]
    assert growth(points) == (90.0, 180)
    assert (growth(points[:1]), rates(points[:1])) == (None, [])


def lagging(lags: Sequence[int], *, members: int, owned: bool = True) -> GroupProgress:
    those = tuple(MemberDescription(f"m{number}", None, "app", "/10.0.0.1", ()) for number in range(members))
    partitions = tuple(
        PartitionProgress(TopicPartition("orders", index), 0, lag, owners=those[:1] if owned else ())
        for index, lag in enumerate(lags)
    )
    return GroupProgress(GroupDescription("billing", "Stable", "consumer", "range", 1, those), partitions)


@pytest.mark.parametrize(
    ("progress", "found", "pace", "level", "words"),
    [
        (lagging([0, 0], members=1), None, Pace(5.0), "good", "It has read everything."),
        (lagging([0], members=0), None, UNKNOWN, "good", "no member reads"),
        (lagging([9], members=0), Trend(1.0), Pace(0.0), "bad", "No member reads"),
        (
            lagging([9, 9], members=1, owned=False),
            None,
            Pace(3.0),
            "bad",
            "2 of its partitions with a lag have no",
        ),
        (
            lagging([9, 9], members=2),
            Trend(1.0),
            Pace(0.0, 90, 90),
            "bad",
            "Its 2 members have committed nothing for 1\u00a0min 30\u00a0s: they hang",
        ),
        (
            lagging([9, 9], members=1),
            None,
            Pace(0.0, 60, 60),
            "bad",
            "Its one member has committed nothing for 1\u00a0min: it hangs",
        ),
        (
            lagging([9, 9], members=1),
            Trend(2.0),
            Pace(9.9, 400, None, falls_behind=True),
            "bad",
            "Its one member reads at 9.9 records/s, slower",
        ),
        (
            lagging([9, 9], members=1),
            Trend(-2.0, 9.0),
            UNKNOWN,
            "warn",
            "Its one member reads, and catches up.",
        ),
        (lagging([9, 9], members=2), Trend(-2.0, 9.0), Pace(30.0), "warn", "at 30 records/s, and catch up"),
        (lagging([990, 10], members=2), Trend(0.0), UNKNOWN, "warn", "99 % of the lag is in orders-0"),
        # The records have just come: of an idle group no commit is missed.
        (lagging([12], members=1), Trend(0.2), Pace(0.0, 0.0), "", "too early to judge"),
        (lagging([12], members=1), Trend(0.2), Pace(0.0, 30, 30), "", "too early to judge"),
        (lagging([12], members=1), Trend(0.2), Pace(0.0, 90, 30), "warn", "Its one member reads."),
    ],
)
def test_a_diagnosis_says_why_a_group_lags(
    progress: GroupProgress, found: Trend | None, pace: Pace, level: str, words: str
) -> None:
    why = diagnosis(progress, found, pace)

    assert why.level == level
    assert words in why.text


def seen(*lags: int | None, read: Sequence[int], kind: str = "consumer") -> GroupProgress:
    """Return the progress of a group with one member, which has read so much of each partition."""
    member = MemberDescription("m0", None, "app", "/10.0.0.1", ())
    partitions = tuple(
        PartitionProgress(
            TopicPartition("orders", index),
            None if lag is None else done,
            done + (lag or 0),
            owners=(member,),
        )
        for index, (lag, done) in enumerate(zip(lags, read, strict=True))
    )
    described = GroupDescription("billing", "Stable", "consumer", "range", 1, (member,), type=kind)
    return GroupProgress(described, partitions)


def watching(*progress: GroupProgress) -> Watched:
    """Return the last of looks at a group that are half a minute apart."""
    found: Watched | None = None
    for number, of in enumerate(progress):
        before = None if found is None else found.look
        look = Look("local", STATE, {"billing": of}, {})
        found = watched(look, NOW_S + 30 * number, before, found)
    assert found is not None
    return found


def test_a_group_that_was_idle_at_the_last_looks_is_not_said_to_hang() -> None:
    idle, now = seen(0, read=[100]), seen(12, read=[100])

    last = watching(idle, idle, idle)
    pace = last.pace(now, last.at_s + 2)

    assert (pace.per_s, pace.behind_s, pace.still_s) == (0.0, 0.0, None)
    assert diagnosis(now, None, pace).level == ""
    # A look that comes between the records and their commit does not change that.
    last = watching(idle, idle, now)
    assert diagnosis(now, None, last.pace(now, last.at_s + 2)).level == ""


def test_a_group_that_commits_nothing_of_what_it_had_to_read_is_said_to_hang() -> None:
    first, later, now = (seen(lag, read=[100]) for lag in (12, 40, 50))

    last = watching(first, later, later)

    pace = last.pace(now, last.at_s + 5)
    assert (pace.behind_s, pace.still_s) == (65, 65)
    assert diagnosis(now, None, pace).level == "bad"
    moved = seen(50, read=[101])  # since the last look
    assert last.pace(moved, last.at_s + 5).still_s is None
    assert watching(first, later, moved).pace(moved, NOW_S + 65).still_s == 5
    assert watching(first, seen(0, read=[112]), seen(9, read=[112])).stands.still_since_s == {}


def test_a_share_group_stands_still_only_while_it_acknowledges_nothing_anywhere() -> None:
    def shared(end: int, lag: int) -> GroupProgress:
        progress = seen(0, read=[end], kind="share")
        partitions = (replace(progress.partitions[0], offset=100, unacknowledged=lag),)
        return replace(progress, partitions=partitions)

    working = watching(shared(1_000, 500), shared(2_000, 700), shared(3_000, 900))
    # The lag is of another moment than the end: some of the records that came are taken for finished ones.
    hanging = watching(shared(1_000, 500), shared(2_000, 1_495), shared(3_000, 2_500))

    assert working.pace(shared(3_000, 900), NOW_S + 90).still_s == 30
    assert working.committed_per_s == {"billing": pytest.approx(26.67, abs=0.01)}
    assert hanging.pace(shared(3_000, 2_500), NOW_S + 90).still_s == 90
    assert (
        "has acknowledged nothing"
        in diagnosis(shared(3_000, 2_500), None, hanging.pace(shared(3_000, 2_500), NOW_S + 90)).text
    )


def test_a_group_without_commits_is_not_said_to_have_read_everything() -> None:
    some, none, empty = seen(0, None, read=[9, 22]), seen(None, read=[22]), seen(0, None, read=[9, 0])

    assert diagnosis(some, None, UNKNOWN).text == "It has read everything where it has committed."
    assert diagnosis(none, None, UNKNOWN).level == ""
    assert diagnosis(empty, None, UNKNOWN).level == "good"


def test_a_lag_that_swings_between_commits_is_not_said_to_grow() -> None:
    swinging = [Point(NOW_S - 60 * back, 10, 4_900, 2_500 - 100 * back) for back in range(10)][::-1]
    growing = [Point(NOW_S - 60 * back, 9_000 - 900 * back, 9_900 - 900 * back, 0) for back in range(10)][
        ::-1
    ]

    assert trend(swinging, NOW_S) != Trend(0.0)
    assert not falls_behind(swinging, NOW_S)
    assert falls_behind(growing, NOW_S)
    assert not falls_behind(growing[-3:], NOW_S)
    assert not falls_behind([], NOW_S)


def test_a_broker_is_away_since_the_first_look_that_missed_it() -> None:
    def points(*minutes: int) -> list[Point]:
        return [Point(NOW_S + 60 * minute, 1, 1, 1) for minute in minutes]

    looks, now_s = points(*range(10)), NOW_S + 600

    assert held_since(points(7, 8, 9), looks, now_s) == Since(NOW_S + 420, is_exact=True)
    assert held_since(points(1, 2, 8, 9), looks, now_s) == Since(NOW_S + 480, is_exact=True)
    assert held_since(points(1, 2), looks, now_s) is None
    assert held_since(points(*range(10)), looks, now_s) == Since(NOW_S, is_exact=False)
    assert held_since([], [], now_s) is None
    # The console did not run for a while: the broker may have gone then.
    paused = points(0, 1, 2, 7, 8, 9)
    assert held_since(points(2, 7, 8, 9), paused, now_s) == Since(NOW_S + 420, is_exact=False)


def test_a_group_is_behind_since_its_lag_was_last_small() -> None:
    def points(*lags: int) -> list[Point]:
        return [Point(60 * minute, lag, lag, lag) for minute, lag in enumerate(lags)]

    assert behind_since(points(500, 3, 40, 90, 100), 100) == 120
    assert behind_since(points(50, 80, 100), 100) == 0
    assert behind_since(points(50, 80, 0), 100) is None  # no look has seen it behind yet
    assert behind_since([], 100) is None
    assert behind_since(points(1, 2), 0) is None
