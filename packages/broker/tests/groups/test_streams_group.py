"""A streams group as Kafka 4.4 coordinates it: epochs, tasks, topics, static members, fences and replay."""

from __future__ import annotations

import pytest

from ottla.broker.groups.streams.state import StreamsGroupState
from ottla.broker.groups.streams.tasks import TaskId
from ottla.broker.groups.streams.testing import (
    REBALANCE_MS,
    SESSION_MS,
    SimulatedMember,
    StreamsDriver,
    assert_same,
    counting,
    joined,
    settle,
    settled,
    stateless,
)
from ottla.broker.groups.streams.topic_configuration import StatusCode
from ottla.protocol.errors import (
    ErrorCode,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    StreamsInvalidTopology,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.protocol.messages.streams_group_describe import Endpoint, KeyValue, TaskIds, TaskOffset, TopicInfo
from ottla.protocol.messages.streams_groups import CopartitionGroup, Subtopology, Topology
from ottla.protocol.topics import TopicPartition

WITH_TOPICS = {"words": 2, "app-by-word-repartition": 2, "app-counts-changelog": 2}
ALL_TASKS = {TaskId(name, number) for name in ("0", "1") for number in range(2)}


# ---- tasks


def test_the_first_member_gets_every_task() -> None:
    driver = StreamsDriver(WITH_TOPICS)

    (member,) = settled(driver, "a")

    assert member.active == ALL_TASKS
    assert driver.group.state is StreamsGroupState.STABLE
    assert (driver.group.data.facts.epoch, member.epoch) == (2, 2)


def test_a_second_member_gets_tasks_once_the_first_has_given_them_up() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (first,) = settled(driver, "a")
    second = SimulatedMember(driver, "b")

    second.join()
    assert not second.active
    assert driver.group.state.value == "Reconciling"
    first.beat()
    kept = first.active
    second.beat()
    assert len(kept) == 2
    assert not second.active, "the first one has not said yet that it gave them up"

    settle([first, second])

    assert first.active == kept
    assert first.active | second.active == ALL_TASKS
    assert driver.group.state is StreamsGroupState.STABLE


def test_standby_tasks_go_to_another_process() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_num_standby_replicas="1")

    first, second = settled(driver, "a", "b")

    of_state = {TaskId("1", 0), TaskId("1", 1)}
    assert first.standby == of_state - first.active
    assert second.standby == of_state - second.active


def test_a_change_of_the_standby_replicas_makes_a_new_assignment() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    members = settled(driver, "a", "b")
    epoch = driver.group.data.facts.epoch

    driver.own_settings["streams.num.standby.replicas"] = "1"
    settle(members)

    assert driver.group.data.facts.epoch == epoch + 1
    assert sum(len(member.standby) for member in members) == 2


def test_a_silent_member_is_removed_and_its_tasks_move() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first, _ = settled(driver, "a", "b")

    driver.wait(SESSION_MS - 1)
    first.beat()
    driver.wait(1)
    settle([first])

    assert list(driver.group.data.members) == ["a"]
    assert first.active == ALL_TASKS


def test_a_member_that_does_not_give_tasks_up_is_removed() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_max_session_timeout_ms="600000")
    driver.own_settings["streams.session.timeout.ms"] = "600000"
    first = settled(driver, "a")[0]
    second = SimulatedMember(driver, "b")
    second.join()
    driver.heartbeat("a", first.epoch)

    driver.wait(REBALANCE_MS)
    settle([second])

    assert second.active == ALL_TASKS
    with pytest.raises(UnknownMemberId):
        first.beat()


def test_the_first_assignment_waits_for_more_members() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_initial_rebalance_delay_ms="3000")
    first, second = settled(driver, "a", "b")
    assert first.status == [StatusCode.ASSIGNMENT_DELAYED]
    assert (first.epoch, first.active) == (1, frozenset())

    driver.wait(3_000)
    settle([first, second], rounds=1)

    assert len(first.active) == len(second.active) == 2, "no task had to move"
    assert first.status == []


def test_assignments_have_an_interval() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_assignment_interval_ms="1000")
    first = settled(driver, "a")[0]
    second = SimulatedMember(driver, "b")

    second.join()
    assert second.status == [StatusCode.ASSIGNMENT_DELAYED]
    driver.wait(1_000)
    settle([first, second])

    assert len(second.active) == 2


# ---- topics


def test_missing_source_topics_are_said_and_awaited() -> None:
    driver = StreamsDriver({})
    (member,) = settled(driver, "a", topology=stateless())
    assert member.status == [StatusCode.MISSING_SOURCE_TOPICS]
    assert driver.group.state is StreamsGroupState.NOT_READY

    driver.publish({"words": 3})
    settle([member])

    assert member.status == []
    assert len(member.active) == 3


def test_missing_internal_topics_are_to_be_created_with_the_partitions_of_the_source() -> None:
    driver = StreamsDriver({"words": 2})
    (member,) = settled(driver, "a")

    assert member.status == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert {name: topic.partitions for name, topic in member.last.missing_topics.items()} == {
        "app-by-word-repartition": 2, "app-counts-changelog": 2,
    }  # fmt: skip
    driver.publish(WITH_TOPICS)
    settle([member])

    assert member.active == ALL_TASKS
    assert not member.last.missing_topics


def test_topics_that_are_joined_must_have_equally_many_partitions() -> None:
    driver = StreamsDriver({"left": 2, "right": 3})

    (member,) = settled(driver, "a", topology=joined(0, "left", "right"))

    assert member.status == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]


def test_a_topic_that_grows_makes_a_new_assignment() -> None:
    driver = StreamsDriver({"words": 2})
    (member,) = settled(driver, "a", topology=stateless())

    driver.publish({"words": 4})
    settle([member])

    assert len(member.active) == 4


@pytest.mark.parametrize(
    "topology",
    [
        Topology(epoch=-1, subtopologies=[]),
        Topology(subtopologies=[Subtopology(subtopology_id="0"), Subtopology(subtopology_id="0")]),
        Topology(subtopologies=[Subtopology(state_changelog_topics=[TopicInfo(name="c", partitions=1)])]),
        Topology(
            subtopologies=[
                Subtopology(
                    source_topics=["words"], copartition_groups=[CopartitionGroup(source_topics=[1])]
                )
            ]
        ),
        Topology(
            subtopologies=[
                Subtopology(
                    repartition_source_topics=[TopicInfo(name="r")], repartition_sink_topics=["r"]
                )
            ]
        ),
        Topology(subtopologies=[Subtopology(repartition_source_topics=[TopicInfo(name="r", partitions=-1)])]),
        Topology(subtopologies=[Subtopology()]),
    ],
    ids=["epoch", "same-id", "changelog-partitions", "no-such-place", "cycle", "negative", "reads-nothing"],
)  # fmt: skip
def test_a_topology_that_cannot_be_is_refused(topology: Topology) -> None:
    driver = StreamsDriver()

    with pytest.raises(StreamsInvalidTopology):
        SimulatedMember(driver, "a", topology).join()

    assert driver.group.is_unused


def test_a_topology_is_fixed_and_an_older_one_is_stale() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    settled(driver, "a", topology=counting(3))

    with pytest.raises(InvalidRequest):
        SimulatedMember(driver, "b", stateless(epoch=3)).join()
    with pytest.raises(InvalidRequest):
        SimulatedMember(driver, "b", counting(4)).join()
    old = SimulatedMember(driver, "c", counting(2))
    old.join()

    assert StatusCode.STALE_TOPOLOGY in old.status


def test_tasks_that_do_not_exist_are_refused() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (member,) = settled(driver, "a")

    for tasks in (TaskIds(subtopology_id="9", partitions=[0]), TaskIds(subtopology_id="0", partitions=[2])):
        with pytest.raises(InvalidRequest):
            driver.heartbeat("a", member.epoch, active_tasks=[tasks], standby_tasks=[], warmup_tasks=[])


# ---- epochs


def test_an_epoch_that_is_not_the_members_is_fenced() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (member,) = settled(driver, "a")

    for epoch in (member.epoch + 1, member.epoch - 1, 2**31 - 1):
        with pytest.raises(FencedMemberEpoch):
            driver.heartbeat("a", epoch)


def test_a_member_whose_answer_was_lost_may_repeat_its_epoch() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first, second = settled(driver, "a", "b")
    settle([first, second])
    before = driver.group.data.members["a"].previous_epoch
    assert before < first.epoch

    answer = driver.heartbeat("a", before, active_tasks=[], standby_tasks=[], warmup_tasks=[])

    assert answer.response.member_epoch == first.epoch


def test_a_full_group_takes_no_more_members() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_max_size="1")
    (member,) = settled(driver, "a")

    with pytest.raises(GroupMaxSizeReached):
        SimulatedMember(driver, "b").join()
    member.join()


def test_a_group_that_nobody_joined_is_not_there() -> None:
    driver = StreamsDriver(WITH_TOPICS)

    with pytest.raises(GroupIdNotFound):
        driver.heartbeat("a", 1)
    with pytest.raises(GroupIdNotFound):
        driver.leave("a")


# ---- leaving, and static members


def test_a_group_whose_members_have_left_is_empty_and_may_be_deleted() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    settled(driver, "a", "b")

    driver.leave("a")
    driver.leave("b")

    assert driver.group.state is StreamsGroupState.EMPTY
    assert driver.group.wake_at_ms is None
    driver.log += driver.group.tombstones()
    assert driver.replayed().is_unused


def test_a_static_member_that_comes_back_has_its_tasks_at_once() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first, second = (
        SimulatedMember(driver, name, process_id=name, instance_id=f"static-{name}") for name in ("a", "b")
    )
    first.join()
    second.join()
    settle([first, second])
    had, epoch = first.active, driver.group.data.facts.epoch

    driver.leave("a", -2, instance_id="static-a")
    back = SimulatedMember(driver, "a2", process_id="a", instance_id="static-a")
    back.join()
    settle([back, second])

    assert back.active == had
    assert driver.group.data.facts.epoch == epoch
    assert set(driver.group.data.members) == {"a2", "b"}
    assert_same(driver.group, driver.replayed())


def test_an_instance_has_one_member_at_a_time() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    SimulatedMember(driver, "a", instance_id="one").join()

    with pytest.raises(UnreleasedInstanceId):
        SimulatedMember(driver, "b", instance_id="one").join()
    with pytest.raises(FencedInstanceId):
        driver.leave("b", instance_id="one")
    with pytest.raises(UnknownMemberId):
        driver.leave("a", instance_id="other")


def test_a_shutdown_reaches_every_member_until_the_group_is_empty() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first, second = settled(driver, "a", "b")

    first.beat(shutdown_application=True)
    second.beat()
    assert second.status == [StatusCode.SHUTDOWN_APPLICATION]
    driver.leave("a")
    driver.leave("b")
    (third,) = settled(driver, "c")

    assert third.status == []


# ---- what members say of themselves


def test_members_without_the_tags_of_the_group_are_told() -> None:
    driver = StreamsDriver(WITH_TOPICS, group_streams_rack_aware_assignment_tags="zone,cluster")
    member = SimulatedMember(driver, "a", client_tags=[KeyValue(key="zone", value="z1")])

    member.join()

    assert member.status == [StatusCode.MISSING_CLIENT_TAGS]
    assert not driver.heartbeat("a", member.epoch, version=0).response.status


def test_endpoints_are_sent_to_members_that_do_not_know_them() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first = SimulatedMember(driver, "a", user_endpoint=Endpoint(host="h1", port=1))
    second = SimulatedMember(driver, "b", user_endpoint=Endpoint(host="h2", port=2))
    first.join()
    second.join()
    settle([first, second])

    response = second.beat()
    known = second.beat(endpoint_information_epoch=response.endpoint_information_epoch)

    assert response.partitions_by_user_endpoint is not None
    hosts = {entry.user_endpoint.host: entry for entry in response.partitions_by_user_endpoint}
    read = {
        (topic.topic, number)
        for entry in hosts.values()
        for topic in entry.active_partitions
        for number in topic.partitions
    }
    assert set(hosts) == {"h1", "h2"}
    assert read == {(topic, number) for topic in ("words", "app-by-word-repartition") for number in (0, 1)}
    assert known.partitions_by_user_endpoint is None


def test_a_task_may_be_reported_once() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (member,) = settled(driver, "a")
    offset = TaskOffset(subtopology_id="1", partition=0, offset=5)

    member.beat(task_offsets=[offset])
    with pytest.raises(InvalidRequest):
        member.beat(task_offsets=[offset, offset])

    assert driver.group.data.task_offsets["a"].offsets == {"1": {0: 5}}


# ---- offsets


def test_commits_are_fenced_by_the_epoch_in_which_the_task_was_assigned() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first = settled(driver, "a")[0]
    old = first.epoch
    members = [first, *(SimulatedMember(driver, name) for name in ("b",))]
    members[1].join()
    settle(members)
    (kept,) = [task.partition for task in first.active if task.subtopology_id == "0"]
    group = driver.group

    def check(
        member_id: str, epoch: int, *partitions: int, version: int = 9, topic: str = "words"
    ) -> ErrorCode:
        return group.check_commit(
            member_id,
            epoch,
            None,
            0,
            version=version,
            partitions=[TopicPartition(topic, n) for n in partitions],
        )

    assert check("a", first.epoch, 0, 1) is ErrorCode.NONE
    assert check("a", first.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", old, kept) is ErrorCode.NONE
    assert check("a", old, 1 - kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", old, 0, topic="elsewhere") is ErrorCode.STALE_MEMBER_EPOCH
    assert check("a", first.epoch, 0, version=8) is ErrorCode.UNSUPPORTED_VERSION
    assert check("c", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_fetch("a", first.epoch) is ErrorCode.NONE
    assert group.check_fetch("a", old) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.check_fetch(None, -1) is ErrorCode.NONE
