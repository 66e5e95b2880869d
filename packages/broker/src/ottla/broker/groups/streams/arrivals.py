"""The member that a heartbeat of a streams group is of: a known one, a new one, or one that takes a place.

A static member that returns takes the place of the earlier one of its instance, with its tasks.
"""

from __future__ import annotations

import logging
from typing import Any

from ottla.broker.groups.kinds import KindRecord
from ottla.broker.groups.streams.events import Heartbeat
from ottla.broker.groups.streams.members import LEAVE_GROUP_STATIC_EPOCH, Endpoint, StreamsMember
from ottla.broker.groups.streams.records import (
    current_record,
    member_record,
    member_tombstones,
    target_record,
)
from ottla.broker.groups.streams.state import StreamsGroupData
from ottla.broker.groups.streams.tasks import NO_TASKS, has_all, without_epochs
from ottla.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.zookeeper.frozen_classes import replace

log = logging.getLogger(__name__)


class Arrival:
    """The way in which the member of a heartbeat is found."""

    def __init__(self, group: StreamsGroupData, heartbeat: Heartbeat, records: list[KindRecord]) -> None:
        """`records` get those of a member that takes the place of another."""
        self._group = group
        self._request = heartbeat.request
        self._records = records
        self.joins = heartbeat.request.member_epoch == 0
        """Whether the member joins, perhaps again."""
        self.replaced: StreamsMember | None = None
        """The earlier member of the static instance, under another id, whose place the member takes."""

    @property
    def named(self) -> dict[str, object]:
        """The group and the member, for the log."""
        return {"group": self._group.group_id, "member": self._request.member_id}

    def member(self, max_size: int) -> StreamsMember:
        """Return the member as the group knows it, or a new one. Raises KafkaError to refuse it."""
        self._require_room(max_size)
        if self._request.instance_id is not None:
            return self._static_member(self._request.instance_id)
        return self._dynamic_member()

    def _require_room(self, max_size: int) -> None:
        group, request = self._group, self._request
        if not self.joins:
            if not group.is_stored:
                raise GroupIdNotFound(f"Streams group {group.group_id} not found.")
            return
        is_known = request.instance_id in group.static_members or request.member_id in group.members
        if not is_known and len(group.members) >= max_size:
            raise GroupMaxSizeReached(
                f"The streams group has reached its maximum capacity of {max_size} members."
            )

    def _dynamic_member(self) -> StreamsMember:
        group, request = self._group, self._request
        known = group.members.get(request.member_id)
        if known is None:
            if not self.joins:
                raise UnknownMemberId(
                    f"Member {request.member_id} is not a member of group {group.group_id}."
                )
            known = StreamsMember(id=request.member_id)
        self._require_valid_epoch(known)
        if self.joins:
            log.info("member joins", extra=self.named)
        return known

    def _static_member(self, instance_id: str) -> StreamsMember:
        group, request = self._group, self._request
        known = group.static_member(instance_id)
        if not self.joins:
            if known is None:
                raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
            require_instance(known, request.member_id, instance_id)
            self._require_valid_epoch(known)
            return known
        if known is None:
            log.info("static member joins", extra={**self.named, "instance": instance_id})
            return group.members.get(request.member_id) or StreamsMember(id=request.member_id)
        if known.epoch != LEAVE_GROUP_STATIC_EPOCH:
            raise UnreleasedInstanceId(
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {known.id} member."
            )
        return self._replace(known)

    def _replace(self, known: StreamsMember) -> StreamsMember:
        """Give the member the place of the earlier one of its instance, and its tasks."""
        group_id, records = self._group.group_id, self._records
        member = replace(known, id=self._request.member_id, epoch=0, previous_epoch=0)
        if known.id != member.id:
            self.replaced = known
            self._group.assigning = None  # what is being made is for the earlier member
            records += member_tombstones(group_id, known.id)
        records.append(member_record(group_id, member))
        records.append(target_record(group_id, member.id, self._group.target.get(known.id, NO_TASKS)))
        records.append(current_record(group_id, member))
        log.info("static member returns", extra={**self.named, "replaced": known.id})
        return member

    def _require_valid_epoch(self, member: StreamsMember) -> None:
        """Raise FencedMemberEpoch for an epoch that is not the member's.

        The epoch before is accepted with the tasks of the present one: the last response was lost.
        """
        request = self._request
        if request.member_epoch > member.epoch:
            raise FencedMemberEpoch(_fenced("greater", request.member_epoch, member.epoch))
        if self.joins or request.member_epoch == member.epoch:
            return
        if request.member_epoch != member.previous_epoch or not (
            has_all(without_epochs(member.assigned.active), request.active_tasks)
            and has_all(member.assigned.standby, request.standby_tasks)
            and has_all(member.assigned.warmup, request.warmup_tasks)
        ):
            raise FencedMemberEpoch(_fenced("smaller", request.member_epoch, member.epoch))


def updated(known: StreamsMember, heartbeat: Heartbeat) -> StreamsMember:
    """Return a member with what a heartbeat says of it; absent fields have not changed."""
    request = heartbeat.request
    changes: dict[str, Any] = {
        "client_id": heartbeat.client_id,
        "client_host": heartbeat.client_host,
    }
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.topology is not None:
        changes["topology_epoch"] = request.topology.epoch
    if request.process_id is not None:
        changes["process_id"] = request.process_id
    if request.client_tags is not None:
        changes["client_tags"] = tuple(sorted({tag.key: tag.value for tag in request.client_tags}.items()))
    endpoint = request.user_endpoint
    if endpoint is not None or request.member_epoch == 0:
        changes["user_endpoint"] = endpoint and Endpoint(endpoint.host, endpoint.port)
    return replace(known, **changes)


def require_instance(known: StreamsMember, member_id: str, instance_id: str) -> None:
    """Raise FencedInstanceId where another member has taken over the static instance."""
    if known.id != member_id:
        raise FencedInstanceId(
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known.id}."
        )


def _fenced(word: str, received_epoch: int, known_epoch: int) -> str:
    return (
        f"The streams group member has a {word} member epoch ({received_epoch}) than the one known by the "
        f"group coordinator ({known_epoch}). The member must abandon all its partitions and rejoin."
    )
