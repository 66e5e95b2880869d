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
from collections.abc import Callable

from ottla.broker.groups.kinds import StepOutcome
from ottla.broker.groups.streams import statuses
from ottla.broker.groups.streams.arrivals import Arrival, updated
from ottla.broker.groups.streams.endpoints import partitions_by_endpoint
from ottla.broker.groups.streams.events import GroupDeadlines, Heartbeat, HeartbeatResult, Wait
from ottla.broker.groups.streams.members import MemberState, StreamsMember, reconciled
from ottla.broker.groups.streams.records import (
    GroupFacts,
    current_record,
    group_record,
    member_record,
    task_ids,
    topology_record,
)
from ottla.broker.groups.streams.settings import StreamsSettings, Topics
from ottla.broker.groups.streams.state import NO_MEMBER_OFFSETS, MemberOffsets, StreamsGroupData, reported
from ottla.broker.groups.streams.target_assignment import TargetAssignment, assign, may_assign
from ottla.broker.groups.streams.tasks import NO_TASKS, HeldTasks, Tasks, task_sets, without_epochs
from ottla.broker.groups.streams.topic_configuration import ConfiguredTopology, Status, configure
from ottla.broker.groups.streams.topology import UNKNOWN_EPOCH, Topology, received
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.messages import streams_groups
from ottla.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from ottla.zookeeper.frozen_classes import replace

log = logging.getLogger(__name__)


class HeartbeatStep:
    """The work on one heartbeat."""

    def __init__(
        self,
        group: StreamsGroupData,
        heartbeat: Heartbeat,
        *,
        settings: StreamsSettings,
        topics: Topics,
        interval_ms_of: Callable[[StreamsMember, int], int],
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
        self._interval_ms_of = interval_ms_of
        self._deadlines = deadlines
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._outcome = outcome
        self._status: list[Status] = []
        self._arrival = Arrival(group, heartbeat, outcome.records)

    def run(self) -> HeartbeatResult:
        """Process the heartbeat. Raises KafkaError for one that is refused."""
        request, group = self._request, self._group
        before = self._arrival.member(self._settings.max_size)
        member = updated(before, self._heartbeat)
        changed = self._note_metadata(before, member)
        topology = self._topology()
        if stale := statuses.stale_topology(member, group.topology_epoch):
            self._status.append(stale)
        configured, facts = self._facts(topology, changed=changed)
        self._begin_initial_delay()
        after = self._reconciled(member, self._assignment(facts, member, configured))
        self._deadlines.set(
            (Wait.SESSION, request.member_id), self._now_ms + self._settings.session_timeout_ms
        )
        if request.shutdown_application:
            ask_for_shutdown(group, request.member_id)
        response = self._response(before, after)
        response.heartbeat_interval_ms = self._interval_ms_of(after, facts.epoch)
        if self._tells_tasks(before, member, after):
            _put_tasks(response, after.assigned)
        self._add_statuses(configured, after)
        response.status = [
            streams_groups.Status(status_code=status.code, status_detail=status.detail)
            for status in self._status
        ]
        return HeartbeatResult(response, configured.missing if configured.status else {})

    def _facts(self, topology: Topology, *, changed: bool) -> tuple[ConfiguredTopology, GroupFacts]:
        """Return the topology as the topics allow it, and the facts of the group, whose epoch may rise."""
        known = self._group.facts
        configured, topics_hash, topics_changed = self._configure(topology)
        self._require_known_tasks(configured)
        self._note_offsets()
        facts = replace(
            known,
            metadata_hash=topics_hash,
            validated_topology_epoch=topology.epoch if configured.is_ready else UNKNOWN_EPOCH,
            assignment_configs=self._settings.assignment_configs,
        )
        if changed or topics_changed or facts != replace(known, metadata_hash=topics_hash):
            facts = replace(facts, epoch=facts.epoch + 1)
            self._raise_epoch(facts)
        self._group.topics_are_known = True  # not before: a heartbeat that is refused writes no change
        return configured, facts

    # ---- the member

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
        log.info("group epoch raised", extra={**self._arrival.named, "epoch": facts.epoch})

    def _begin_initial_delay(self) -> None:
        delay_ms = self._settings.initial_rebalance_delay_ms
        key = (Wait.INITIAL_REBALANCE, "")
        if not self._group.members and delay_ms > 0 and self._deadlines.get(key) is None:
            self._deadlines.set(key, self._now_ms + delay_ms)

    def _assignment(
        self, facts: GroupFacts, member: StreamsMember, configured: ConfiguredTopology
    ) -> TargetAssignment:
        if self._deadlines.get((Wait.INITIAL_REBALANCE, "")) is not None:
            self._delay("Assignment delayed due to the configured initial rebalance delay.")
            return TargetAssignment(self._group.assignment_epoch, {})
        if self._group.assignment_epoch >= facts.epoch and self._arrival.replaced is None:
            return TargetAssignment(self._group.assignment_epoch, self._group.target)
        members = {**self._group.members, member.id: member}
        target = dict(self._group.target)
        if self._arrival.replaced is not None:
            del members[self._arrival.replaced.id]
            if self._arrival.replaced.id in target:
                target[member.id] = target.pop(self._arrival.replaced.id)
        if self._group.assignment_epoch >= facts.epoch:
            return TargetAssignment(self._group.assignment_epoch, target)
        if not may_assign(self._group, self._settings, self._wall_ms):
            self._delay("Assignment delayed due to the configured assignment interval.")
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
            self._delay("Assignment delayed until the tasks of the large group are distributed.")
            return TargetAssignment(self._group.assignment_epoch, target)
        return made

    def _delay(self, reason: str) -> None:
        self._status.append(statuses.delayed(reason))

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

    def _tells_tasks(self, before: StreamsMember, member: StreamsMember, after: StreamsMember) -> bool:
        """Return whether the response names tasks; it waits for a record then.

        A coordinator that was deposed unnoticed must not tell tasks that its successor has given to others.
        """
        if not (self._arrival.joins or before.assigned != after.assigned or self._misses_tasks(after)):
            return False
        if after == member:  # nothing else of it is written
            self._outcome.records.append(current_record(self._group.group_id, after))
        return True

    def _misses_tasks(self, after: StreamsMember) -> bool:
        """Return whether the member reports others than its tasks, as one whose last answer was lost.

        Clients report their tasks after a failure, and when these have changed. Kafka does not show the tasks
        again: a new one would run nowhere until the next assignment, and one to be given up would cost the
        member its place.
        """
        owned = self._owned()
        return owned is not None and not owned.are_those_of(after.assigned)

    def _response(self, before: StreamsMember, after: StreamsMember) -> StreamsGroupHeartbeatResponse:
        group = self._group
        response = StreamsGroupHeartbeatResponse(
            member_id=after.id,
            member_epoch=after.epoch,
            task_offset_interval_ms=self._settings.task_offset_interval_ms,
            acceptable_recovery_lag=self._settings.acceptable_recovery_lag,
            status=[],
        )
        tasks_changed = before.assigned != after.assigned
        endpoint_changed = before.user_endpoint != after.user_endpoint
        if self._arrival.joins or tasks_changed or endpoint_changed:
            group.endpoints.pop(after.id, None)
        if endpoint_changed or (tasks_changed and after.user_endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != self._request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(
                group, after, self._arrival.replaced, self._topics.partitions
            )
        if group.is_stored:
            response.endpoint_information_epoch = group.endpoint_epoch
        return response

    def _add_statuses(self, configured: ConfiguredTopology, member: StreamsMember) -> None:
        found = (
            configured.status,
            statuses.shutdown(self._group.shutdown_member_id),
            statuses.missing_tags(member, self._settings.rack_aware_tags, self._heartbeat.version),
        )
        self._status += [status for status in found if status is not None]


# ---- shared with leaving


def ask_for_shutdown(group: StreamsGroupData, member_id: str) -> None:
    """Note the first member that asks for the shutdown of its application."""
    if group.shutdown_member_id is None:
        group.shutdown_member_id = member_id
        log.info(
            "shutdown of the application asked for", extra={"group": group.group_id, "member": member_id}
        )


def _put_tasks(response: StreamsGroupHeartbeatResponse, held: HeldTasks) -> None:
    response.active_tasks = task_ids(without_epochs(held.active))
    response.standby_tasks = task_ids(held.standby)
    response.warmup_tasks = task_ids(held.warmup)
