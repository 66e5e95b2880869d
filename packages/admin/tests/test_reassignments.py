"""Plans of reassignments: their files, and how replicas are spread."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.admin.balancing import TooFewBrokers, balanced
from ottla.admin.reassigning import (
    CopyRates,
    MalformedReassignment,
    PartitionPlan,
    decode_plans,
    decode_topics,
    encode_plans,
    throttled_replicas,
)
from ottla.admin.replicas import StoredBatch, compare
from ottla.protocol.topics import TopicPartition


def p(index: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, index)


def test_a_plan_is_written_and_read_as_kafkas_tool_does() -> None:
    plans = [PartitionPlan(p(1), (3, 1), ("any", "/data")), PartitionPlan(p(0), (1, 2))]

    text = encode_plans(plans)

    first = {"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}
    assert json.loads(text)["partitions"][0] == first
    assert decode_plans(text)[1] == plans[0]
    assert plans[0].chosen_dirs == {1: "/data"}
    assert decode_topics('{"version": 1, "topics": [{"topic": "orders"}]}') == ["orders"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("{", "not JSON"),
        ("[]", 'not an object with a list "partitions"'),
        ('{"version": 2, "partitions": []}', "version 2 is not known"),
        ('{"partitions": []}', "no partition is named"),
        ('{"partitions": [{"topic": "a", "replicas": [1]}]}', 'no "partition" of the right type'),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "must be a list of broker ids"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "named twice in replicas"),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": []},'
            ' {"topic": "a", "partition": 0, "replicas": [2]}]}',
            "a-0 is named twice",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["/x"]}]}',
            "2 replicas and 1 log_dirs",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_the_entry(text: str, advice: str) -> None:
    with pytest.raises(MalformedReassignment, match=advice):
        decode_plans(text)


def test_a_new_broker_gets_its_share_with_the_fewest_moves() -> None:
    current = {p(index): (1 + index % 2, 2 - index % 2) for index in range(12)}

    found = balanced(current, {1: None, 2: None, 3: None})

    assert Counter(broker for replicas in found.values() for broker in replicas) == {1: 8, 2: 8, 3: 8}
    assert Counter(replicas[0] for replicas in found.values()) == {1: 4, 2: 4, 3: 4}
    assert sum(len(set(found[each]) - set(current[each])) for each in current) == 8


def test_replicas_are_spread_by_their_size() -> None:
    current = {p(0): (1,), p(1): (1,), p(2): (1,), p(3): (2,)}
    sizes = {p(0): 600, p(1): 300, p(2): 300, p(3): 0}

    found = balanced(current, {1: None, 2: None}, weights=sizes)

    loads = Counter[int]()
    for partition, (broker,) in found.items():
        loads[broker] += sizes[partition]
    assert loads == {1: 600, 2: 600}


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    current = {p(index): (1, 2) for index in range(8)}

    found = balanced(dict.fromkeys(current, (1,)), racks, replication_factor=2)

    assert {len({racks[broker] for broker in replicas}) for replicas in found.values()} == {2}


def test_more_replicas_than_brokers_are_refused() -> None:
    advice = "but there are 2 brokers: name more, or ask for fewer replicas with --replication-factor"
    with pytest.raises(TooFewBrokers, match=f"orders-0 is to have 3 replicas, {advice}"):
        balanced({p(0): (1,)}, {1: None, 2: None}, replication_factor=3)


ASSIGNMENTS = st.dictionaries(
    st.builds(p, st.integers(0, 30), st.sampled_from(["a", "b"])),
    st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True),
    min_size=1,
)


@given(ASSIGNMENTS, st.dictionaries(st.integers(3, 9), st.sampled_from([None, "r1", "r2"]), min_size=3))
def test_every_spread_keeps_the_number_of_replicas_and_is_even(
    current: dict[TopicPartition, list[int]], racks: dict[int, str | None]
) -> None:
    found = balanced(current, racks)

    assert {each: len(replicas) for each, replicas in found.items()} == {
        each: len(replicas) for each, replicas in current.items()
    }
    assert all(
        len(set(replicas)) == len(replicas) and set(replicas) <= set(racks) for replicas in found.values()
    )
    loads = Counter(dict.fromkeys(racks, 0))
    loads.update(broker for replicas in found.values() for broker in replicas)
    if set(racks.values()) == {None}:
        assert max(loads.values()) - min(loads.values()) <= 1
    assert balanced(found, racks) == found


def test_leaders_send_from_all_old_replicas_and_only_new_ones_receive_within_the_throttle() -> None:
    found = throttled_replicas({p(0): (1, 2), p(1): (1,)}, {p(0): (2, 3), p(1): (1,)})

    assert found == {
        "orders": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        }
    }


def test_batches_are_compared_as_far_as_all_replicas_have_them() -> None:
    batches = [StoredBatch(0, 4, 7), StoredBatch(5, 5, 8), StoredBatch(6, 9, 9)]

    assert compare({1: batches, 2: batches[:2]}, 0, 10).next_offset == 6
    assert compare({1: batches, 2: batches}, 0, 6).batches == 2
    assert compare({1: batches, 2: []}, 0, 6).batches == 0


def test_the_first_difference_of_two_replicas_is_named() -> None:
    same = StoredBatch(0, 4, 7)
    unreadable = StoredBatch(0, 4, 7, "record 2 of 5 is malformed")
    named = compare({1: [unreadable, StoredBatch(5, 5, 8)], 3: [same, StoredBatch(5, 5, 8)]}, 0, 9)
    assert (named.difference, named.unreadable) == (None, (unreadable,))

    damaged = compare({1: [same, StoredBatch(5, 5, 8)], 3: [same, StoredBatch(5, 5, 10)]}, 0, 9)
    shifted = compare({1: [same], 3: [StoredBatch(0, 3, 7)]}, 0, 9)

    assert damaged.difference == (
        "the batch at 5-5 has checksum 00000008 on replica 1, 0000000a on replica 3"
    )
    assert shifted.difference == "replica 1 has a batch at 0-4, replica 3 at 0-3"


def test_the_time_that_is_left_of_a_copy_follows_from_its_progress() -> None:
    rates, one, other = CopyRates(), TopicPartition("t", 0), TopicPartition("t", 1)

    assert rates.left_s({one: 100}) is None
    rates.look(0.0, {one: 0, other: 50})
    rates.look(0.0, {one: 0})
    assert rates.bytes_per_s(one) is None
    rates.look(10.0, {one: 100, other: 50})
    assert (rates.bytes_per_s(one), rates.bytes_per_s(other)) == (10.0, 0.0)
    assert rates.left_s({other: 50}) is None
    assert rates.left_s({one: 200, other: 50}) == 25.0
    rates.look(20.0, {one: 700, other: 0})
    assert rates.bytes_per_s(one) == 35.0
    assert rates.bytes_per_s(other) is None  # it was begun again


def test_rates_of_copies_are_of_the_last_two_minutes_and_take_bounded_memory() -> None:
    rates, one, other = CopyRates(), TopicPartition("t", 0), TopicPartition("t", 1)
    rates.look(0.0, {other: 0})
    for second in range(0, 1_000, 4):
        rates.look(float(second), {one: 1_000 * second if second < 500 else 500_000 + 10 * (second - 500)})

    assert rates.bytes_per_s(one) == 10.0
    rates.look(996.5, {one: 504_965})
    assert rates.bytes_per_s(other) is None
    assert rates.left_s({}) is None
