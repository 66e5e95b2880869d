"""The assignment that a reassignment request asks for, or the error that refuses it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.broker.cluster.partition_znodes import Assignment
from ottla.broker.controller.controller_context import ControllerContext
from ottla.protocol.errors import (
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.protocol.topics import TopicPartition

NOTHING = Assignment(())


def wanted_assignment(
    context: ControllerContext, partition: TopicPartition, target: Sequence[int] | None
) -> Assignment:
    """The assignment with which a partition moves to `target`, or with None back to where it was.

    Raises NoReassignmentInProgress, InvalidReplicaAssignment or UnknownTopicOrPartition.
    """
    now = context.assignment(partition) if partition in context else NOTHING
    if target is None:
        if not now.is_reassigning:
            raise NoReassignmentInProgress(f"No reassignment of {partition} is in progress.")
        wanted = now.towards(now.origin)
    else:
        _check_target(target)
        wanted = now.towards(target)
    if dead := [broker for broker in wanted.adding if broker not in context.live]:
        raise InvalidReplicaAssignment(
            f"Replica assignment has brokers that are not alive. Replica list: {dead}, "
            f"live broker list: {sorted(context.live)}"
        )
    # A topic that waits for its deletion does so because of the move: it may be cancelled, but not go on.
    is_doomed = target is not None and partition.topic in context.deletions_waiting
    if now is NOTHING or context.is_deleting(partition) or is_doomed:
        raise UnknownTopicOrPartition("The partition does not exist.")
    _check_in_sync(context, partition, wanted)
    return wanted


def _check_target(target: Sequence[int]) -> None:
    if not target:
        raise InvalidReplicaAssignment("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(
            f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
        )
    if min(target) < 0:
        raise InvalidReplicaAssignment(f"Invalid broker id in replica list: {list(target)}")


def _check_in_sync(context: ControllerContext, partition: TopicPartition, wanted: Assignment) -> None:
    """Refuse to give up added replicas that alone have the committed records."""
    leadership = context.leaderships.get(partition)
    if leadership is not None and not set(leadership.isr) & set(wanted.replicas):
        raise InvalidReplicaAssignment(
            f"Only replicas that the running reassignment adds are in sync: {list(leadership.isr)}. "
            "Without them committed records would be lost."
        )
