"""One heartbeat of a streams group's member: the records that it makes, and its response.

1. The member is found, or joins, or takes the place of an earlier one of its static instance.
2. What it says of itself, its topology and the topics of the cluster are compared with what is known; a
   change raises the group epoch.
3. The target assignment is made where it is of an older epoch: not before the initial delay of a new group,
   and not more often than `group.streams.assignment.interval.ms`.
4. The member is brought nearer to its target.

Nothing of the group that is stored changes here: the records are replayed once they are in the log.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ottla.broker.groups.kinds import StepOutcome
from ottla.broker.groups.streams.endpoints import partitions_by_endpoint
from ottla.broker.groups.streams.events import GroupDeadlines, Heartbeat, HeartbeatResult, Wait
from ottla.broker.groups.streams.members import (
    LEAVE_GROUP_STATIC_EPOCH,
    Endpoint,
    MemberState,
    StreamsMember,
    reconciled,
)
from ottla.broker.groups.streams.records import (
    GroupFacts,
    current_record,
    group_record,
    member_record,
    member_tombstones,
    target_record,
    task_ids,
    topology_record,
)
from ottla.broker.groups.streams.settings import StreamsSettings, Topics
from ottla.broker.groups.streams.state import NO_MEMBER_OFFSETS, MemberOffsets, StreamsGroupData, reported
from ottla.broker.groups.streams.target_assignment import TargetAssignment, assign, may_assign
from ottla.broker.groups.streams.tasks import NO_TASKS, HeldTasks, Tasks, has_all, task_sets, without_epochs
from ottla.broker.groups.streams.topic_configuration import (
    ConfiguredTopology,
    Status,
    StatusCode,
    configure,
)
from ottla.broker.groups.streams.topology import UNKNOWN_EPOCH, Topology, received
from ottla.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from ottla.protocol.messages import streams_groups
from ottla.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from ottla.zookeeper.frozen_classes import replace

log = logging.getLogger(__name__)

TAGS_STATUS_FROM: Final = 1
"""The version of the request whose clients know MISSING_CLIENT_TAGS."""


class HeartbeatStep:
    """The work on one heartbeat."""

    def __init__(
        self,
        group: StreamsGroupData,
        heartbeat: Heartbeat,
        *,
        settings: StreamsSettings,
        topics: Topics,
        deadlines: GroupDeadlines,
        now_ms: float,
        wall_ms: int,
        outcome: StepOutcome,
    ) -> None:
        self._group = group
        self._heartbeat = heartbeat
        self._request = heartbeat.request
        self._settings = settings
        self._topics = topics
        self._deadlines = deadlines
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._outcome = outcome
        self._status: list[Status] = []
        self._replaced: StreamsMember | None = None
        """The earlier member of the static instance, whose place the member takes."""

    @property
    def _joins(self) -> bool:
        return self._request.member_epoch == 0

    def run(self) -> HeartbeatResult:
        """Process the heartbeat. Raises KafkaError for one that is refused."""
        request, group = self._request, self._group
        self._require_room()
        before = self._member()
        member = self._updated(before)
        changed = self._note_metadata(before, member)
        topology = self._topology()
        self._note_stale_topology(member)
        configured, topics_hash, topics_changed = self._configure(topology)
        validated = topology.epoch if configured.is_ready else UNKNOWN_EPOCH
        self._require_known_tasks(configured)
        self._note_offsets()
        configs = self._settings.assignment_configs
        facts = replace(
            group.facts,
            metadata_hash=topics_hash,
            validated_topology_epoch=validated,
            assignment_configs=configs,
        )
        if changed or topics_changed or facts != replace(group.facts, metadata_hash=topics_hash):
            facts = replace(facts, epoch=facts.epoch + 1)
            self._raise_epoch(facts)
        self._begin_initial_delay()
        assignment = self._assignment(facts, member, configured)
        after = self._reconciled(member, assignment)
        self._deadlines.set(
            (Wait.SESSION, request.member_id), self._now_ms + self._settings.session_timeout_ms
        )
        if request.shutdown_application:
            ask_for_shutdown(group, request.member_id)
        response = self._response(before, after)
        self._add_topic_status(configured)
        self._add_shutdown_status()
        self._add_tags_status(after)
        response.status = [
            streams_groups.Status(status_code=status.code, status_detail=status.detail)
            for status in self._status
        ]
        return HeartbeatResult(response, configured.missing if configured.status else {})

    # ---- the member

    def _require_room(self) -> None:
        group, request = self._group, self._request
        if not self._joins:
            if not group.is_stored:
                raise GroupIdNotFound(f"Streams group {group.group_id} not found.")
            return
        is_known = request.instance_id in group.static_members or request.member_id in group.members
        if not is_known and len(group.members) >= self._settings.max_size:
            raise GroupMaxSizeReached(
                f"The streams group has reached its maximum capacity of {self._settings.max_size} members."
            )

    def _member(self) -> StreamsMember:
        """Return the member as the group knows it, or a new one."""
        group, request = self._group, self._request
        if request.instance_id is not None:
            return self._static_member(request.instance_id)
        known = group.members.get(request.member_id)
        if known is None:
            if not self._joins:
                raise UnknownMemberId(
                    f"Member {request.member_id} is not a member of group {group.group_id}."
                )
            known = StreamsMember(id=request.member_id)
        self._require_valid_epoch(known)
        if self._joins:
            log.info("member joins", extra=self._named())
        return known

    def _static_member(self, instance_id: str) -> StreamsMember:
        group, request = self._group, self._request
        known = group.static_member(instance_id)
        if not self._joins:
            if known is None:
                raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
            require_instance(known, request.member_id, instance_id)
            self._require_valid_epoch(known)
            return known
        if known is None:
            log.info("static member joins", extra={**self._named(), "instance": instance_id})
            return group.members.get(request.member_id) or StreamsMember(id=request.member_id)
        if known.epoch != LEAVE_GROUP_STATIC_EPOCH:
            raise UnreleasedInstanceId(
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {known.id} member."
            )
        return self._replace(known)

    def _replace(self, known: StreamsMember) -> StreamsMember:
        """Give the member the place of the earlier one of its instance, and its tasks."""
        group_id, records = self._group.group_id, self._outcome.records
        member = replace(known, id=self._request.member_id, epoch=0, previous_epoch=0)
        if known.id != member.id:
            self._replaced = known
            self._group.assigning = None  # what is being made is for the earlier member
        records += member_tombstones(group_id, known.id)
        records.append(member_record(group_id, member))
        records.append(target_record(group_id, member.id, self._group.target.get(known.id, NO_TASKS)))
        records.append(current_record(group_id, member))
        log.info("static member returns", extra={**self._named(), "replaced": known.id})
        return member

    def _require_valid_epoch(self, member: StreamsMember) -> None:
        """Raise FencedMemberEpoch for an epoch that is not the member's.

        The epoch before is accepted with the tasks of the present one: the last response was lost.
        """
        request = self._request
        if request.member_epoch > member.epoch:
            raise FencedMemberEpoch(_fenced("greater", request.member_epoch, member.epoch))
        if self._joins or request.member_epoch == member.epoch:
            return
        if request.member_epoch != member.previous_epoch or not (
            has_all(without_epochs(member.assigned.active), request.active_tasks)
            and has_all(member.assigned.standby, request.standby_tasks)
            and has_all(member.assigned.warmup, request.warmup_tasks)
        ):
            raise FencedMemberEpoch(_fenced("smaller", request.member_epoch, member.epoch))

    def _updated(self, known: StreamsMember) -> StreamsMember:
        """Return the member with what the request says of it; absent fields have not changed."""
        request = self._request
        changes: dict[str, Any] = {
            "client_id": self._heartbeat.client_id,
            "client_host": self._heartbeat.client_host,
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
            changes["client_tags"] = tuple(
                sorted({tag.key: tag.value for tag in request.client_tags}.items())
            )
        endpoint = request.user_endpoint
        if endpoint is not None or self._joins:
            changes["user_endpoint"] = endpoint and Endpoint(endpoint.host, endpoint.port)
        return replace(known, **changes)

    def _note_metadata(self, before: StreamsMember, member: StreamsMember) -> bool:
        """Write what the member says of itself, if it is new; return whether the group epoch rises by it.

        A static member that comes back as it was keeps its tasks.
        """
        if member == before:
            return False
        self._outcome.records.append(member_record(self._group.group_id, member))
        return self._request.instance_id is None or any(
            getattr(before, name) != getattr(member, name)
            for name in ("topology_epoch", "rack_id", "client_tags", "process_id")
        )

    # ---- topology and topics

    def _topology(self) -> Topology:
        group, sent = self._group, self._request.topology
        if sent is None:
            if group.topology is None:
                raise InvalidRequest("Topology must be non-null when (re-)joining.")
            return group.topology
        topology = received(sent)
        if group.topology is None:
            self._outcome.records.append(topology_record(group.group_id, topology))
            return topology
        if group.topology.epoch <= topology.epoch and group.topology != topology:
            raise InvalidRequest("Topology updates are not supported yet.")
        return group.topology

    def _note_stale_topology(self, member: StreamsMember) -> None:
        group_epoch = self._group.topology_epoch
        if member.topology_epoch < group_epoch:
            detail = (
                f"The member's topology epoch {member.topology_epoch} is behind the group's "
                f"topology epoch {group_epoch}."
            )
            self._status.append(Status(StatusCode.STALE_TOPOLOGY, detail))

    def _configure(self, topology: Topology) -> tuple[ConfiguredTopology, int, bool]:
        """Return the topology as the topics allow it, their hash, and whether they have changed."""
        group = self._group
        configured = group.configured
        if group.topology is not None and configured is not None and group.topics_are_known:
            return configured, group.facts.metadata_hash, False
        topics_hash = self._topics.hash_of(topology.required_topics)
        changed = topics_hash != group.facts.metadata_hash
        if changed or configured is None or group.topology is None:
            configured = configure(topology, self._topics.partitions)
            group.configure(configured)
        group.topics_are_known = True
        return configured, topics_hash, changed

    def _require_known_tasks(self, configured: ConfiguredTopology) -> None:
        if not configured.is_ready or configured.subtopologies is None:
            return
        request = self._request
        for named in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
            for tasks in named or ():
                subtopology = configured.subtopologies.get(tasks.subtopology_id)
                if subtopology is None:
                    raise InvalidRequest(
                        f"Subtopology {tasks.subtopology_id} does not exist in the topology."
                    )
                for partition in tasks.partitions:
                    if not 0 <= partition < subtopology.tasks:
                        raise InvalidRequest(
                            f"Task {partition} for subtopology {tasks.subtopology_id} is invalid. "
                            f"Number of tasks for this subtopology: {subtopology.tasks}"
                        )

    def _note_offsets(self) -> None:
        request, noted = self._request, self._group.task_offsets
        if request.task_offsets is None and request.task_end_offsets is None:
            return
        known = noted.get(request.member_id, NO_MEMBER_OFFSETS)
        noted[request.member_id] = MemberOffsets(
            known.offsets if request.task_offsets is None else reported(request.task_offsets),
            known.end_offsets if request.task_end_offsets is None else reported(request.task_end_offsets),
        )

    # ---- the assignment

    def _raise_epoch(self, facts: GroupFacts) -> None:
        self._outcome.records.append(group_record(self._group.group_id, facts))
        self._outcome.rebalanced += 1
        log.info("group epoch raised", extra={**self._named(), "epoch": facts.epoch})

    def _begin_initial_delay(self) -> None:
        delay_ms = self._settings.initial_rebalance_delay_ms
        key = (Wait.INITIAL_REBALANCE, "")
        if not self._group.members and delay_ms > 0 and self._deadlines.get(key) is None:
            self._deadlines.set(key, self._now_ms + delay_ms)

    def _assignment(
        self, facts: GroupFacts, member: StreamsMember, configured: ConfiguredTopology
    ) -> TargetAssignment:
        if self._deadlines.get((Wait.INITIAL_REBALANCE, "")) is not None:
            self._delayed("Assignment delayed due to the configured initial rebalance delay.")
            return TargetAssignment(self._group.assignment_epoch, {})
        if self._group.assignment_epoch >= facts.epoch and self._replaced is None:
            return TargetAssignment(self._group.assignment_epoch, self._group.target)
        members = {**self._group.members, member.id: member}
        target = dict(self._group.target)
        if self._replaced is not None:
            del members[self._replaced.id]
            if self._replaced.id in target:
                target[member.id] = target.pop(self._replaced.id)
        if self._group.assignment_epoch >= facts.epoch:
            return TargetAssignment(self._group.assignment_epoch, target)
        if not may_assign(self._group, self._settings, self._wall_ms):
            self._delayed("Assignment delayed due to the configured assignment interval.")
            return TargetAssignment(self._group.assignment_epoch, target)
        made = (
            None
            if self._group.assigning is not None
            else assign(
                self._group,
                facts.epoch,
                configured,
                self._settings,
                self._wall_ms,
                self._outcome,
                members=members,
                target=target,
            )
        )
        if made is None:
            self._delayed("Assignment delayed until the tasks of the large group are distributed.")
            return TargetAssignment(self._group.assignment_epoch, target)
        return made

    def _delayed(self, detail: str) -> None:
        self._status.append(Status(StatusCode.ASSIGNMENT_DELAYED, detail))

    def _reconciled(self, member: StreamsMember, assignment: TargetAssignment) -> StreamsMember:
        """Return the member one step nearer to its target, and write it if it has moved."""
        if member.is_reconciled_to(assignment.epoch):
            return member
        target = assignment.tasks.get(self._request.member_id, NO_TASKS)
        after = reconciled(member, assignment.epoch, target, self._owned(), self._group.holders)
        if after == member:
            return member
        self._outcome.records.append(current_record(self._group.group_id, after))
        if after.state is MemberState.UNREVOKED_TASKS:
            self._deadlines.set((Wait.REBALANCE, after.id), self._now_ms + after.rebalance_timeout_ms)
        return after

    def _owned(self) -> Tasks | None:
        request = self._request
        if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
            return None
        return Tasks(
            task_sets(request.active_tasks), task_sets(request.standby_tasks), task_sets(request.warmup_tasks)
        )

    # ---- the response

    def _misses_tasks(self, after: StreamsMember) -> bool:
        """Return whether the member reports others than its tasks, as one whose last answer was lost.

        Clients report their tasks after a failure. Kafka does not show the tasks again: a new one would run
        nowhere until the next assignment, and one to be given up would cost the member its place.
        """
        owned = self._owned()
        return owned is not None and not owned.are_those_of(after.assigned)

    def _response(self, before: StreamsMember, after: StreamsMember) -> StreamsGroupHeartbeatResponse:
        group = self._group
        response = StreamsGroupHeartbeatResponse(
            member_id=after.id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            task_offset_interval_ms=self._settings.task_offset_interval_ms,
            acceptable_recovery_lag=self._settings.acceptable_recovery_lag,
            status=[],
        )
        tasks_changed = before.assigned != after.assigned
        endpoint_changed = before.user_endpoint != after.user_endpoint
        if self._joins or tasks_changed or self._misses_tasks(after):
            _put_tasks(response, after.assigned)
        if self._joins or tasks_changed or endpoint_changed:
            group.endpoints.pop(after.id, None)
        if endpoint_changed or (tasks_changed and after.user_endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != self._request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(
                group, after, self._replaced, self._topics.partitions
            )
        if group.is_stored:
            response.endpoint_information_epoch = group.endpoint_epoch
        return response

    def _add_topic_status(self, configured: ConfiguredTopology) -> None:
        if configured.status is not None:
            self._status.append(configured.status)

    def _add_shutdown_status(self) -> None:
        member_id = self._group.shutdown_member_id
        if member_id is not None:
            detail = (
                f"Streams group member {member_id} encountered a fatal error and requested a shutdown "
                "for the entire application."
            )
            self._status.append(Status(StatusCode.SHUTDOWN_APPLICATION, detail))

    def _add_tags_status(self, member: StreamsMember) -> None:
        has = dict(member.client_tags)
        missing = [tag for tag in self._settings.rack_aware_tags if tag not in has]
        if missing and self._heartbeat.version >= TAGS_STATUS_FROM:
            detail = (
                f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. "
                "Configure them via 'client.tag.<tagKey>' in your Streams config."
            )
            self._status.append(Status(StatusCode.MISSING_CLIENT_TAGS, detail))

    def _named(self) -> dict[str, object]:
        return {"group": self._group.group_id, "member": self._request.member_id}


# ---- shared with leaving and with deadlines


def require_instance(known: StreamsMember, member_id: str, instance_id: str) -> None:
    """Raise FencedInstanceId where another member has taken over the static instance."""
    if known.id != member_id:
        raise FencedInstanceId(
            f"Static member {member_id} with instance id {instance_id} was fenced by member {known.id}."
        )


def ask_for_shutdown(group: StreamsGroupData, member_id: str) -> None:
    """Note the first member that asks for the shutdown of its application."""
    if group.shutdown_member_id is None:
        group.shutdown_member_id = member_id
        log.info(
            "shutdown of the application asked for", extra={"group": group.group_id, "member": member_id}
        )


def _fenced(word: str, received_epoch: int, known_epoch: int) -> str:
    return (
        f"The streams group member has a {word} member epoch ({received_epoch}) than the one known by the "
        f"group coordinator ({known_epoch}). The member must abandon all its partitions and rejoin."
    )


def _put_tasks(response: StreamsGroupHeartbeatResponse, held: HeldTasks) -> None:
    response.active_tasks = task_ids(without_epochs(held.active))
    response.standby_tasks = task_ids(held.standby)
    response.warmup_tasks = task_ids(held.warmup)
