"""Sharing out partitions as the documents of Kafka 0.8 say, and as its Java code does."""

from __future__ import annotations

import pytest

from ottla.consumer.zookeeper import Blacklist, Whitelist
from ottla.consumer.zookeeper.assignment import (
    GroupView,
    ThreadId,
    java_hash,
    range_assignment,
    round_robin_assignment,
    streams_of,
)
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition
from ottla.zookeeper.znodes import ConsumerRegistration


def member(name: str, pattern: str = "static", **subscription: int) -> ConsumerRegistration:
    return ConsumerRegistration("g", name, subscription, pattern, 0)


def counts(view: GroupView) -> dict[str, int]:
    owners = range_assignment(view)
    found = {str(thread): 0 for threads in view.threads().values() for thread in threads}
    for thread in owners.values():
        found[str(thread)] += 1
    return found


def test_five_partitions_over_two_members_with_two_threads_are_two_one_one_one() -> None:
    view = GroupView([member("g_c1", t=2), member("g_c2", t=2)], {"t": range(5)})

    owners = range_assignment(view)

    assert counts(view) == {"g_c1-0": 2, "g_c1-1": 1, "g_c2-0": 1, "g_c2-1": 1}
    assert owners[TopicPartition("t", 0)] == owners[TopicPartition("t", 1)] == ThreadId("g_c1", 0)
    assert str(owners[TopicPartition("t", 4)]) == "g_c2-1"


def test_more_threads_than_partitions_leave_some_idle() -> None:
    view = GroupView([member("g_b", t=1), member("g_a", t=2)], {"t": range(2)})

    assert counts(view) == {"g_a-0": 1, "g_a-1": 1, "g_b-0": 0}


def test_threads_are_ordered_as_texts() -> None:
    view = GroupView([member("g_a", t=11)], {"t": range(12)})

    owners = range_assignment(view)

    assert owners[TopicPartition("t", 0)] == owners[TopicPartition("t", 1)] == ThreadId("g_a", 0)
    assert owners[TopicPartition("t", 3)] == ThreadId("g_a", 10)
    assert owners[TopicPartition("t", 4)] == ThreadId("g_a", 2)


def test_a_topic_that_does_not_exist_has_nothing_to_own() -> None:
    assert range_assignment(GroupView([member("g_a", t=1)], {"t": ()})) == {}


def test_every_partition_has_one_owner_who_wants_its_topic() -> None:
    view = GroupView(
        [member("g_a", t=1, u=3), member("g_b", u=1), member("g_c", "white_list", **{"t|u": 2})],
        {"t": range(7), "u": range(5)},
        ["t", "u", "v"],
    )

    for assign in (range_assignment, round_robin_assignment):
        owners = assign(view)
        assert set(owners) == {TopicPartition(t, p) for t in "tu" for p in view.partitions[t]}
        assert all(thread in view.threads()[each.topic] for each, thread in owners.items())


def test_round_robin_deals_evenly_where_all_want_the_same() -> None:
    view = GroupView([member("g_a", t=2, u=2), member("g_b", t=2, u=2)], {"t": range(5), "u": range(4)})

    owners = list(round_robin_assignment(view).values())

    assert sorted(owners.count(each) for each in set(owners)) == [2, 2, 2, 3]


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31))]
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_lists_take_topics_as_java_does() -> None:
    white, black = Whitelist(' "orders, pay.*" '), Blacklist("orders")

    assert white.regex == "orders|pay.*"
    assert [white.allows(each) for each in ("orders", "payments", "orders2")] == [True, True, False]
    assert [black.allows(each) for each in ("orders", "payments")] == [False, True]
    assert not any(black.allows(each) for each in INTERNAL_TOPICS)
    assert Whitelist("__.*").allows("__consumer_offsets", exclude_internal=False)


def test_an_expression_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        Whitelist("(")


def test_a_wildcard_has_its_threads_in_every_topic_it_takes() -> None:
    wild = member("g_w", "black_list", a=2)

    assert streams_of(wild, ["a", "b", "__consumer_offsets"]) == {
        "b": [ThreadId("g_w", 0), ThreadId("g_w", 1)]
    }
