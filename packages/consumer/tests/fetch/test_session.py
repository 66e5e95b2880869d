from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.consumer.fetch.session import FetchSession, Wanted, are_named_by_id
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import TopicPartition

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))
ids = st.sampled_from([ZERO_UUID, UUID(int=1), UUID(int=2)])
wanted = st.dictionaries(partitions, st.builds(Wanted, st.integers(0, 3), st.integers(0, 1), ids), max_size=5)


class Broker:
    """The other side of a session, as KIP-227 has it."""

    def __init__(self) -> None:
        self.sessions: dict[int, dict[TopicPartition, Wanted]] = {}
        self.epoch = 0
        self.next_id = 100


@given(st.lists(st.tuples(wanted, st.sampled_from(["answer", "lose", "evict", "full"])), max_size=12))
def test_the_session_of_the_broker_always_equals_the_wanted_partitions(
    steps: list[tuple[dict[TopicPartition, Wanted], str]],
) -> None:
    session, broker, by_id = FetchSession(), Broker(), False
    for asks, fate in steps:
        asked = session.next_request(asks)
        if asked.epoch == -1:
            assert (asked.session_id, asked.partitions, asked.forgotten) == (0, asks, {})
            session.answered(0, ErrorCode.NONE)
            continue
        if asked.epoch == 0:
            broker.sessions.pop(asked.session_id, None)
            known = dict(asked.partitions)
            assert not asked.forgotten
            if fate != "full":
                broker.next_id += 1
                broker.sessions[broker.next_id] = known
            session_id, broker.epoch = (0 if fate == "full" else broker.next_id), 1
        elif asked.session_id not in broker.sessions:
            session.answered(0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            continue
        else:
            assert asked.epoch == broker.epoch
            session_id, known = asked.session_id, broker.sessions[asked.session_id]
            for gone, topic_id in asked.forgotten.items():
                assert known.pop(gone).topic_id == topic_id
            known |= asked.partitions
            broker.epoch += 1
        assert known == asks
        assert asked.epoch == 0 or are_named_by_id(asks) == by_id or not asks
        by_id = are_named_by_id(asks)
        if fate == "lose":
            session.reset()
        else:
            session.answered(session_id, ErrorCode.NONE)
        if fate == "evict":
            broker.sessions.clear()


def test_a_single_partition_needs_no_session_unless_one_is_open() -> None:
    session = FetchSession()
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)

    epochs = [session.next_request({a: Wanted(0, 0)}).epoch]
    session.answered(0, ErrorCode.NONE)
    for wants in ((a, b), (a,), (a, b)):
        asked = session.next_request({partition: Wanted(0, 0) for partition in wants})
        session.answered(7, ErrorCode.NONE)
        epochs.append(asked.epoch)

    assert epochs == [-1, 0, 1, 2]


def test_only_what_changed_is_said_again() -> None:
    session = FetchSession()
    a, b, c = (TopicPartition("t", n) for n in range(3))
    session.next_request({a: Wanted(0, 0), b: Wanted(0, 0)})
    session.answered(7, ErrorCode.NONE)

    asked = session.next_request({a: Wanted(5, 0), c: Wanted(0, 0)})

    assert (asked.session_id, asked.epoch) == (7, 1)
    assert asked.partitions == {a: Wanted(5, 0), c: Wanted(0, 0)}
    assert set(asked.forgotten) == {b}
