"""A follower's half of fetch sessions, against the leader's half."""

from __future__ import annotations

from random import Random

from ottla.broker.api.fetch.sessions import FetchSessions, RequestedPartition
from ottla.broker.replication.fetch_session import FetchSession, SessionRequest
from ottla.broker.replication.follower_rules import FetchPosition
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int) -> FetchPosition:
    return FetchPosition(offset, 3, 2, 0)


def test_a_session_begins_with_all_and_goes_on_with_what_changed() -> None:
    session = FetchSession()
    session.want(T0, at(5))
    session.want(T1, at(6))

    assert session.next_request() == SessionRequest(0, 0, [(T0, at(5)), (T1, at(6))], [])
    session.answered(77)
    session.want(T0, at(8))
    session.want(T1, at(6))

    assert session.next_request() == SessionRequest(77, 1, [(T0, at(8))], [])
    session.answered(77)
    session.drop(T0)
    assert session.next_request() == SessionRequest(77, 2, [], [T0])
    session.answered(77)
    session.want(T0, at(8))
    assert session.next_request() == SessionRequest(77, 3, [(T0, at(8))], [])


def test_without_a_session_every_request_has_all() -> None:
    session = FetchSession()
    session.want(T0, at(5))
    for _ in range(3):
        assert session.next_request() == SessionRequest(0, 0, [(T0, at(5))], [])
        session.answered(0)


def test_after_a_loss_a_new_session_begins_and_ends_the_old_one() -> None:
    session = FetchSession()
    session.want(T0, at(5))
    session.next_request()
    session.answered(77)
    session.drop(T0)
    session.want(T1, at(6))
    session.next_request()

    session.lost()

    assert session.next_request() == SessionRequest(77, 0, [(T1, at(6))], [])
    session.lost(unknown=True)
    assert session.next_request() == SessionRequest(0, 0, [(T1, at(6))], [])


def test_the_leader_knows_what_the_follower_wants_whatever_is_lost() -> None:
    for seed in range(200):
        random = Random(seed)
        leader = FetchSessions(2, lambda random=random: random.randrange(1, 1 << 30))  # type: ignore[misc]
        session = FetchSession()
        wanted: dict[TopicPartition, FetchPosition] = {}
        for _ in range(40):
            change(session, wanted, random)
            if not wanted:
                continue
            request = session.next_request()
            try:
                seen, session_id = served(leader, request)
            except KafkaError:
                session.lost(unknown=random.random() < 0.5)
                continue
            assert seen == wanted, seed
            if random.random() < 0.2:
                session.lost()  # the answer is
            else:
                session.answered(session_id)
            if random.random() < 0.1:  # others drive the session out
                for _ in range(2):
                    served(leader, SessionRequest(0, 0, [(T0, at(0))], []))


def change(session: FetchSession, wanted: dict[TopicPartition, FetchPosition], random: Random) -> None:
    for _ in range(random.randrange(4)):
        name = TopicPartition("t", random.randrange(4))
        if random.random() < 0.3:
            session.drop(name)
            wanted.pop(name, None)
        else:
            wanted[name] = at(random.randrange(3))
            session.want(name, wanted[name])


def served(leader: FetchSessions, request: SessionRequest) -> tuple[dict[TopicPartition, FetchPosition], int]:
    """The partitions that the leader reads for a request, and the session it answers with."""
    changed = [
        RequestedPartition(name, at.offset, 1, at.leader_epoch, at.last_fetched_epoch, at.log_start_offset)
        for name, at in request.changed
    ]
    context = leader.open(
        request.session_id, request.epoch, changed, request.forgotten, privileged=True, now_ms=0
    )
    seen = {
        one.topic_partition: FetchPosition(
            one.fetch_offset, one.current_leader_epoch, one.last_fetched_epoch, one.log_start_offset
        )
        for one in context.wanted
    }
    return seen, context.session_id
