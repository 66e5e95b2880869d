"""Until when a member may believe that it is in its group."""

from __future__ import annotations

from ottla.consumer.group.session import Session


def looked_at(session: Session, *times_s: float, is_awaiting: bool) -> float | None:
    for each in times_s:
        session.look(each, is_awaiting=is_awaiting)
    return session.ends_s


def test_there_is_no_session_before_the_first_answer() -> None:
    assert looked_at(Session(10_000), 0, 1, 2, is_awaiting=False) is None


def test_a_heartbeat_keeps_the_member_from_when_it_was_sent() -> None:
    session = Session(10_000)
    session.kept_at(5)
    session.kept_at(3)

    assert looked_at(session, 6, 7, is_awaiting=False) == 15


def test_a_member_that_awaits_an_answer_is_kept() -> None:
    session = Session(10_000)

    assert looked_at(session, *range(30), is_awaiting=True) == 39


def test_an_answer_after_the_process_stood_still_may_be_old() -> None:
    session = Session(10_000)
    looked_at(session, 0, 1, 2, is_awaiting=True)

    session.answered(20)
    assert session.ends_s == 12
    assert looked_at(session, 20, is_awaiting=True) == 12
    assert looked_at(session, 21, is_awaiting=True) == 31, "the answer did not stand before it"


def test_an_answer_is_a_sign_of_life_while_the_process_runs() -> None:
    session = Session(10_000)
    looked_at(session, 0, 1, is_awaiting=False)
    session.answered(1.5)

    assert session.ends_s == 11.5
