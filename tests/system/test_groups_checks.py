"""The plan and the checks of groups_chaos.py: each check finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_faults import KILLS, PAUSES
from groups_chaos import KILLED_BY, plan
from groups_checks import Line, OrderedReads, ShareLimits, deliveries, misread, misshared, read_journals
from groups_processes import HOSTS

LOG = {0: {0: ("w", 0), 1: ("w", 2), 2: ("w", 4)}, 1: {0: ("w", 1)}}
ENDS = {0: 3, 1: 1}
LOCK_US = 1_000
A = ("assigned 0", "read 0 0 w 0", "committed 0 1", "read 0 1 w 2", "revoked 0")
SECOND = ("assigned 0", "read 0 1 w 2", "read 0 2 w 4", "committed 0 3", "assigned 1", "read 1 0 w 1")


def lines(*texts: tuple[str, str] | tuple[str, str, int]) -> list[Line]:
    """Make lines of members, each a microsecond later than the one before, or at a time."""
    made: list[Line] = []
    for member, text, *at in texts:
        word, *facts = text.split()
        made.append(Line(at[0] if at else (made[-1].at_us + 1 if made else 0), member, word, tuple(facts)))
    return made


def in_turn(**members: tuple[str, ...]) -> list[Line]:
    return lines(*((member, text) for member, texts in members.items() for text in texts))


def ordered(found: list[Line], committed: dict[int, int] | None = None) -> list[str]:
    reads = OrderedReads()
    for line in found:
        reads.follow(line)
    return reads.finish(ENDS, {0: 3, 1: 1} if committed is None else committed)


def shared(found: list[Line], windows_us: tuple[tuple[int, int], ...] = ()) -> list[str]:
    return misshared({0: LOG[0]}, deliveries(found), ShareLimits(3, LOCK_US, windows_us))


def accepted(*offsets: int, by: str = "m") -> list[tuple[str, str]]:
    return [
        (by, text)
        for offset in offsets
        for text in (f"given 0 {offset} 1 w {2 * offset}", f"confirmed 0 {offset}")
    ]


def test_lines_come_by_time_and_a_torn_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "b.journal").write_text("7 began\n9 read 0 0 w 0\n12 rea")
    (tmp_path / "a.journal").write_text("8 failed an error of words\n")

    found = read_journals(sorted(tmp_path.glob("*.journal")))

    assert [(line.at_us, line.member, line.word) for line in found] == [
        (7, "b", "began"), (8, "a", "failed"), (9, "b", "read"),
    ]  # fmt: skip


def test_a_record_that_the_log_has_not_is_misread() -> None:
    assert misread(LOG, lines(("m", "read 0 1 w 2"), ("n", "given 0 2 1 w 4"))) == []
    assert "where there is ('w', 4)" in misread(LOG, lines(("m", "given 0 2 1 w 5")))[0]


def test_a_group_that_goes_on_from_its_commits_is_right() -> None:
    assert ordered(in_turn(m=A, n=SECOND)) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (in_turn(m=(*A[:2], "read 0 2 w 4")), "does not follow its last one"),
        (in_turn(m=A, n=("assigned 0", "read 0 2 w 4", "assigned 0", "read 0 4 w 8")), "which no member"),
        (in_turn(m=A, n=("assigned 0", "read 0 0 w 0")), "was committed before, up to 1: read AGAIN"),
        (in_turn(m=("assigned 0", "revoked 0", "read 0 0 w 0")), "was not assigned to it"),
        (in_turn(m=("assigned 0", "began", "read 0 0 w 0")), "was not assigned to it"),
        (in_turn(m=A), "partition 0 was read up to 2 of 3"),
    ],
)
def test_a_group_that_skips_repeats_or_swaps_records_is_wrong(found: list[Line], complaint: str) -> None:
    assert any(complaint in line for line in ordered(found))


def test_a_group_that_has_not_committed_all_is_wrong() -> None:
    assert ordered(in_turn(m=A, n=SECOND), {0: 2, 1: 1}) == ["partition 0 is committed up to 2 of 3"]


def test_a_share_group_that_accepts_each_record_is_right() -> None:
    again = [
        ("m", "given 0 2 1 w 4"),
        ("m", "released 0 2"),
        ("n", "given 0 2 2 w 4"),
        ("n", "confirmed 0 2"),
    ]
    unanswered = [("m", "given 0 1 1 w 2")]

    assert shared(lines(*accepted(0), *unanswered, *again)) == []


@pytest.mark.parametrize(
    ("last", "complaint"),
    [
        ([], "0/2 was given to no member: LOST"),
        ([("m", "given 0 2 1 w 4"), ("m", "released 0 2")], "was released and not given again: LOST"),
        ([("m", "given 0 2 3 w 4"), ("m", "refused 0 2 X")], "never accepted, and given as often as allowed"),
        ([("m", "given 0 2 4 w 4"), ("m", "confirmed 0 2")], "was delivered more often than 3 times"),
        ([*accepted(2), ("n", "given 0 2 2 w 4")], "was given again AFTER it was accepted"),
        ([*accepted(2), ("n", "given 0 2 1 w 4", 5_000)], "was given again AFTER it was accepted"),
        ([("m", "given 0 2 1 w 4"), ("n", "given 0 2 1 w 4")], "given twice by one leader"),
    ],
)
def test_a_share_group_that_loses_or_repeats_records_is_wrong(
    last: list[tuple[str, str]], complaint: str
) -> None:
    found = shared(lines(*accepted(0, 1), *last))

    assert any(complaint in line for line in found), found


def test_a_leader_that_changes_explains_an_equal_delivery_count() -> None:
    twice = lines(*accepted(0, 1), ("m", "given 0 2 1 w 4", 3_000), ("n", "given 0 2 1 w 4", 4_000))

    assert shared(twice, ((2_500, 2_600),)) == []
    assert shared(twice, ((1_000, 1_900), (4_001, 5_000)))


def test_what_was_acquired_before_the_leader_changed_may_be_given_late_but_not_at_any_time() -> None:
    late = lines(*accepted(0, 1, 2), ("n", "given 0 2 2 w 4"), ("n", "confirmed 0 2"))
    later = lines(*accepted(0, 1, 2), ("n", "given 0 2 2 w 4", 2_100))

    assert shared(late, ((0, 100),)) == []
    (complaint,) = shared(later, ((0, 2_050),))
    assert "was given again AFTER it was accepted" in complaint


def test_a_plan_has_the_wanted_kills_and_is_drawn_by_its_seed() -> None:
    kinds, topics = (*KILLS, *PAUSES), ("a", "b")

    rounds = plan(30, 1, kinds, topics, HOSTS)

    assert rounds == plan(30, 1, kinds, topics, HOSTS)
    assert rounds != plan(30, 2, kinds, topics, HOSTS)
    assert 30 <= sum(KILLED_BY.get(each.fault.kind, 0) for each in rounds) < 33
    assert {each.fault.kind in PAUSES for each in rounds} == {True, False}
    assert {each.topic for each in rounds} == {"a", "b"}
    assert {each.away in HOSTS for each in rounds} == {True, False}
