"""The pure views of a cluster's state: rows of topics, the picture of replicas, loads of brokers."""

from __future__ import annotations

import pytest

from ottla.admin import (
    Broker,
    BrokerVersions,
    ClusterState,
    Feature,
    GroupListing,
    LogDir,
    MemberDescription,
    PartitionHealth,
    Reassignment,
    ReplicaOnDisk,
    Subtopology,
)
from ottla.admin.groups import GroupDescription, GroupProgress, PartitionProgress
from ottla.console.clusters.group_rows import (
    chosen_groups,
    group_row,
    lagging_partitions,
    partition_ranges,
    total_lag,
)
from ottla.console.clusters.replica_grid import (
    BrokerLoad,
    broker_loads,
    move_progress,
    planned_grid,
    replica_grid,
    unpreferred,
)
from ottla.console.clusters.topic_rows import TopicRow, chosen_topics, topic_rows
from ottla.console.logins.access import OWNER, Grant, Role, Viewer, seen_progress
from ottla.console.pages.versions import api_rows, feature_rows
from ottla.protocol.topics import TopicPartition


def health(topic: str, index: int, leader: int | None, replicas: str, isr: str) -> PartitionHealth:
    return PartitionHealth(
        TopicPartition(topic, index), leader, tuple(map(int, replicas)), tuple(map(int, isr))
    )


STATE = ClusterState(
    "id",
    1,
    tuple(Broker(number, "host", 9092, None, number == 1) for number in (1, 2)),
    (
        health("__consumer_offsets", 0, 1, "12", "12"),
        health("orders", 0, 1, "12", "12"),
        health("orders", 1, 2, "23", "2"),
        health("payments", 0, None, "3", "3"),
    ),
    log_dirs=(
        LogDir(
            1,
            "/data",
            (
                ReplicaOnDisk(TopicPartition("orders", 0), 100, 0),
                ReplicaOnDisk(TopicPartition("orders", 1), 50, 0),
            ),
        ),
    ),
)


def test_a_topic_has_its_partitions_replicas_faults_and_size() -> None:
    rows = {row.name: row for row in topic_rows(STATE)}

    assert rows["orders"] == TopicRow("orders", 2, 2, 1, 0, 150)
    assert rows["payments"] == TopicRow("payments", 1, 1, 0, 1, 0)
    assert rows["__consumer_offsets"].is_internal


def test_sizes_are_not_known_where_brokers_do_not_describe_their_directories() -> None:
    bare = ClusterState("id", 1, STATE.brokers, STATE.partitions)

    assert {row.size_bytes for row in topic_rows(bare)} == {-1}


def test_topics_are_found_by_all_words_and_sorted_by_health() -> None:
    rows = topic_rows(STATE)

    assert [row.name for row in chosen_topics(rows)] == ["orders", "payments"]
    assert chosen_topics(rows, internal=True)[0].name == "__consumer_offsets"
    assert [row.name for row in chosen_topics(rows, text="OR der")] == ["orders"]
    assert [row.name for row in chosen_topics(rows, order="health", descending=True)] == [
        "payments",
        "orders",
    ]
    assert [row.name for row in chosen_topics(rows, order="no such")] == ["orders", "payments"]


def test_the_picture_begins_with_the_worst_ends_with_internal_topics_and_has_absent_brokers() -> None:
    grid = replica_grid(STATE)

    assert grid.brokers == (1, 2, 3)
    assert [(row.name, row.roles) for row in grid.rows] == [
        ("payments-0", ("", "", "away")),
        ("orders-1", ("", "leader", "away")),
        ("orders-0", ("leader", "follower", "")),
        ("__consumer_offsets-0", ("leader", "follower", "")),
    ]


def test_a_picture_of_many_partitions_counts_those_that_it_leaves_out() -> None:
    grid = replica_grid(STATE, most=1)

    assert (len(grid.rows), grid.left_out) == (1, 3)
    assert [row.name for row in replica_grid(STATE, topic="orders").rows] == ["orders-1", "orders-0"]


def test_partitions_of_internal_topics_are_counted_where_they_are_not_asked_for() -> None:
    grid = replica_grid(STATE, internal=False)

    assert [row.name for row in grid.rows] == ["payments-0", "orders-1", "orders-0"]
    assert (grid.internal, grid.lacking_internal, grid.left_out) == (1, 0, 0)
    moving = Reassignment(TopicPartition("__consumer_offsets", 0), (1, 2), (3,), ())
    assert replica_grid(STATE, moves=[moving], internal=False).internal == 0


def test_topics_that_lack_replicas_or_a_leader_are_found() -> None:
    found = chosen_topics(topic_rows(STATE), internal=True, lacking=True)

    assert [row.name for row in found] == ["orders", "payments"]


@pytest.mark.parametrize(
    ("lags", "where"),
    [
        ({}, ""),
        ({0: 0, 1: None}, ""),
        ({0: 0, 1: 7}, "orders-1"),
        ({0: 3, 1: 7, 2: -2}, "2 partitions, the most in orders-1"),
    ],
)
def test_a_group_says_in_which_partitions_it_lags(lags: dict[int, int | None], where: str) -> None:
    partitions = [
        PartitionProgress(TopicPartition("orders", index), 10, None if lag is None else 10 + lag)
        for index, lag in lags.items()
    ]
    progress = GroupProgress(GroupDescription("billing", "Empty", "consumer", "", 1), tuple(partitions))

    assert lagging_partitions(progress) == where


def test_a_follower_outside_the_isr_lags() -> None:
    state = ClusterState("id", 1, STATE.brokers, (health("orders", 0, 1, "12", "1"),))

    assert replica_grid(state).rows[0].roles == ("leader", "lagging")
    assert broker_loads(state.partitions) == {1: BrokerLoad(1, 1, 0, 1), 2: BrokerLoad(0, 1, 1)}


def progress(*lags: tuple[int | None, int | None]) -> GroupProgress:
    partitions = tuple(
        PartitionProgress(TopicPartition("orders", index), offset, end)
        for index, (offset, end) in enumerate(lags)
    )
    return GroupProgress(GroupDescription("billing", "Stable", "consumer", "range", 1), partitions)


def test_a_commit_beyond_the_end_does_not_make_up_for_the_lag_of_another_partition() -> None:
    assert total_lag(progress((10, 30), (50, 40), (None, 7))) == 20
    assert total_lag(progress((None, 7), (5, None))) is None


def test_a_group_has_a_row_before_its_coordinator_has_answered() -> None:
    listing = GroupListing("billing", "Stable", "consumer")

    assert group_row(listing, None, "no answer").failure == "no answer"
    row = group_row(listing, progress((10, 30), (None, 7)))
    assert (row.lag, row.members, row.topics, row.unread) == (20, 0, ("orders",), 1)


def test_groups_are_found_by_words_and_state() -> None:
    groups = [GroupListing(name, state, "consumer") for name, state in (("b-1", "Empty"), ("a-1", "Stable"))]

    assert [group.name for group in chosen_groups(groups)] == ["a-1", "b-1"]
    assert [group.name for group in chosen_groups(groups, text="1", state="Empty")] == ["b-1"]


def test_groups_are_chosen_by_their_type() -> None:
    groups = [GroupListing(kind, "Stable", "consumer", kind) for kind in ("share", "classic")]

    assert [group.name for group in chosen_groups(groups, kind="share")] == ["share"]


def test_partitions_that_follow_each_other_are_shown_as_one() -> None:
    partitions = [TopicPartition("orders", index) for index in (3, 0, 1, 2, 7)] + [TopicPartition("a", 5)]

    assert partition_ranges(partitions) == "a 5; orders 0-3, 7"
    assert partition_ranges([]) == ""


def test_a_viewer_sees_nothing_of_other_topics_in_a_group() -> None:
    mine, other = TopicPartition("orders", 0), TopicPartition("salaries", 0)
    member = MemberDescription(
        "m", None, "counter", "host", (mine, other), topics=("orders", "salaries"), target=(mine, other)
    )
    group = GroupDescription(
        "g", "Stable", "streams", "", 1, (member,), "streams",
        subtopologies=(Subtopology("0", ("orders", "salaries"), ("g-salaries-changelog",)),),
    )  # fmt: skip
    progress = GroupProgress(
        group, tuple(PartitionProgress(where, 1, 2, member, (member,)) for where in (mine, other))
    )
    viewer = Viewer("anna", (Grant(Role.VIEWER, topics=("orders",)),))

    assert "salaries" not in str(seen_progress(viewer, "prod", progress))
    assert seen_progress(OWNER, "prod", progress) == progress


MOVED = Reassignment(TopicPartition("orders", 1), (2, 1, 3), (1,), (3,))
MOVING = ClusterState(
    "id",
    1,
    (*STATE.brokers, Broker(3, "host", 9092, None, False)),
    (health("orders", 0, 1, "12", "12"), health("orders", 1, 2, "213", "23")),
    log_dirs=tuple(
        LogDir(broker, "/data", (ReplicaOnDisk(TopicPartition("orders", 1), size, lag),))
        for broker, size, lag in ((1, 25, 30), (2, 100, 0), (3, 100, 0))
    ),
)


def test_the_picture_of_a_move_has_what_is_added_and_what_leaves() -> None:
    (row,) = replica_grid(MOVING, moves=[MOVED], only_moves=True).rows
    whole = replica_grid(MOVING, moves=[MOVED])

    assert (row.name, row.roles) == ("orders-1", ("added", "leader", "leaving"))
    assert [found.name for found in whole.rows] == ["orders-1", "orders-0"]


def test_a_move_is_as_far_as_its_new_replicas_have_bytes_of_the_leader() -> None:
    (found,) = move_progress(MOVING, [MOVED])
    silent = ClusterState("id", 1, MOVING.brokers, MOVING.partitions, log_dirs=MOVING.log_dirs[1:])

    assert (found.copied_bytes, found.total_bytes, found.percent) == (25, 100, 25)
    assert move_progress(silent, [MOVED])[0].percent is None


def test_a_plan_is_drawn_as_it_will_be() -> None:
    where = TopicPartition("orders", 0)
    grid = planned_grid({where: (1, 2)}, {where: (2, 3)})

    assert (grid.brokers, grid.rows[0].roles) == ((1, 2, 3), ("leaving", "leader", "added"))


def test_partitions_without_their_preferred_leader_are_found() -> None:
    found = [health("a", 0, 1, "12", "12"), health("b", 0, 2, "12", "12"), health("c", 0, None, "12", "1")]

    assert [found.partition.topic for found in unpreferred(found)] == ["b"]


def test_versions_that_differ_between_brokers_come_first() -> None:
    found = {
        1: BrokerVersions(1, {"Fetch": (0, 12), "Produce": (0, 9)}, (Feature("group.version", 1, 0, 1),)),
        2: BrokerVersions(2, {"Fetch": (0, 12), "Produce": (3, 9), "777": (1, 1)}, ()),
    }

    assert [(row.name, row.values, row.differs) for row in api_rows(found)] == [
        ("777", ("", "1"), True), ("Produce", ("0 to 9", "3 to 9"), True),
        ("Fetch", ("0 to 12", "0 to 12"), False),
    ]  # fmt: skip
    assert [(row.name, row.level, row.values) for row in feature_rows(found)] == [
        ("group.version", 1, ("0 to 1", "")),
    ]


def test_a_lag_that_is_known_in_part_is_said_to_be() -> None:
    listing = GroupListing("billing", "Empty", "consumer")
    row = group_row(listing, progress((10, 30), (10, None), (None, None)))

    assert (row.lag, row.unknown) == (20, 1)
