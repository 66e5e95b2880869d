"""How the group in memory shares partitions."""

from __future__ import annotations

from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.cluster import balanced, rotated

ORDERS = [TopicPartition("orders", each) for each in range(4)]
ITEMS = [TopicPartition("items", each) for each in range(2)]


def test_partitions_stay_where_they_are_unless_another_member_has_fewer() -> None:
    owned = {"a": set(ORDERS), "b": set[TopicPartition]()}

    target = balanced(ORDERS, [("a", {"orders"}), ("b", {"orders"})], owned)

    assert target["a"] < owned["a"]
    assert (len(target["a"]), target["a"] | target["b"]) == (2, set(ORDERS))


def test_a_member_gets_topics_that_it_reads_only() -> None:
    members = [("a", {"orders", "items"}), ("b", {"items"})]

    target = balanced([*ORDERS, *ITEMS], members, {})

    assert target == {"a": set(ORDERS), "b": set(ITEMS)}


def test_partitions_of_topics_that_nobody_reads_stay_free() -> None:
    assert balanced(ORDERS, [("a", {"items"})], {}) == {"a": set()}


def test_a_rotation_gives_each_member_what_the_next_one_had() -> None:
    one, two = {ORDERS[0]}, {ORDERS[1]}

    assert rotated(["a", "b"], {"a": one, "b": two}) == {"a": two, "b": one}
