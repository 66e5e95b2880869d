"""A streams group whose records are refused, whose answers are lost, and that is assigned in steps."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.groups.kinds import Loaded
from ottla.broker.groups.streams.members import MemberState
from ottla.broker.groups.streams.records import task_ids
from ottla.broker.groups.streams.tasks import TaskId, each_task, grouped, task_sets
from ottla.broker.groups.streams.testing import (
    REBALANCE_MS,
    SESSION_MS,
    SimulatedMember,
    StreamsDriver,
    assert_same,
    settle,
    settled,
    stateless,
)
from ottla.broker.groups.streams.topic_configuration import StatusCode
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages.streams_group_describe import Endpoint, TaskIds
from ottla.protocol.stored_groups import StreamsGroupTargetAssignmentMetadataValue

WITH_TOPICS = {"words": 2, "app-by-word-repartition": 2, "app-counts-changelog": 2}
ALL_TASKS = {TaskId(name, number) for name in ("0", "1") for number in range(2)}


# ---- assignments in steps


def test_a_large_assignment_is_work_of_its_own() -> None:
    driver = StreamsDriver({"words": 5_000})
    driver.holds_work = True
    member = SimulatedMember(driver, "a", stateless())
    member.join()
    member.beat()
    assert member.status == [StatusCode.ASSIGNMENT_DELAYED]
    assert len(driver.work) == 1

    driver.holds_work = False
    settle([member], rounds=2)
    member.beat()

    assert len(member.active) == 5_000


def test_an_assignment_that_everyone_has_left_meanwhile_is_void() -> None:
    driver = StreamsDriver({"words": 5_000})
    driver.holds_work = True
    SimulatedMember(driver, "a", stateless()).join()
    driver.leave("a")
    second = SimulatedMember(driver, "b", stateless())
    second.join()

    driver.holds_work = False
    settle([second], rounds=3)

    epochs = [
        record.value.assignment_epoch
        for record in driver.log
        if isinstance(record.value, StreamsGroupTargetAssignmentMetadataValue)
    ]
    assert epochs == sorted(epochs), "the assignment epoch went back"
    assert len(second.active) == 5_000


def test_a_static_member_that_returns_while_tasks_are_assigned_gets_its_tasks() -> None:
    driver = StreamsDriver({"words": 5_000})
    first, second = settled(driver, "a", "b", topology=stateless(), instance_id=None)
    driver.leave("a")
    first = SimulatedMember(driver, "a", stateless(), instance_id="i")
    first.join()
    settle([first, second])
    driver.leave("b")
    driver.holds_work = True
    first.beat()
    assert len(driver.work) == 1

    driver.leave("a", -2, instance_id="i")
    returned = SimulatedMember(driver, "a2", stateless(), instance_id="i", process_id=first.process_id)
    returned.join()
    driver.holds_work = False
    settle([returned])

    assert len(returned.active) == 5_000


# ---- lost answers


def test_a_member_whose_answer_was_lost_is_told_its_tasks_again() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    _, second = settled(driver, "a", "b")
    before, had = second.epoch, second.active
    driver.leave("a")

    driver.heartbeat("b", before)
    answer = driver.heartbeat(
        "b", before, active_tasks=task_ids(grouped(had)), standby_tasks=[], warmup_tasks=[]
    ).response

    assert frozenset(each_task(task_sets(answer.active_tasks or []))) == ALL_TASKS


def test_a_member_that_did_not_hear_what_to_give_up_is_told_again() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (first,) = settled(driver, "a")
    SimulatedMember(driver, "b").join()
    driver.heartbeat("a", first.epoch)

    again = driver.heartbeat(
        "a", first.epoch, active_tasks=task_ids(grouped(ALL_TASKS)), standby_tasks=[], warmup_tasks=[]
    ).response

    assert len(frozenset(each_task(task_sets(again.active_tasks or [])))) == 2


def test_tasks_are_not_told_again_by_a_coordinator_that_cannot_write() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (member,) = settled(driver, "a")
    for epoch in (member.epoch, 0):  # it has lost an answer, or all that it knew
        driver.refuses_writes = True

        told = driver.heartbeat(
            "a",
            epoch,
            rebalance_timeout_ms=REBALANCE_MS,
            topology=None if epoch else member.topology,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        ).response

        assert told.active_tasks is None, "its successor may have given them to others"
        driver.refuses_writes = False


# ---- tasks that change their role


def test_a_task_counts_as_given_up_once_the_member_has_it_in_no_role() -> None:
    """Its standby was made active, then taken away, and it reports what it had before."""
    driver = StreamsDriver(WITH_TOPICS, group_streams_num_standby_replicas="1")
    first, _ = settled(driver, "a", "b")
    driver.leave("b")
    first.epoch = driver.heartbeat("a", first.epoch).response.member_epoch
    driver.own_settings["streams.num.standby.replicas"] = "0"
    neighbour = SimulatedMember(driver, "c", process_id=first.process_id)
    neighbour.join()

    reports: dict[str, Any] = {"active_tasks": task_ids(grouped(first.active)), "warmup_tasks": []}
    driver.heartbeat("a", first.epoch, standby_tasks=task_ids(grouped(first.standby)), **reports)
    neighbour.beat()
    assert not neighbour.active & first.standby
    driver.heartbeat("a", first.epoch, standby_tasks=[], **reports)
    neighbour.beat()

    assert neighbour.active >= first.standby


# ---- topics


def test_a_refused_heartbeat_does_not_hide_that_topics_have_changed() -> None:
    driver = StreamsDriver({"words": 2})
    first, second = settled(driver, "a", "b", topology=stateless())
    driver.publish({"words": 4})

    with pytest.raises(InvalidRequest):
        driver.heartbeat(
            "a",
            first.epoch,
            active_tasks=[TaskIds(subtopology_id="0", partitions=[7])],
            standby_tasks=[],
            warmup_tasks=[],
        )
    settle([first, second])

    assert len(first.active | second.active) == 4


# ---- coordinators that change


def test_a_new_coordinator_tells_endpoints_to_members_that_know_those_of_its_predecessor() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    first = SimulatedMember(driver, "a", user_endpoint=Endpoint(host="h1", port=1))
    first.join()
    settle([first])
    known = first.beat().endpoint_information_epoch
    driver.now_ms += 1_000

    driver.group = driver.replayed()
    driver.step(Loaded())
    for port in range(known):  # its endpoints change as often as those of its predecessor did
        first.beat(user_endpoint=Endpoint(host="h2", port=port))
    told = first.beat(endpoint_information_epoch=known)

    assert told.partitions_by_user_endpoint is not None


def test_a_static_member_that_returns_under_its_id_has_a_session() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    member = SimulatedMember(driver, "a", instance_id="i")
    member.join()
    settle([member])
    driver.leave("a", -2, instance_id="i")

    member.join()
    driver.wait(SESSION_MS + 1)

    assert driver.group.is_empty


# ---- refused writes


def test_a_refused_write_leaves_the_group_as_it_was() -> None:
    driver = StreamsDriver({"words": 2})
    settled(driver, "a", topology=stateless())
    driver.publish({"words": 3})

    driver.refuses_writes = True
    driver.wait(SESSION_MS - 1)
    driver.heartbeat("a", driver.group.data.members["a"].epoch)
    assert_same(driver.group, driver.replayed())
    driver.wait(SESSION_MS)
    assert list(driver.group.data.members) == ["a"], "its removal could not be written"
    driver.refuses_writes = False
    driver.wait(2_000)

    assert driver.group.is_empty


def test_a_member_whose_leave_could_not_be_written_is_removed_with_its_session() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    settled(driver, "a")

    driver.refuses_writes = True
    driver.leave("a")
    driver.refuses_writes = False
    driver.wait(SESSION_MS + 1)

    assert driver.group.is_empty


def test_a_member_whose_release_could_not_be_written_still_has_to_release() -> None:
    driver = StreamsDriver(WITH_TOPICS)
    (first,) = settled(driver, "a")
    second = SimulatedMember(driver, "b")
    second.join()
    first.beat()
    assert driver.group.data.members["a"].state is MemberState.UNREVOKED_TASKS

    driver.refuses_writes = True
    first.beat()
    driver.refuses_writes = False
    for _ in range(REBALANCE_MS // 20_000 + 1):
        driver.wait(20_000)
        for name in ("a", "b"):
            if name in driver.group.data.members:
                driver.heartbeat(name, driver.group.data.members[name].epoch)

    assert list(driver.group.data.members) == ["b"]
