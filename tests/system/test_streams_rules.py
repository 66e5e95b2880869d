"""The rules by which `streams_chaos` judges a group find each violation, and accept what may happen."""

from __future__ import annotations

import pytest
from streams_journal import Event, Kind
from streams_rules import Rules

A, B = 1, 2


def start(
    number: int, member: int = A, *, key: int = 0, offset: int | None = None, attempt: int = 0
) -> Event:
    return Event(Kind.STARTED, member, 0, number if offset is None else offset, key, number, attempt)


def end(number: int, member: int = A, *, key: int = 0, offset: int | None = None) -> Event:
    return Event(Kind.FINISHED, member, 0, number if offset is None else offset, key, number)


def failed(number: int, member: int = A) -> Event:
    return Event(Kind.FAILED, member, 0, number, 0, number)


def of_partition(kind: Kind, member: int = A, offset: int = 0) -> Event:
    return Event(kind, member, 0, offset)


ASSIGNED, REVOKED, LOST, KILLED = (
    of_partition(kind) for kind in (Kind.ASSIGNED, Kind.REVOKED, Kind.LOST, Kind.KILLED)
)
ASSIGNED_TO_B = of_partition(Kind.ASSIGNED, B)


def judged(*events: Event) -> Rules:
    rules = Rules(partitions=1, keys=2)
    rules.feed(events)
    return rules


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        pytest.param([ASSIGNED, start(1)], "1", id="a record is skipped"),
        pytest.param([ASSIGNED, start(0), end(0), start(0)], "2", id="a key goes back in an assignment"),
        pytest.param([ASSIGNED, start(0), failed(0), start(1)], "2", id="a failed record is passed over"),
        pytest.param([ASSIGNED, start(0), start(1, attempt=8)], "3", id="two records of a key run at once"),
        pytest.param(
            [ASSIGNED, start(0), end(0), REVOKED, ASSIGNED_TO_B, start(0, B)], "4", id="a drained one repeats"
        ),
        pytest.param([ASSIGNED, start(0), REVOKED], "6", id="a handler runs after its partition is revoked"),
        pytest.param([ASSIGNED, start(0), end(0), of_partition(Kind.LEFT)], "6", id="one leaves undrained"),
        pytest.param([start(0)], "7", id="a record is handled without its partition"),
        pytest.param([ASSIGNED, ASSIGNED_TO_B, REVOKED], "7", id="a partition has two owners"),
    ],
)
def test_a_violation_is_found(events: list[Event], rule: str) -> None:
    assert rule in [line[0] for line in judged(*events).wrong]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([ASSIGNED, start(0), end(0), start(1), end(1)], id="one after the other"),
        pytest.param([ASSIGNED, start(0), failed(0), start(0), end(0), start(1)], id="again after a failure"),
        pytest.param([ASSIGNED, start(0), start(1), end(0), end(1), start(2)], id="a batch of a key"),
        pytest.param([ASSIGNED, start(0), KILLED, ASSIGNED_TO_B, start(0, B), end(0, B)], id="after a kill"),
        pytest.param(
            [ASSIGNED, start(0), end(0), KILLED, ASSIGNED_TO_B, start(0, B), end(0, B), start(1, B)],
            id="finished before a kill and not committed",
        ),
        pytest.param(
            [ASSIGNED, start(0), ASSIGNED_TO_B, start(0, B), end(0), LOST, end(0, B)],
            id="one that stood still and then loses the partition",
        ),
        pytest.param(
            [ASSIGNED_TO_B, of_partition(Kind.PAUSED), ASSIGNED, start(0, B), LOST, end(0, B), start(1, B)],
            id="one that stood still before it learnt of an assignment that is over",
        ),
    ],
)
def test_what_may_happen_is_accepted(events: list[Event]) -> None:
    assert judged(*events).wrong == []


def test_a_commit_beyond_an_unfinished_record_is_found() -> None:
    rules = judged(ASSIGNED, start(0), end(0), start(0, key=1, offset=1))

    rules.commit_read(0, 1, ())
    assert rules.wrong == []
    rules.commit_read(0, 1, ((1, 2),))
    rules.commit_read(0, 2, ())
    assert [line[0] for line in rules.wrong] == ["c", "c"]


def test_a_repetition_of_what_a_commit_named_is_found() -> None:
    rules = judged(ASSIGNED, start(0), end(0), start(0, key=1, offset=1), end(0, key=1, offset=1))

    rules.commit_read(0, 0, ((1, 2),))
    rules.feed([KILLED, ASSIGNED_TO_B, start(0, B), start(0, B, key=1, offset=1)])
    assert [line[0] for line in rules.wrong] == ["5"]


def test_records_that_were_never_handled_are_found() -> None:
    rules = judged(ASSIGNED, start(0), end(0))

    rules.commit_read(0, 1, ())
    rules.judge_end([1], [1, 0])
    assert rules.wrong == []
    rules.judge_end([2], [1, 1])
    assert [line[0] for line in rules.wrong] == ["b", "b", "b"]
