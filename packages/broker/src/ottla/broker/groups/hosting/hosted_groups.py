"""The groups that this broker coordinates: find a group, step it, write it, remove it.

The module has over 500 lines because a step, the order of its writes and its answers are one mechanism.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition
from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.coordinators.response_errors import after_failed_group_records, after_failed_group_write
from ottla.broker.coordinators.runtime import CoordinatorRuntime, LoadFacts
from ottla.broker.coordinators.timers import Timers
from ottla.broker.groups.classic.events import (
    GroupSnapshot,
    GroupState,
    Outcome,
    Persist,
    Persisted,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.kinds import (
    AnyReply,
    GroupKind,
    GroupLimits,
    GroupOf,
    GroupSurroundings,
    HostableGroup,
    KindRecord,
    Loaded,
    NewGroup,
    NotWritten,
    Removed,
    Reply,
    StepOutcome,
    Succeeded,
    TimePassed,
    Unloaded,
    Work,
    WorkFailed,
)
from ottla.broker.groups.offsets.partition_state import GroupsState, HostedGroup
from ottla.broker.groups.offsets.stale_offsets import ExistingTopics, StaleOffsets
from ottla.broker.groups.records import (
    GroupRecord,
    GroupRecordCodec,
    LogRecord,
    OffsetRecord,
    encode_in_steps,
)
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.loop_budget import LONG, LoopBudget, StepQueue, Turn
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
    NotCoordinator,
    error_for,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
    from ottla.broker.groups.hosting.uncommitted_records import UncommittedRecords
    from ottla.broker.metrics import Meter, Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment

log = logging.getLogger(__name__)

ANSWER_MS: Final = 0.05
"""The time that an answer to a member is expected to take, with its encoding and sending."""

GroupPartition: TypeAlias = CoordinatorPartition[GroupsState]


class HostedGroups:
    """The groups in the partitions of `__consumer_offsets` that this broker leads.

    `step` is the only way to change a group: it delivers the replies, writes what the group stores, sets the
    deadline. A group's rebalance answers all its members, which the loop's turns share.
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
        tasks: BackgroundTasks,
        group_settings: Callable[[str], Mapping[str, str]],
        kinds: Mapping[GroupKind, NewGroup],
    ) -> None:
        self._tasks = tasks
        self._kinds = kinds
        clock = self.clock = environment.clock
        self.budget = environment.budget
        self.stale = StaleOffsets(
            self, self._forget_stale, metadata=metadata, topics=topics, budget=self.budget, tasks=tasks
        )
        self._max_groups = config.group_max_count
        self._limits = _limits_of(config)
        self._surroundings = GroupSurroundings(
            config, self._limits, group_settings, metadata, environment.random, lambda: self._early_heartbeats
        )
        codec = GroupRecordCodec()
        self._group_writes = GroupWrites(tasks, environment.budget)
        self._answers = StepQueue(environment.budget.member_answers, ANSWER_MS)
        self.runtime: CoordinatorRuntime[GroupsState, LogRecord] = CoordinatorRuntime(
            store,
            codec,
            new_state=lambda number: GroupsState(number, self._limits, self._new_group),
            loaded=self._loaded,
            unloaded=self._unloaded,
            ready=self.stale.metadata_arrived,
            environment=environment,
            tasks=tasks,
        )
        self._not_moved = LimitedWarnings(log, clock.monotonic_ms)
        self._ended_early: dict[GroupPartition, list[tuple[int, bool]]] = {}
        """Transactions that ended while their partition was loaded: producer id, and whether it commits."""
        self._deleted_early: dict[GroupPartition, set[TopicPartition]] = {}
        """Partitions that were deleted while their offsets were loaded."""
        self.meters = GroupMeters(metrics, self)
        self.timers: Timers[HostedGroup] = Timers(environment, lambda hosted: self.step(hosted, TimePassed()))
        self.writer: RecordWriter[GroupsState, LogRecord] = RecordWriter(
            store, codec, clock, tasks, config.offsets_commit_timeout_ms
        )
        self._uncommitted: UncommittedRecords | None = None

    @cached_property
    def _early_heartbeats(self) -> EarlyHeartbeats:
        from ottla.broker.groups.early_heartbeats import EarlyHeartbeats

        return EarlyHeartbeats(self._surroundings.config.group_rebalance_heartbeat_interval_ms)

    # ---- finding groups

    def __iter__(self) -> Iterator[HostedGroup]:
        """All groups; safe against changes while iterating."""
        for partition in self.runtime.partitions:
            yield from list(partition.state.groups.values())

    def partition_for(
        self, group_id: str | None, *, empty_id_allowed: bool = False
    ) -> GroupPartition | ErrorCode:
        """Return the partition that keeps the group, or the reason why this broker does not coordinate it.

        The empty id is invalid for members; old simple consumers may commit under it.
        """
        if group_id is None or (not group_id and not empty_id_allowed):
            return ErrorCode.INVALID_GROUP_ID
        return self.runtime.find(group_id)

    def find_or_create(
        self, partition: GroupPartition, group_id: str, kind: GroupKind = GroupKind.CLASSIC
    ) -> HostedGroup | None:
        """Return the group, which is created empty when it is unknown; None where there are too many."""
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            if sum(len(partition.state.groups) for partition in self.runtime.partitions) >= self._max_groups:
                return None
            group = self._new_group(kind, group_id)
            assert group is not None, f"{kind} groups are not hosted"
            hosted = partition.state.groups[group_id] = HostedGroup(group, partition.number)
        return hosted

    def _new_group(self, kind: GroupKind, group_id: str) -> HostableGroup | None:
        if kind is GroupKind.CLASSIC:
            return Group(group_id, self._limits, self.clock.now_ms())
        make = self._kinds.get(kind)
        return None if make is None else make(group_id, self._surroundings)

    def drop_if_unused(self, hosted: HostedGroup) -> None:
        """Forget a group that has no member, no generation and no offset."""
        partition = self.runtime.partitions.get(hosted.partition)
        if partition is not None and hosted.is_unused and self._hosts(hosted):
            del partition.state.groups[str(hosted)]
            self.timers.cancel(hosted)

    # ---- steps

    def step(self, hosted: HostedGroup, event: object) -> None:
        """Step the group with one event, and perform its effects. Raises KafkaError for a refused request."""
        self.perform(hosted, hosted.group.step(event, self.clock.monotonic_ms(), self.clock.now_ms()))

    def step_as(self, hosted: HostedGroup, kind: GroupKind, event: object, *, may_replace: bool) -> None:
        """Step a group of this kind; one of it takes the place of an empty classic group if it `may_replace`.

        Raises GroupIdNotFound for a group of another kind.
        """
        if hosted.group.kind is kind:
            self.step(hosted, event)
            return
        made = self._successor(hosted, kind) if may_replace else None
        if made is None:
            raise GroupIdNotFound(f"Group {hosted} is not a {kind} group.")
        successor, records = made
        now_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        successor.step(Loaded(), now_ms, wall_ms)
        outcome = successor.step(event, now_ms, wall_ms)
        outcome.records[:0] = [*hosted.group.tombstones(), *records]
        if outcome.successor is None:
            outcome.successor = successor
        self.perform(hosted, outcome)

    def _successor(
        self, hosted: HostedGroup, kind: GroupKind
    ) -> tuple[HostableGroup, Sequence[KindRecord]] | None:
        """Return a group of another kind for the place of a classic one, with the records of its members.

        A share group does not follow on another: it would not know the offsets that were committed.
        """
        if hosted.classic is None or kind is GroupKind.SHARE:
            return None
        if not hosted.group.is_empty:
            return self._moved(hosted.classic, kind)
        successor = self._new_group(kind, str(hosted))
        return None if successor is None else (successor, ())

    def _moved(self, group: Group, kind: GroupKind) -> tuple[HostableGroup, Sequence[KindRecord]] | None:
        make = self._kinds[kind]
        if not isinstance(make, GroupOf):
            return None
        try:
            return make.successor_of(group, self._surroundings)
        except GroupIdNotFound as refusal:
            facts = {"group": group.group_id, "reason": str(refusal)}
            self._not_moved.warn(group.group_id, "group stays classic", extra=facts)
            raise

    def make_classic(self, hosted: HostedGroup) -> None:
        """Replace an empty group of a kind whose members may also be classic ones."""
        if hosted.group.kind in (GroupKind.CONSUMER, GroupKind.STREAMS):
            successor = Group(str(hosted), self._limits, self.clock.now_ms())
            self.perform(hosted, StepOutcome(list(hosted.group.tombstones()), successor=successor))

    def perform(self, hosted: HostedGroup, outcome: StepOutcome) -> None:
        """Perform the effects of a step: write, reply, and wait for the next deadline."""
        if not outcome.records and self._behind(hosted) is None:
            self._reply(outcome.replies)
            self._begin_work(hosted, outcome)
        elif self._write_records(hosted, outcome):
            self._begin_work(hosted, outcome)
        elif outcome.successor is None:
            # Work builds on the records of its step, such as the group epoch that it assigns for.
            for work in outcome.work:
                self.step(hosted, WorkFailed(work.name))
        if outcome.rebalanced:
            self.meters.rebalances[hosted.group.kind].mark(outcome.rebalanced)
        self.timers.set(hosted, hosted.group.wake_at_ms)
        if isinstance(outcome, Outcome):
            for persist in outcome.persist:
                self._write_group(hosted, persist)

    def _begin_work(self, hosted: HostedGroup, outcome: StepOutcome) -> None:
        for work in outcome.work:
            self._tasks.spawn(self._do(hosted, hosted.group, work), work.name)

    def _reply(self, replies: Iterable[AnyReply]) -> None:
        for reply in replies:
            self._answers.call(partial(_answer, reply))

    def _write_records(self, hosted: HostedGroup, outcome: StepOutcome) -> bool:
        """Append the records of a step, and reply once they are committed; return whether the log has them.

        A step without records may have seen what is not committed yet: its replies wait for the last records.
        """
        if not outcome.records:
            behind = self._behind(hosted)
            assert behind is not None
            behind += outcome.replies
            return True
        before, waiting = hosted.group, outcome.replies
        partition = self.runtime.partitions.get(hosted.partition)

        def settled(error: KafkaError | None) -> None:
            if hosted.behind is waiting:
                hosted.behind = None
            if error is None:
                self._reply(waiting)
                return
            if partition is not None and self._hosts(hosted):
                self._keep_replies(partition)  # the group has replayed what may never be committed
            _refuse(waiting, error_for(after_failed_group_records(error.code), str(error)))

        if partition is None:
            settled(NotCoordinator())
            return False
        hosted.behind = waiting
        if outcome.successor is not None:
            hosted.group = outcome.successor
        if not self.writer.write(partition, outcome.records, settled, at_once=True):
            hosted.group = before
            hosted.group.step(NotWritten(), self.clock.monotonic_ms(), self.clock.now_ms())
            return False
        if outcome.successor is not None:
            self.perform(hosted, before.step(Succeeded(), self.clock.monotonic_ms(), self.clock.now_ms()))
            for event in outcome.then:
                self.step(hosted, event)
        return True

    def _behind(self, hosted: HostedGroup) -> list[AnyReply] | None:
        """Return the replies that wait for records which the next one may have seen; None without such.

        Those of a classic group wait for no load: its members learn a generation before the log.
        """
        if hosted.behind is not None or hosted.classic is not None:
            return hosted.behind
        if self._uncommitted is None:
            return None
        return self._uncommitted.behind(self.runtime.partitions.get(hosted.partition))

    async def until_committed(self, hosted: HostedGroup) -> None:
        """Wait until the last records of a group are committed. Raises the error of their write.

        A coordinator that was deposed unnoticed removes members whose heartbeats its successor has got: it
        must refuse nobody for that.
        """
        if (behind := self._behind(hosted)) is not None:
            committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            behind.append(Reply(committed, None))
            await committed

    async def _do(self, hosted: HostedGroup, group: HostableGroup, work: Work) -> None:
        """Do the long work of a group, unless another group or coordinator takes its place meanwhile."""
        turn = self.budget.turn()
        try:
            events = work.events(await turn.run(work.steps()))
        except Exception:
            log.exception("work of a group failed", extra={"group": str(hosted), "work": work.name})
            events = [WorkFailed(work.name)]
        for event in events:
            await turn.yield_if_spent()
            if hosted.group is not group or not self._hosts(hosted):
                return
            self.step(hosted, event)

    def _hosts(self, hosted: HostedGroup) -> bool:
        partition = self.runtime.partitions.get(hosted.partition)
        return partition is not None and partition.state.groups.get(str(hosted)) is hosted

    def _write_group(self, hosted: HostedGroup, persist: Persist) -> None:
        snapshot, partition = persist.snapshot, self.runtime.partitions.get(hosted.partition)

        def settled(error: KafkaError | None) -> None:
            code = ErrorCode.NONE if error is None else after_failed_group_write(error.code)
            persisted = partial(self.step, hosted, Persisted(persist, code))
            if len(snapshot.members) > LONG:
                self._answers.put(persisted)  # a turn of its own: the write of a large group took one
            else:
                persisted()

        def write(value: bytes | None) -> None:
            if partition is None or self.runtime.partitions.get(hosted.partition) is not partition:
                settled(NotCoordinator())
            else:
                self.writer.write(partition, [GroupRecord(snapshot.group_id, snapshot, value)], settled)

        if len(snapshot.members) > LONG:
            self._group_writes.put(snapshot.group_id, write, snapshot, stopped=settled)
        else:
            self._group_writes.put(snapshot.group_id, write, stopped=settled)

    # ---- transactions

    def transaction_ended(self, number: int, producer_id: int, *, commit: bool) -> None:
        """Apply a marker that is committed in a partition; one that is not led here hears of it by loading.

        A load may have read the log before the marker came: it is applied once more when the load has ended.
        Nothing of the producer's next transaction can be there by then, for no commit is taken meanwhile.
        """
        partition = self.runtime.partitions.get(number)
        if partition is None:
            return
        if partition.loaded:
            partition.state.end_transaction(producer_id, commit=commit)
        else:
            self._ended_early.setdefault(partition, []).append((producer_id, commit))

    # ---- loading and unloading

    def _loaded(self, partition: GroupPartition, facts: LoadFacts) -> None:
        for producer_id, commit in self._ended_early.pop(partition, ()):
            partition.state.end_transaction(producer_id, commit=commit)
        self._keep_replies(partition)
        groups = partition.state.groups
        deleted = self._deleted_early.pop(partition, ())
        for hosted in list(groups.values()):
            self.step(hosted, Loaded())
            self._forget_deleted(hosted, deleted)
        self.stale.begin_drop(groups.values())
        self.meters.load_time.update(facts.took_ms)
        log.info(
            "groups loaded",
            extra={"partition": partition.number, "groups": len(groups), "records": facts.records,
                   "took_ms": round(facts.took_ms)},
        )  # fmt: skip

    def _keep_replies(self, partition: GroupPartition) -> None:
        """Keep the replies of a partition until what its groups have replayed is committed."""
        if self.writer.is_committed(partition):
            return
        from ottla.broker.groups.hosting.uncommitted_records import UncommittedRecords

        if self._uncommitted is None:
            self._uncommitted = UncommittedRecords(
                self.writer, self._tasks, reply=self._reply, refuse=_refuse
            )
        self._uncommitted.begin(partition)

    def _unloaded(self, partition: GroupPartition) -> None:
        if self._uncommitted is not None:
            self._uncommitted.end(partition)
        self._ended_early.pop(partition, None)
        self._deleted_early.pop(partition, None)
        for hosted in list(partition.state.groups.values()):
            self.step(hosted, Unloaded())
            self.timers.cancel(hosted)
        partition.state.groups.clear()

    # ---- forgetting

    def topics_changed(self, names: Set[str]) -> None:
        """Groups look at these topics again: they were published or deleted."""
        for hosted in self:
            hosted.group.topics_changed(names)

    def partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Drop every group's offsets of these partitions; a load that goes on drops them at its end."""
        for partition in self.runtime.partitions:
            if not partition.loaded:
                self._deleted_early.setdefault(partition, set()).update(partitions)
        deleted = frozenset(partitions)
        for hosted in self:
            self._forget_deleted(hosted, deleted)

    def _forget_deleted(self, hosted: HostedGroup, deleted: Collection[TopicPartition]) -> None:
        if deleted and (affected := hosted.offsets.known.intersection(deleted)):
            self.forget_offsets(hosted, affected, self.meters.deletions)

    def forget_offsets(self, hosted: HostedGroup, partitions: Iterable[TopicPartition], meter: Meter) -> None:
        """Drop committed offsets, and write their tombstones."""
        gone = hosted.offsets.forget(partitions)
        meter.mark(len(gone))
        group_id = hosted.group.group_id
        self._write_tombstones(hosted, [OffsetRecord(group_id, partition, None) for partition in gone])

    def _forget_stale(self, hosted: HostedGroup, stale: Collection[TopicPartition]) -> int:
        """Drop offsets, and return how many; none once another coordinator has taken the group over."""
        if not self._hosts(hosted):
            return 0
        self.forget_offsets(hosted, stale, self.meters.deletions)
        return len(stale)

    def remove(self, hosted: HostedGroup) -> None:
        """Forget an empty group with all its offsets, and write their tombstones."""
        group = hosted.group
        last = group.tombstones()
        self.step(hosted, Removed())
        self.timers.cancel(hosted)
        partition = self.runtime.partitions.get(hosted.partition)
        if partition is not None and partition.state.groups.get(group.group_id) is hosted:
            del partition.state.groups[group.group_id]
        gone = hosted.offsets.forget(hosted.offsets.known)
        tombstones: list[LogRecord] = [OffsetRecord(group.group_id, partition, None) for partition in gone]
        self._write_tombstones(hosted, tombstones)
        if last:  # the log has no record of a group that only simple consumers used
            self._group_writes.put(group.group_id, lambda _: self._write_tombstones(hosted, last))

    def _write_tombstones(self, hosted: HostedGroup, tombstones: Sequence[LogRecord]) -> None:
        partition = self.runtime.partitions.get(hosted.partition)
        if partition is not None:
            self.writer.write_tombstones(partition, tombstones)


def _limits_of(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        max_metadata_bytes=config.group_max_metadata_bytes,
    )


class GroupWrites:
    """The writes of groups, those of one group in the order of its events.

    The snapshot of a group with very many members is encoded in steps before it is written; later writes of
    its group wait behind it.
    """

    def __init__(self, tasks: BackgroundTasks, budget: LoopBudget) -> None:
        self._tasks = tasks
        self._budget = budget
        self._behind: dict[str, list[_GroupWrite]] = {}
        """For each group whose snapshot is being encoded, the writes that wait for it."""

    def put(
        self,
        group_id: str,
        write: Callable[[bytes | None], None],
        snapshot: GroupSnapshot | None = None,
        *,
        stopped: Callable[[KafkaError], None] = lambda _: None,
    ) -> None:
        """Call `write` behind the earlier writes of the group; with the encoded `snapshot` if one is given.

        Where the coordinator stops before that, `stopped` is called instead.
        """
        behind = self._behind.get(group_id)
        if behind is not None:
            behind.append(_GroupWrite(write, snapshot, stopped))
        elif snapshot is None:
            write(None)
        else:
            self._encode(group_id, snapshot, write, stopped)

    def _encode(
        self,
        group_id: str,
        snapshot: GroupSnapshot,
        write: Callable[[bytes | None], None],
        stopped: Callable[[KafkaError], None],
    ) -> None:
        encoded: list[bytes] = []

        async def encode() -> None:
            encoded.append(await Turn(self._budget.member_answers).run(encode_in_steps(snapshot)))

        def ended(_: asyncio.Task[None]) -> None:
            behind = self._behind.pop(group_id)
            if not encoded:
                for end in (stopped, *(waiting.stopped for waiting in behind)):
                    end(CoordinatorNotAvailable())
                return
            write(encoded[0])
            for waiting in behind:
                self.put(group_id, waiting.write, waiting.snapshot, stopped=waiting.stopped)

        self._behind[group_id] = []
        self._tasks.spawn(encode(), "group-snapshot").add_done_callback(ended)


class _GroupWrite(NamedTuple):
    write: Callable[[bytes | None], None]
    snapshot: GroupSnapshot | None
    stopped: Callable[[KafkaError], None]


def _answer(reply: AnyReply) -> None:
    waiting = cast("asyncio.Future[Any]", reply.token)
    if not waiting.done():
        waiting.set_result(reply.result)


def _refuse(replies: Iterable[AnyReply], error: KafkaError) -> None:
    for reply in replies:
        waiting = cast("asyncio.Future[Any]", reply.token)
        if not waiting.done():
            waiting.set_exception(error)


class GroupMeters:
    """The meters of one coordinator, under Kafka's names; gauges count groups and offsets in `hosted`."""

    def __init__(self, metrics: Metrics, hosted: Iterable[HostedGroup]) -> None:
        kind = ("kafka.server", "group-coordinator-metrics")
        self.commits = metrics.meter(*kind, "offset-commit")
        self.expirations = metrics.meter(*kind, "offset-expiration")
        self.deletions = metrics.meter(*kind, "offset-deletion")
        self.rebalances = {
            kind_of_group: metrics.meter(*kind, name) for kind_of_group, name in _REBALANCES.items()
        }
        self.load_time = metrics.histogram(*kind, "partition-load-time")
        manager = ("kafka.coordinator.group", "GroupMetadataManager")
        metrics.gauge(*manager, "NumGroups", lambda: sum(1 for _ in hosted))
        metrics.gauge(
            *manager, "NumOffsets", lambda: sum(len(hosted_group.offsets) for hosted_group in hosted)
        )
        for state in GroupState:
            metrics.gauge(*manager, f"NumGroups{state.value}", partial(_count, hosted, state))
        for group_kind, states in _STATES.items():
            read = partial(_count_kind, hosted, group_kind)
            metrics.gauge(*kind, "group-count", read, protocol=group_kind.value)
            for name in states:
                read = partial(_count_kind, hosted, group_kind, name)
                metrics.gauge(*kind, f"{group_kind}-group-count", read, state=name)


_REBALANCES: Final = {
    GroupKind.CLASSIC: "group-completed-rebalance",
    GroupKind.CONSUMER: "consumer-group-rebalance",
    GroupKind.SHARE: "share-group-rebalance",
    GroupKind.STREAMS: "streams-group-rebalance",
}
_STATES: Final[Mapping[GroupKind, Sequence[str]]] = {
    GroupKind.CLASSIC: [state.value for state in GroupState],
    GroupKind.CONSUMER: ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    GroupKind.SHARE: ("Empty", "Stable", "Dead"),
    GroupKind.STREAMS: ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead"),
}
"""The states of the groups of each kind, which gauges count."""


def _count(hosted: Iterable[HostedGroup], state: GroupState) -> int:
    return sum(hosted_group.group.state is state for hosted_group in hosted)


def _count_kind(hosted: Iterable[HostedGroup], kind: GroupKind, state: str | None = None) -> int:
    groups = (hosted_group.group for hosted_group in hosted)
    return sum(group.kind is kind and (state is None or group.state.value == state) for group in groups)
