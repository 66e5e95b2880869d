"""The group coordinator: membership requests, group administration, and the lifetime of what serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from ottla.broker.groups.classic.events import (
    GroupState,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    Sync,
    SyncResult,
)
from ottla.broker.groups.hosting.hosted_groups import HostedGroups
from ottla.broker.groups.kinds import KINDS, GroupKind, NewGroup
from ottla.broker.groups.offsets.offset_requests import OffsetRequests
from ottla.broker.groups.offsets.partition_state import HostedGroup
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.protocol.errors import ErrorCode, GroupIdNotFound, GroupMaxSizeReached, KafkaError, error_for
from ottla.zookeeper.frozen_classes import replace

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.groups.classic.descriptions import GroupDescription, ListedGroup
    from ottla.broker.groups.offsets.stale_offsets import ExistingTopics
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.topics import TopicPartition


class GroupCoordinator:
    """Coordinates the groups whose partition of `__consumer_offsets` this broker leads.

    Own it with `async with`: inside, it fires the deadlines of groups, loads the partitions it is elected for
    and expires old offsets. Every method returns Kafka's error codes and never raises them.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        environment: Environment,
        metrics: Metrics,
        store: CoordinatorStore,
        metadata: MetadataCache,
        topics: ExistingTopics,
        group_settings: Callable[[str], Mapping[str, str]] = lambda _: {},
        kinds: Mapping[GroupKind, NewGroup] = KINDS,
    ) -> None:
        """`group_settings` are those of a group itself; `kinds` are hosted beside the classic one."""
        self._tasks = BackgroundTasks(metrics, environment.clock)
        self._hosted = HostedGroups(
            config=config,
            environment=environment,
            metrics=metrics,
            store=store,
            metadata=metadata,
            topics=topics,
            tasks=self._tasks,
            group_settings=group_settings,
            kinds=kinds,
        )
        self._expiration_interval_ms = config.offsets_retention_check_interval_ms
        self.offsets = OffsetRequests(self._hosted, config)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._hosted.runtime.start()
        self._tasks.lasting(self._hosted.timers.run(), "group-time")
        self._tasks.every("delete-expired-group-metadata", self._expiration_interval_ms, self.offsets.expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hosted.runtime.stop()
        await self._tasks.__aexit__(kind, error, trace)

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Take over partitions of `__consumer_offsets`, and give others up; other topics are ignored."""
        self._hosted.runtime.leadership_changed(elected, resigned)

    def transaction_ended(self, partition: int, producer_id: int, commit: bool) -> None:
        """A transaction's marker is committed in a partition of `__consumer_offsets`.

        Its offsets become visible, or are dropped.
        """
        self._hosted.transaction_ended(partition, producer_id, commit=commit)

    # ---- members of groups of every kind

    async def request(self, group_id: str, kind: GroupKind, event: Any, *, creates: bool = False) -> Any:
        """Step a group of this kind with a request, whose `token` is replaced, and return the answer.

        A request that `creates` makes the group where there is none, or only an empty classic one. Raises
        KafkaError: that of a refusal, or of a write that failed.
        """
        partition = self._hosted.partition_for(group_id)
        if isinstance(partition, ErrorCode):
            raise error_for(partition)
        groups = partition.state.groups
        hosted = self._hosted.find_or_create(partition, group_id, kind) if creates else groups.get(group_id)
        if hosted is None:
            raise GroupMaxSizeReached() if creates else GroupIdNotFound(f"Group {group_id} not found.")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._hosted.step_as(hosted, kind, replace(event, token=answer), may_replace=creates)
        except KafkaError:
            await self._hosted.until_committed(hosted)
            raise
        finally:
            self._hosted.drop_if_unused(hosted)
        return await answer

    def find(self, group_id: str, kind: GroupKind) -> HostedGroup:
        """Return a group of this kind. Raises KafkaError."""
        partition = self._hosted.partition_for(group_id)
        if isinstance(partition, ErrorCode):
            raise error_for(partition)
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if hosted.group.kind is not kind:
            raise GroupIdNotFound(f"Group {group_id} is not a {kind} group.")
        return hosted

    # ---- members of the classic protocol

    async def join(self, group_id: str, join: Join) -> JoinResult:
        """Join a member, and wait until its generation begins. `join.token` is replaced."""
        partition = self._hosted.partition_for(group_id)
        if isinstance(partition, ErrorCode):
            return JoinResult(error=partition, member_id=join.member_id)
        hosted = self._hosted.find_or_create(partition, group_id)
        if hosted is None:
            return JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=join.member_id)
        if hosted.classic is None and hosted.group.is_empty:
            self._hosted.make_classic(hosted)
        if not hosted.serves_classic_members:
            return JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        answer = self._request(hosted, join)
        self._hosted.drop_if_unused(hosted)
        try:
            return cast("JoinResult", await answer)
        except KafkaError as error:
            return JoinResult(error=error.code, member_id=join.member_id)

    async def sync(self, group_id: str, sync: Sync) -> SyncResult:
        """Return a member's assignment once there is one. `sync.token` is replaced."""
        partition = self._hosted.partition_for(group_id)
        if partition is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance ended with the old coordinator; old clients do not know the exact error here.
            return SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
        if isinstance(partition, ErrorCode):
            return SyncResult(error=partition)
        hosted = partition.state.groups.get(group_id)
        if hosted is None or not hosted.serves_classic_members:
            return SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID)
        try:
            return cast("SyncResult", await self._request(hosted, sync))
        except KafkaError as error:
            return SyncResult(error=error.code)

    async def heartbeat(self, group_id: str, heartbeat: Heartbeat) -> ErrorCode:
        """Extend a member's session. `heartbeat.token` is replaced."""
        partition = self._hosted.partition_for(group_id)
        if partition is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # every member gets a whole session when the load ends
        if isinstance(partition, ErrorCode):
            return partition
        hosted = partition.state.groups.get(group_id)
        if hosted is None or not hosted.serves_classic_members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        try:
            return cast("HeartbeatResult", await self._request(hosted, heartbeat)).error
        except KafkaError as error:
            return error.code

    async def leave(self, group_id: str, leave: Leave) -> LeaveResult:
        """Remove members from the group. `leave.token` is replaced."""
        partition = self._hosted.partition_for(group_id)
        if isinstance(partition, ErrorCode):
            return LeaveResult(partition)
        hosted = partition.state.groups.get(group_id)
        if hosted is None or not hosted.serves_classic_members:
            unknown = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in leave.members)
            return LeaveResult(ErrorCode.NONE, unknown)
        try:
            return cast("LeaveResult", await self._request(hosted, leave))
        except KafkaError as error:
            return LeaveResult(error.code)

    def _request(self, hosted: HostedGroup, event: Join | Sync | Heartbeat | Leave) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._hosted.step(hosted, replace(event, token=answer))
        except KafkaError as error:
            answer.set_exception(error)
        return answer

    # ---- administration

    def groups(self) -> Iterator[HostedGroup]:
        """Iterate over the groups of this broker; they may change meanwhile."""
        return iter(self._hosted)

    def partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Delete every group's offsets of partitions that do not exist any more."""
        self._hosted.partitions_deleted(partitions)
        self._hosted.topics_changed({partition.topic for partition in partitions})

    def topics_published(self, topics: Collection[str], replaced: Collection[str]) -> None:
        """Show topics to groups that read them, and drop the offsets of earlier ones of these names.

        `replaced` are known to have had another id.
        """
        self._hosted.stale.published(topics, replaced)
        self._hosted.topics_changed(frozenset(topics))

    def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[ListedGroup]]:
        """List the hosted groups; with `states` only those in one of them, compared without case."""
        from ottla.broker.groups.classic.descriptions import ListedGroup

        runtime = self._hosted.runtime
        if not runtime.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if runtime.partitions.is_loading else ErrorCode.NONE
        groups = [hosted.group for hosted in self._hosted]
        wanted = {state.lower() for state in states}
        return error, [
            ListedGroup(group.group_id, group.protocol_type or "", group.state, group.kind)
            for group in groups
            if not wanted or group.state.value.lower() in wanted
        ]

    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe a classic group; one that is unknown or of another kind is Dead."""
        from ottla.broker.groups.classic.descriptions import GroupDescription, describe

        partition = self._hosted.partition_for(group_id, empty_id_allowed=True)
        if isinstance(partition, ErrorCode):
            return GroupDescription(group_id=group_id, error=partition)
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            return GroupDescription(
                group_id=group_id, state=GroupState.DEAD, problem=f"Group {group_id} not found."
            )
        group = hosted.classic
        if group is None:
            problem = f"Group {group_id} is not a classic group."
            return GroupDescription(group_id=group_id, state=GroupState.DEAD, problem=problem)
        return describe(group)

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups without members, with their offsets."""
        return {group_id: self._delete_group(group_id) for group_id in group_ids}

    def _delete_group(self, group_id: str) -> ErrorCode:
        partition = self._hosted.partition_for(group_id, empty_id_allowed=True)
        if isinstance(partition, ErrorCode):
            return partition
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not hosted.group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        self._hosted.meters.deletions.mark(len(hosted.offsets))
        self._hosted.remove(hosted)
        return ErrorCode.NONE
