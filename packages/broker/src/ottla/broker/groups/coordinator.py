"""The shell around groups: finds them, does what they decide, keeps their time, loads and unloads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from ottla.broker.coordinators.partitions import partition_for
from ottla.broker.groups.alarms import GROUPS_BETWEEN_YIELDS, Alarms
from ottla.broker.groups.descriptions import GroupDescription, ListedGroup, describe
from ottla.broker.groups.events import (
    Event,
    GroupState,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    Loaded,
    Persist,
    Persisted,
    Removed,
    Sync,
    SyncResult,
    TimePassed,
    Unloaded,
)
from ottla.broker.groups.group import Group
from ottla.broker.groups.hosted import HostedGroup, HostedPartition, HostedPartitions
from ottla.broker.groups.loading import groups_of, load_until_there
from ottla.broker.groups.metrics import GroupMeters
from ottla.broker.groups.offsets import CommittedOffset, expiry_rule
from ottla.broker.groups.records import group_record, group_tombstone, offset_record
from ottla.broker.groups.states import GroupLimits
from ottla.broker.groups.store import OffsetsStore, Written
from ottla.broker.groups.write_errors import after_failed_commit, after_failed_group_write
from ottla.broker.groups.writing import RecordWriter
from ottla.broker.tasks import BackgroundTasks
from ottla.broker.values import replace
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.environment import Environment
    from ottla.broker.metrics import Metrics

log = logging.getLogger(__name__)


class GroupCoordinator:
    """Coordinates the groups whose partition of `__consumer_offsets` this broker leads.

    Own it with `async with`; inside, it keeps the groups' time, loads partitions it comes to lead and
    forgets old offsets. Every method returns Kafka's error codes and never raises them.
    """

    def __init__(
        self, *, config: BrokerConfig, environment: Environment, metrics: Metrics, store: OffsetsStore
    ) -> None:
        self._config = config
        self._environment = environment
        self._store = store
        self._limits = GroupLimits(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
        )
        self._hosted = HostedPartitions()
        self._meters = GroupMeters(metrics, self._hosted)
        self._alarms = Alarms(environment.clock, lambda hosted: self._step(hosted, TimePassed()))
        self._writer = RecordWriter(store, environment.clock, config.offsets_commit_timeout_ms)
        self._tasks = BackgroundTasks(metrics, environment.clock)
        self._active = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._active = True
        for partition in self._hosted:
            if not partition.loaded:
                self._spawn_load(partition)
        self._tasks.lasting(self._alarms.run(), "group-time")
        interval_ms = self._config.offsets_retention_check_interval_ms
        self._tasks.every("delete-expired-group-metadata", interval_ms, self.expire_offsets)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._active = False
        for partition in self._hosted:
            self._unload(partition)
        await self._tasks.__aexit__(kind, error, trace)

    # ---- leadership

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Take over partitions of `__consumer_offsets`, and give others up; other topics are ignored."""
        for topic_partition, epoch in resigned:
            if topic_partition.topic == GROUP_METADATA_TOPIC:
                self._resign(topic_partition.partition, epoch)
        for topic_partition, epoch in elected:
            if topic_partition.topic == GROUP_METADATA_TOPIC:
                self._elect(topic_partition.partition, epoch)

    def _elect(self, number: int, leader_epoch: int) -> None:
        present = self._hosted.get(number)
        if present is not None:
            # Leading on in a newer epoch: what is known here is what the log holds.
            present.leader_epoch = max(present.leader_epoch, leader_epoch)
            return
        partition = HostedPartition(number, leader_epoch)
        self._hosted.add(partition)
        if self._is_blank(number):
            partition.loaded = True
        elif self._active:
            self._spawn_load(partition)

    def _resign(self, number: int, leader_epoch: int) -> None:
        present = self._hosted.get(number)
        if present is None or leader_epoch < present.leader_epoch:
            return
        self._hosted.remove(number)
        self._unload(present)

    def _unload(self, partition: HostedPartition) -> None:
        for hosted in list(partition.groups.values()):
            self._step(hosted, Unloaded())
            self._alarms.cancel(hosted)
        partition.groups.clear()

    def _is_blank(self, number: int) -> bool:
        try:
            return self._store.is_blank(number)
        except KafkaError:
            return False

    def _spawn_load(self, partition: HostedPartition) -> None:
        self._tasks.spawn(self._load(partition), f"group-load-{partition.number}")

    async def _load(self, partition: HostedPartition) -> None:
        clock = self._environment.clock
        started_ms = clock.monotonic_ms()

        def is_wanted() -> bool:
            return self._hosted.get(partition.number) is partition

        loaded = await load_until_there(self._store, partition.number, clock.monotonic_ms, is_wanted)
        if loaded is None:
            return
        partition.groups.update(groups_of(loaded, partition.number, self._limits))
        partition.loaded = True
        for hosted in list(partition.groups.values()):
            self._step(hosted, Loaded())
        took_ms = clock.monotonic_ms() - started_ms
        self._meters.load_time.update(took_ms)
        facts = {"partition": partition.number, "groups": len(partition.groups), "records": loaded.records}
        log.info("groups loaded", extra={**facts, "took_ms": round(took_ms)})

    # ---- finding groups

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that keeps this group."""
        return partition_for(group_id, self._store.partition_count())

    def why_not(self, group_id: str | None, *, empty_id_allowed: bool = False) -> ErrorCode:
        """Tell why this broker cannot speak for the group; NONE if it can.

        The empty id is refused where members are concerned; simple consumers of old could commit under it.
        """
        if group_id is None or (not group_id and not empty_id_allowed):
            return ErrorCode.INVALID_GROUP_ID
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = self._hosted.get(self.partition_of(group_id))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE if partition.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _find(self, group_id: str) -> HostedGroup | None:
        partition = self._hosted.get(self.partition_of(group_id))
        return partition.groups.get(group_id) if partition else None

    def _find_or_make(self, group_id: str) -> HostedGroup:
        found = self._find(group_id)
        if found is not None:
            return found
        partition = self._hosted.get(self.partition_of(group_id))
        assert partition is not None, "ask why_not first"
        group = Group(group_id, self._limits, self._environment.clock.now_ms())
        hosted = partition.groups[group_id] = HostedGroup(group, partition.number)
        return hosted

    def _drop_if_void(self, hosted: HostedGroup) -> None:
        partition = self._hosted.get(hosted.partition)
        if partition is not None and hosted.is_void:
            partition.groups.pop(hosted.group.group_id, None)
            self._alarms.cancel(hosted)

    # ---- membership

    async def join(self, group_id: str, join: Join) -> JoinResult:
        """Let a member join, and wait until its generation begins. `join.token` is replaced."""
        error = self.why_not(group_id)
        if error is not ErrorCode.NONE:
            return JoinResult(error=error, member_id=join.member_id)
        hosted = self._find_or_make(group_id)
        answer = self._ask(hosted, join)
        self._drop_if_void(hosted)
        return cast("JoinResult", await answer)

    async def sync(self, group_id: str, sync: Sync) -> SyncResult:
        """Give a member its assignment once there is one. `sync.token` is replaced."""
        error = self.why_not(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance went with the old coordinator; old clients do not know the honest error here.
            return SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
        if error is not ErrorCode.NONE:
            return SyncResult(error=error)
        hosted = self._find(group_id)
        if hosted is None:
            return SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID)
        return cast("SyncResult", await self._ask(hosted, sync))

    async def heartbeat(self, group_id: str, heartbeat: Heartbeat) -> ErrorCode:
        """Note that a member is alive."""
        error = self.why_not(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # loading gives every member a whole session anyway
        if error is not ErrorCode.NONE:
            return error
        hosted = self._find(group_id)
        if hosted is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return cast("HeartbeatResult", await self._ask(hosted, heartbeat)).error

    async def leave(self, group_id: str, leave: Leave) -> LeaveResult:
        """Let members go."""
        error = self.why_not(group_id)
        if error is not ErrorCode.NONE:
            return LeaveResult(error)
        hosted = self._find(group_id)
        if hosted is None:
            unknown = tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in leave.members)
            return LeaveResult(ErrorCode.NONE, unknown)
        return cast("LeaveResult", await self._ask(hosted, leave))

    def _ask(self, hosted: HostedGroup, event: Join | Sync | Heartbeat | Leave) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._step(hosted, replace(event, token=answer))
        return answer

    def _step(self, hosted: HostedGroup, event: Event) -> None:
        clock = self._environment.clock
        outcome = hosted.group.step(event, clock.monotonic_ms(), clock.now_ms())
        for reply in outcome.replies:
            waiting = cast("asyncio.Future[Any]", reply.token)
            if not waiting.done():
                waiting.set_result(reply.result)
        if outcome.rebalanced:
            self._meters.rebalances.mark(outcome.rebalanced)
        self._alarms.follow(hosted)
        for persist in outcome.persist:
            self._write_group(hosted, persist)

    # ---- writing groups

    def _write_group(self, hosted: HostedGroup, persist: Persist) -> None:
        try:
            written = self._writer.append(hosted.partition, [group_record(persist.snapshot)])
        except KafkaError as error:
            self._step(hosted, Persisted(persist, after_failed_group_write(error.code)))
            return
        if written.committed is None:
            self._step(hosted, Persisted(persist))
        else:
            self._tasks.spawn(self._group_written(hosted, persist, written), "group-write")

    async def _group_written(self, hosted: HostedGroup, persist: Persist, written: Written) -> None:
        error = await self._writer.outcome_of(written)
        code = ErrorCode.NONE if error is None else after_failed_group_write(error.code)
        self._step(hosted, Persisted(persist, code))

    # ---- offsets

    async def commit_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, and return once all in-sync replicas have them, or why not."""
        error = self.why_not(group_id, empty_id_allowed=True)
        if error is ErrorCode.NONE and self._find(group_id) is None and generation >= 0:
            error = ErrorCode.ILLEGAL_GENERATION  # of a group that is gone
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        hosted = self._find_or_make(group_id)
        now_ms = self._environment.clock.monotonic_ms()
        error = hosted.group.check_commit(member_id, generation, instance_id, now_ms)
        self._alarms.follow(hosted)
        if error is ErrorCode.NONE:
            results = await self._commit(hosted, offsets)
        else:
            results = dict.fromkeys(offsets, error)
        self._drop_if_void(hosted)
        return results

    async def _commit(
        self, hosted: HostedGroup, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        longest = self._config.offset_metadata_max_bytes
        accepted = {tp: one for tp, one in offsets.items() if len(one.metadata) <= longest}
        error = await self._write_offsets(hosted, accepted) if accepted else ErrorCode.NONE
        return {tp: error if tp in accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE for tp in offsets}

    async def _write_offsets(
        self, hosted: HostedGroup, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> ErrorCode:
        group_id = hosted.group.group_id
        records = [offset_record(group_id, partition, one) for partition, one in offsets.items()]
        try:
            written = self._writer.append(hosted.partition, records)
        except KafkaError as error:
            return after_failed_commit(error.code)
        self._meters.commits.mark(len(offsets))
        hosted.offsets.begin(offsets)
        if written.committed is None:
            hosted.offsets.committed(offsets, written.position)
            return ErrorCode.NONE
        # In a task of its own: a client that hangs up must not keep a written commit from being seen.
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._offsets_written(hosted, offsets, written, answer), "offset-write")
        return await answer

    async def _offsets_written(
        self,
        hosted: HostedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        written: Written,
        answer: asyncio.Future[ErrorCode],
    ) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            error = await self._writer.outcome_of(written)
            if error is None:
                hosted.offsets.committed(offsets, written.position)
                code = ErrorCode.NONE
            else:
                hosted.offsets.failed(offsets)
                code = after_failed_commit(error.code)
        finally:
            if not answer.done():
                answer.set_result(code)

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset | ErrorCode | None]]:
        """Return committed offsets, of all partitions when none are named; None where there is none.

        A partition gets UNSTABLE_OFFSET_COMMIT when the caller wants only what no open transaction changes.
        """
        error = self.why_not(group_id, empty_id_allowed=True)
        if error is not ErrorCode.NONE:
            return error, {}
        hosted = self._find(group_id)
        if hosted is None:
            return error, dict.fromkeys(partitions or ())
        offsets = hosted.offsets
        fetched: dict[TopicPartition, CommittedOffset | ErrorCode | None] = {}
        for partition in offsets if partitions is None else partitions:
            unstable = require_stable and offsets.is_unstable(partition)
            fetched[partition] = ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else offsets.get(partition)
        return error, fetched

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Forget offsets of topics that no member is subscribed to."""
        error = self.why_not(group_id)
        if error is not ErrorCode.NONE:
            return error, {}
        hosted = self._find(group_id)
        if hosted is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        group = hosted.group
        if group.state is not GroupState.EMPTY and group.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, {}
        busy = {
            one
            for one in partitions
            if group.state is not GroupState.EMPTY and group.is_subscribed_to(one.topic)
        }
        self._forget(hosted, [one for one in partitions if one not in busy], self._meters.deletions)
        return ErrorCode.NONE, {
            one: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if one in busy else ErrorCode.NONE for one in partitions
        }

    def partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Forget every group's offsets of partitions that do not exist any more."""
        gone = set(partitions)
        for hosted in self._hosted.groups():
            if touched := [one for one in hosted.offsets if one in gone]:
                self._forget(hosted, touched, self._meters.deletions)

    def _forget(self, hosted: HostedGroup, partitions: Iterable[TopicPartition], meter: Any) -> None:
        group_id = hosted.group.group_id
        gone = hosted.offsets.forget(partitions)
        meter.mark(len(gone))
        self._writer.bury(hosted.partition, [offset_record(group_id, partition, None) for partition in gone])

    def _remove(self, hosted: HostedGroup) -> None:
        """Forget an empty group with all its offsets."""
        group = hosted.group
        had_generations = group.generation > 0
        self._step(hosted, Removed())
        self._alarms.cancel(hosted)
        partition = self._hosted.get(hosted.partition)
        if partition is not None and partition.groups.get(group.group_id) is hosted:
            del partition.groups[group.group_id]
        gone = hosted.offsets.forget(list(hosted.offsets))
        tombstones = [offset_record(group.group_id, one, None) for one in gone]
        if had_generations:  # a group of simple consumers was never written itself
            tombstones.append(group_tombstone(group.group_id))
        self._writer.bury(hosted.partition, tombstones)

    # ---- administration

    def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[ListedGroup]]:
        """List the groups known here, in these states if any are named."""
        if not self._active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._hosted.is_loading else ErrorCode.NONE
        groups = [hosted.group for hosted in self._hosted.groups()]
        return error, [
            ListedGroup(group.group_id, group.protocol_type or "", group.state)
            for group in groups
            if not states or group.state.value in states
        ]

    def describe_group(self, group_id: str) -> GroupDescription:
        """Describe a group; one that nobody knows is dead."""
        error = self.why_not(group_id, empty_id_allowed=True)
        if error is not ErrorCode.NONE:
            return GroupDescription(group_id=group_id, error=error)
        hosted = self._find(group_id)
        if hosted is None:
            return GroupDescription(group_id=group_id, state=GroupState.DEAD)
        return describe(hosted.group)

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups that have no members, offsets and all."""
        return {group_id: self._delete_group(group_id) for group_id in group_ids}

    def _delete_group(self, group_id: str) -> ErrorCode:
        error = self.why_not(group_id, empty_id_allowed=True)
        if error is not ErrorCode.NONE:
            return error
        hosted = self._find(group_id)
        if hosted is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if hosted.group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._meters.deletions.mark(len(hosted.offsets))
        self._remove(hosted)
        return ErrorCode.NONE

    # ---- time

    async def expire_offsets(self) -> int:
        """Forget offsets that are past their retention, and empty groups without offsets; return how many."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        forgotten = 0
        for count, hosted in enumerate(list(self._hosted.groups()), start=1):
            forgotten += self._expire_group(hosted, retention_ms)
            if count % GROUPS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
        if forgotten:
            log.info("offsets expired", extra={"offsets": forgotten})
        return forgotten

    def _expire_group(self, hosted: HostedGroup, retention_ms: int) -> int:
        group, wall_ms = hosted.group, self._environment.clock.now_ms()
        rule = expiry_rule(group)
        expired = hosted.offsets.expired(rule, wall_ms, retention_ms) if rule else []
        if expired:
            self._forget(hosted, expired, self._meters.expirations)
        if group.state is GroupState.EMPTY and not group.pending_members and hosted.offsets.is_idle:
            self._remove(hosted)
        return len(expired)
