"""Where replicas go."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ottla.broker.cluster.placement import assign_replicas, interleave_by_rack, new_id
from ottla.protocol.errors import BrokerNotAvailable, InvalidPartitions, InvalidReplicationFactor
from ottla.zookeeper.znodes.topics import encode_topic_id


class Dice(Random):
    """Falls as it is told."""

    def __init__(self, *falls: int) -> None:
        super().__init__(0)
        self._falls = list(falls)

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self._falls.pop(0)


def test_twenty_brokers_and_partitions_with_ten_replicas_are_placed_as_in_the_worked_example() -> None:
    assignments = assign_replicas(range(20), 20, 10, random=Dice(19, 0))

    assert assignments == {
        partition: [(partition + 19 + step) % 20 for step in range(10)] for partition in range(20)
    }


def test_the_leaderships_of_a_dead_broker_spread_over_all_the_others() -> None:
    assignments = assign_replicas(range(6), 120, 3, random=Dice(0, 0))

    successors = Counter(replicas[1] for replicas in assignments.values() if replicas[0] == 0)

    assert successors == {1: 4, 2: 4, 3: 4, 4: 4, 5: 4}


def test_partitions_added_later_continue_the_pattern() -> None:
    whole = assign_replicas(range(5), 10, 3, random=Random(0), start_index=2)

    added = assign_replicas(range(5), 4, 3, random=Random(0), start_index=2, first_partition=6)

    assert {p: replicas[0] for p, replicas in added.items()} == {p: whole[p][0] for p in range(6, 10)}


def test_replicas_alternate_between_racks() -> None:
    assert interleave_by_rack({0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}) == [0, 3, 1, 5, 4, 2]


@pytest.mark.parametrize("seed", range(10))
def test_replicas_are_in_different_racks_as_far_as_there_are_racks(seed: int) -> None:
    racks = {broker: f"r{broker % 3}" for broker in range(6)}

    assignments = assign_replicas(list(racks), 30, 3, random=Random(seed), racks=racks)

    for replicas in assignments.values():
        assert {racks[broker] for broker in replicas} == {"r0", "r1", "r2"}
    assert set(Counter(replicas[0] for replicas in assignments.values()).values()) == {5}


def test_more_replicas_than_racks_use_a_rack_twice_but_no_broker() -> None:
    racks = {broker: f"r{broker % 2}" for broker in range(4)}

    assignments = assign_replicas(list(racks), 8, 4, random=Random(1), racks=racks)

    assert all(sorted(replicas) == [0, 1, 2, 3] for replicas in assignments.values())


def test_racks_are_not_used_when_a_broker_has_none() -> None:
    assignments = assign_replicas([0, 1, 2], 3, 1, random=Dice(0, 0), racks={0: "a", 1: None, 2: "a"})

    assert assignments == {0: [0], 1: [1], 2: [2]}


def test_more_replicas_than_brokers_are_refused_with_kafkas_message() -> None:
    with pytest.raises(
        InvalidReplicationFactor, match=r"Replication factor: 4 larger than available brokers: 3\."
    ):
        assign_replicas([0, 1, 2], 1, 4, random=Random(0))


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "error"),
    [([0], 0, 1, InvalidPartitions), ([0], 1, 0, InvalidReplicationFactor), ([], 1, 1, BrokerNotAvailable)],
)
def test_counts_below_one_and_an_empty_cluster_are_refused(
    brokers: list[int], partitions: int, factor: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        assign_replicas(brokers, partitions, factor, random=Random(0))


def test_an_id_of_a_topic_or_a_token_never_begins_with_a_dash() -> None:
    random = Random(0)

    assert not [text for _ in range(1_000) if (text := encode_topic_id(new_id(random))).startswith("-")]
