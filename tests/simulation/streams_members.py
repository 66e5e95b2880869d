"""Members of a streams group as Kafka's clients are: tasks are given up before others are begun.

A member that joins sends its topology; afterwards it sends its tasks when they have changed, and all of them
after a failure. It does what the last answer says, one assignment after the other; one that is fenced gives
everything up and joins again under its id. Members of one process share a state directory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.streams.events import Heartbeat, HeartbeatResult, Leave
from ottla.broker.groups.streams.records import task_ids
from ottla.broker.groups.streams.tasks import TaskId, Tasks, each_task, task_sets
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.streams_group_describe import Endpoint, KeyValue, TaskOffset
from ottla.protocol.messages.streams_groups import (
    EndpointToPartitions,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from simulation.group_cluster import GROUP, REQUEST_TIMEOUT_S
from simulation.group_members import DIES_OF, LATER, LOST, NOT_HERE, REBALANCE_MS, Member
from simulation.invariant_violated import InvariantViolated
from simulation.streams_applications import Application

if TYPE_CHECKING:
    from simulation.streams_groups import Schedule

NO_TASKS = Tasks()


class StreamsMember(Member):
    """A thread of a Kafka Streams program (KIP-1071)."""

    schedule: Schedule  # type: ignore[assignment]

    def __init__(
        self,
        schedule: Schedule,
        member_id: str,
        application: Application,
        *,
        process_id: str,
        instance_id: str | None = None,
        has_endpoint: bool = False,
        tags: dict[str, str] | None = None,
    ) -> None:
        self.application, self.process_id = application, process_id
        self.endpoint = Endpoint(host=process_id, port=int(member_id[1:])) if has_endpoint else None
        self.answers: list[EndpointToPartitions] | None = None
        """The tasks of the members with endpoints, as it was last told."""
        self.answers_s = 0.0
        self.held = NO_TASKS
        """The tasks that run in it."""
        self._tags = tags or {}
        self._assigned: Tasks | None = None
        """The last assignment; None before there is one."""
        self._goal = NO_TASKS
        self._revokes_at_s: float | None = None
        self._sent: Tasks | None = None
        self._answers_epoch = 0
        super().__init__(schedule, member_id, instance_id)  # type: ignore[arg-type]

    @property
    def is_at_rest(self) -> bool:
        """Whether it runs what it was assigned."""
        return self._revokes_at_s is None and self._assigned == self.held and self.epoch > 0

    async def turn(self) -> None:
        self._reconcile()
        if self.epoch > 0 and self.chance.random() < 0.3:
            await self.commit()
        await self._beat()
        self._reconcile()

    # ---- heartbeats

    def _heartbeat(self) -> StreamsGroupHeartbeatRequest:
        chance = self.chance
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            endpoint_information_epoch=self._answers_epoch,
        )
        if self.epoch == 0:
            request.topology = self.application.topology
            request.rebalance_timeout_ms = REBALANCE_MS
            request.process_id = self.process_id
            request.user_endpoint = self.endpoint
            request.client_tags = [KeyValue(key=key, value=value) for key, value in self._tags.items()]
        if self.epoch == 0 or self._sent != self.held:
            request.active_tasks = task_ids(self.held.active)
            request.standby_tasks = task_ids(self.held.standby)
            request.warmup_tasks = task_ids(self.held.warmup)
            self._sent = self.held if self.epoch else None
        if chance.random() < 0.2:
            known = [*each_task(self.held.active), *each_task(self.held.standby)]
            request.task_offsets = [
                TaskOffset(subtopology_id=name, partition=number, offset=chance.randrange(1_000))
                for name, number in known
            ]
        return request

    async def _beat(self) -> None:
        request = self._heartbeat()
        event = Heartbeat(token=None, request=request, client_id="c", client_host="/h", version=1)
        is_joining = self.epoch == 0
        try:
            result: HeartbeatResult | None = await self.ask(
                lambda groups: groups.request(GROUP, GroupKind.STREAMS, event, creates=is_joining)
            )
        except KafkaError as error:
            self._sent = None
            self._failed(error)
            return
        if result is not None and self.chance.random() < 3 * self.cluster.loses:
            await asyncio.sleep(self.chance.choice([0.3, 1.5, 2.5]))  # it arrives late
        if result is None or self.is_over:
            self._sent = None
            return
        if result.missing_topics:
            self.schedule.create_missing(result.missing_topics)
        self._answered(result.response, is_joining=is_joining)

    def _answered(self, response: StreamsGroupHeartbeatResponse, *, is_joining: bool) -> None:
        if not is_joining and response.member_epoch < self.epoch:
            raise InvariantViolated(
                f"the epoch of {self} goes back from {self.epoch} to {response.member_epoch}"
            )
        if response.member_epoch <= 0:
            raise InvariantViolated(f"{self} is in epoch {response.member_epoch}")
        self.epoch = response.member_epoch
        self._answers_epoch = response.endpoint_information_epoch
        if response.partitions_by_user_endpoint is not None:
            self.answers = response.partitions_by_user_endpoint
            self.answers_s = self.schedule.now_s()
        named = response.active_tasks, response.standby_tasks, response.warmup_tasks
        if named[0] is not None and named[1] is not None and named[2] is not None:
            self._assigned = Tasks(task_sets(named[0]), task_sets(named[1]), task_sets(named[2]))
        elif is_joining or any(some is not None for some in named):
            raise InvariantViolated(f"{self} gets {named} for its tasks")

    def _failed(self, error: KafkaError) -> None:
        is_invalid = error.code is ErrorCode.INVALID_REQUEST and self.schedule.may_be_invalid(self)
        if error.code in LOST:
            self.lose_all()
            self.wake()
        elif error.code in DIES_OF or is_invalid:
            self.schedule.restart(self)
        elif error.code not in NOT_HERE and error.code not in LATER:
            raise InvariantViolated(f"{self} gets an error that no client expects: {error.code.name} {error}")

    def lose_all(self) -> None:
        super().lose_all()
        self.held = NO_TASKS
        self.epoch, self._assigned, self._revokes_at_s = 0, None, None

    def end(self) -> None:
        super().end()
        self.held = NO_TASKS

    # ---- reconciliation

    def _reconcile(self) -> None:
        """Give up, which takes its time, and take then."""
        now_s = asyncio.get_running_loop().time()
        if self._revokes_at_s is None:
            if self._assigned is None or self._assigned == self.held:
                self._note_inputs()
                return
            self._goal = self._assigned
            slow_s = self.chance.choice([0, 0, 0.5, 2.5])
            self._revokes_at_s = now_s + (slow_s if self._gives_up() else 0)
        if now_s < self._revokes_at_s or (self.is_hung and self._gives_up()):
            return
        self._revokes_at_s = None
        self.schedule.reports.check_begun(self, self._goal)
        self.held = self._goal
        self._note_inputs()
        self.wake()

    def _gives_up(self) -> bool:
        return any(
            set(each_task(had)) - set(each_task(goal))
            for had, goal in (
                (self.held.active, self._goal.active),
                (self.held.standby, self._goal.standby),
                (self.held.warmup, self._goal.warmup),
            )
        )

    def _note_inputs(self) -> None:
        """Read the partitions of the active tasks, as far as their topics exist."""
        partitions = self.cluster.topics.partitions
        inputs = {
            one: None
            for task in sorted(each_task(self.held.active))
            for one in self.application.inputs(task, partitions)
        }
        self.give_up(dict.fromkeys(self.owned.keys() - inputs.keys()))
        for one in inputs:
            self.owned.setdefault(one, -1)

    @property
    def running(self) -> frozenset[TaskId]:
        """The active tasks that it runs."""
        return frozenset(each_task(self.held.active))

    @property
    def replicas(self) -> frozenset[TaskId]:
        """The standby and warm-up tasks that it has."""
        return frozenset([*each_task(self.held.standby), *each_task(self.held.warmup)])

    # ---- leaving

    async def leave(self, epoch: int = -1) -> None:
        """Give everything up and leave; a static one, with -2, for a while."""
        self.is_over = True
        self.owned.clear()
        self.held = NO_TASKS
        self.task.cancel()
        event = Leave(None, self.member_id, epoch, self.instance_id)
        try:
            await self.cluster.call(
                self._broker,
                lambda groups: groups.request(GROUP, GroupKind.STREAMS, event),
                REQUEST_TIMEOUT_S,
            )
        except (KafkaError, TimeoutError):
            return
