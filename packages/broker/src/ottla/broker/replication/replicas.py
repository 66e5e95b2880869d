"""The partitions this broker hosts: logs, roles, high watermarks and the waits on them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.replication.full_directories import FullDirectories
from ottla.broker.replication.high_watermark_checkpoints import HighWatermarkCheckpoints, read_high_watermarks
from ottla.broker.replication.hosted_partition import (
    FollowerFetching,
    HostedPartition,
    LeadershipListener,
    NoFollowers,
)
from ottla.broker.replication.leader_and_isr_requests import (
    assignments_of,
    leader_and_isr_response,
    stop_replica_response,
    stops_of,
)
from ottla.broker.replication.partition import Assignment, IsrChanged, IsrProposed, Partition, Role
from ottla.broker.replication.replication_metrics import PartitionGauges
from ottla.protocol.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    StaleControllerEpoch,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.control_requests import LeaderAndIsrResponse, StopReplicaResponse
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.config import BrokerConfig, LogConfig
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.log.log import Log
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.messages.control_requests import LeaderAndIsrRequest, StopReplicaRequest

__all__ = ["FollowerFetching", "HostedPartition", "LeadershipListener", "NoFollowers", "Replicas"]

log = logging.getLogger("state-change")

DELETE_EPOCH: Final = -2
"""The leader epoch of a StopReplica that comes from a topic's deletion: newer than any."""
NO_EPOCH: Final = -1
NAMED_ROLES: Final = 50
"""Roles of one request up to which each has a line in the log; further ones only with log level DEBUG."""


class Replicas:
    """All partitions hosted here. Runs on the event loop; blocks no longer than it takes to create a file."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        logs: LogRegistry,
        log_config: Callable[[str], LogConfig],
        metrics: Metrics | None = None,
        propose_isr: Callable[[TopicPartition, IsrProposed], None] | None = None,
        followers: FollowerFetching | None = None,
        is_known: Callable[[TopicPartition], bool] = lambda _: False,
        is_alive: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """Host nothing yet.

        `log_config` gives the configuration of a topic's logs by its name. `propose_isr` asks the controller
        for an ISR; its outcome comes back through the methods `isr_…`. `is_known` says whether a partition
        exists somewhere in the cluster, `is_alive` whether a broker is registered.
        """
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        """The epoch of this broker's registration; requests with an earlier one are rejected."""
        self.controller_epoch = 0
        self._config = config
        self._clock = environment.clock
        self._budget = environment.budget
        self._logs = logs
        self._log_config = log_config
        self._propose_isr = propose_isr or (lambda _partition, _proposal: None)
        self._followers: FollowerFetching = followers or NoFollowers()
        self._is_known = is_known
        self._hosted: dict[TopicPartition, HostedPartition] = {}
        self._offline: set[TopicPartition] = set()
        self.full_directories = FullDirectories(broker_id, is_alive)
        self._listeners: list[LeadershipListener] = []
        self._saved: dict[TopicPartition, int] = {}
        self._checkpoints = HighWatermarkCheckpoints(logs.files)
        self._one_at_a_time = asyncio.Lock()
        self._gauges = PartitionGauges(metrics)
        self._measure(metrics)

    def _measure(self, metrics: Metrics | None) -> None:
        if metrics is None:
            return
        kind = ("kafka.server", "ReplicaManager")
        metrics.gauge(*kind, "PartitionCount", lambda: len(self._hosted))
        metrics.gauge(*kind, "LeaderCount", lambda: sum(1 for _ in self.leaders()))
        metrics.gauge(*kind, "OfflineReplicaCount", lambda: len(self._offline))
        for name, counted in (
            ("UnderReplicatedPartitions", "is_under_replicated"),
            ("UnderMinIsrPartitionCount", "is_under_min_isr"),
            ("AtMinIsrPartitionCount", "is_at_min_isr"),
            ("ReassigningPartitions", "is_reassigning"),
        ):
            metrics.gauge(*kind, name, partial(self._count_led, attrgetter(counted)))
        self._shrinks = metrics.meter(*kind, "IsrShrinksPerSec")
        self._expands = metrics.meter(*kind, "IsrExpandsPerSec")

    # ---- finding partitions

    def leader(self, topic_partition: TopicPartition, current_leader_epoch: int = -1) -> HostedPartition:
        """Return the partition if it is led here.

        Raises `UnknownTopicOrPartition`, `NotLeaderOrFollower`, `KafkaStorageError`, and
        `FencedLeaderEpoch` or `UnknownLeaderEpoch` when the caller's epoch is another one.
        """
        found = self._hosted.get(topic_partition)
        if found is None:
            raise self._why_not_hosted(topic_partition)
        if current_leader_epoch != NO_EPOCH:
            check_epoch(current_leader_epoch, found.leader_epoch)
        if not found.leads:
            raise NotLeaderOrFollower
        return found

    def _why_not_hosted(self, topic_partition: TopicPartition) -> KafkaError:
        if topic_partition in self._offline:
            return KafkaStorageError(f"the log directory of {topic_partition} is offline")
        if self._is_known(topic_partition):
            return NotLeaderOrFollower()
        return UnknownTopicOrPartition()

    def hosted(self, topic_partition: TopicPartition) -> HostedPartition | None:
        """Return a partition hosted here in any role, or None."""
        return self._hosted.get(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition that was hosted here is in a log directory that failed."""
        return topic_partition in self._offline

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._hosted.values()))

    def _count_led(self, counts: Callable[[Partition], bool]) -> int:
        return sum(counts(partition.core) for partition in self.leaders())

    def leaders(self) -> Iterator[HostedPartition]:
        """Iterate over all partitions led here."""
        return (partition for partition in list(self._hosted.values()) if partition.leads)

    def subscribe(self, listener: LeadershipListener) -> None:
        """Call `listener` at changes of leadership from now on."""
        self._listeners.append(listener)

    # ---- roles

    async def load(self) -> None:
        """Read the checkpointed high watermarks; call it once, after the logs were opened."""
        self._saved = await asyncio.to_thread(
            read_high_watermarks, self._logs.files, self._logs.directories()
        )

    def is_stale_controller(self, controller_epoch: int) -> bool:
        """Return whether a request is from a replaced controller; remember the newest epoch."""
        if controller_epoch < self.controller_epoch:
            return True
        self.controller_epoch = controller_epoch
        return False

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Take the roles a controller assigned; reject assignments older than the known ones."""
        refused = self._refuse(request.controller_epoch, request.broker_epoch)
        if refused is not None:
            return LeaderAndIsrResponse(error_code=int(refused))
        assigned = assignments_of(request)
        return leader_and_isr_response(assigned, await self.apply(assigned))

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting partitions, and delete their logs where asked to."""
        refused = self._refuse(request.controller_epoch, request.broker_epoch)
        if refused is not None:
            return StopReplicaResponse(error_code=int(refused))
        return stop_replica_response(await self.stop(stops_of(request)))

    def _refuse(self, controller_epoch: int, broker_epoch: int) -> ErrorCode | None:
        if broker_epoch != NO_EPOCH and broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if self.is_stale_controller(controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return None

    async def apply(
        self, assignments: Sequence[tuple[TopicPartition, UUID | None, Assignment]]
    ) -> dict[TopicPartition, ErrorCode]:
        """Take roles, one call after another, creating missing logs; return each partition's error code."""
        async with self._one_at_a_time:
            answers: dict[TopicPartition, ErrorCode] = {}
            await self._logs.make_way(role[0] for role in assignments)
            turn, known = self._budget.turn(), 0
            level = logging.INFO if len(assignments) <= NAMED_ROLES else logging.DEBUG
            for topic_partition, topic_id, assignment in assignments:
                await turn.yield_if_spent()
                await self._truncated(topic_partition)
                try:
                    self._apply_one(topic_partition, topic_id, assignment)
                    self._note_role(topic_partition, assignment, level)
                    answers[topic_partition] = ErrorCode.NONE
                except StaleControllerEpoch:
                    answers[topic_partition] = ErrorCode.STALE_CONTROLLER_EPOCH
                    known += 1
                except KafkaError as error:
                    facts = {"partition": str(topic_partition), "error": error.code.name}
                    log.warning("partition keeps its role", extra=facts)
                    answers[topic_partition] = error.code
                except OSError:
                    facts = {"partition": str(topic_partition)}
                    log.exception("partition offline: log not made", extra=facts)
                    self._offline.add(topic_partition)
                    answers[topic_partition] = ErrorCode.KAFKA_STORAGE_ERROR
                answers[topic_partition] = self.full_directories.answer(
                    topic_partition, self._hosted.get(topic_partition), assignment, answers[topic_partition]
                )
            if known or level == logging.DEBUG:
                # A new controller repeats all roles: most are known, and none of them is worth a line.
                log.info("roles taken", extra={"roles": len(assignments), "known_before": known})
            return answers

    async def _truncated(self, topic_partition: TopicPartition) -> None:
        """Wait while a thread changes the segments: a new role or a deletion starts from the log after it."""
        partition = self._hosted.get(topic_partition)
        found = self._logs.get(topic_partition) if partition is None else partition.log
        if found is not None and (found.is_truncating or found.segments.replacing is not None):
            await found.truncation.idle()

    def _note_role(self, topic_partition: TopicPartition, assignment: Assignment, level: int) -> None:
        facts = {"partition": str(topic_partition), "leader_epoch": assignment.leader_epoch}
        if assignment.leader == self.broker_id:
            log.log(level, "partition led here", extra=facts)
        else:
            log.log(level, "partition followed", extra=facts | {"leader": assignment.leader})

    def _apply_one(
        self, topic_partition: TopicPartition, topic_id: UUID | None, assignment: Assignment
    ) -> None:
        partition = self._hosted.get(topic_partition)
        self._check(partition, topic_id, assignment)
        if partition is None:
            partition = self._host(topic_partition, topic_id, assignment.is_new)
        led_before = partition.leads
        if assignment.leader == self.broker_id:
            self._followers.unfollow(topic_partition)
            partition.lead(assignment, self._clock.now_ms())
            self._tell(elected=[(topic_partition, assignment.leader_epoch)])
        else:
            partition.follow(assignment)
            self._copy_or_rest(partition)
            if led_before:
                self._tell(resigned=[(topic_partition, assignment.leader_epoch)])

    def _copy_or_rest(self, partition: HostedPartition) -> None:
        """Copy a partition that is followed, unless its disk is full."""
        if self.full_directories.holds(partition.log):
            self._followers.unfollow(partition.topic_partition)
        else:
            self._followers.follow(partition, partition.core.leader)

    def _check(self, partition: HostedPartition | None, topic_id: UUID | None, new: Assignment) -> None:
        if self.broker_id not in new.replicas:
            raise UnknownTopicOrPartition
        if partition is None:
            return
        known_id = partition.log.topic_id
        if topic_id and known_id and topic_id != known_id:
            raise InconsistentTopicId
        if not partition.core.accepts(new):
            # A leader that lost an answer of the controller learns the committed ISR from its successor.
            self.isr_read(partition.topic_partition, new.leader_epoch, new.isr, new.partition_epoch)
            raise StaleControllerEpoch

    def _host(self, topic_partition: TopicPartition, topic_id: UUID | None, is_new: bool) -> HostedPartition:
        found = self._logs.get(topic_partition)
        if found is not None and topic_id and found.topic_id and topic_id != found.topic_id:
            if not is_new:
                raise InconsistentTopicId
            # A topic of this name was deleted while this broker did not receive StopReplica.
            self._logs.mark_stray(topic_partition)
            found = None
        if found is None:
            found = self._logs.create(
                topic_partition, topic_id, self._log_config(topic_partition.topic), is_new=is_new
            )
        core = Partition(
            self.broker_id,
            min_insync_replicas=found.config.min_insync_replicas,
            max_lag_ms=self._config.replica_lag_time_max_ms,
            watermark=found.watermark,
        )
        start = found.log_start_offset
        core.restored(self._saved.pop(topic_partition, start), start, found.log_end_offset)
        partition = HostedPartition(
            topic_partition, found, core, propose_isr=self._propose_isr, isr_changed=self._count_isr_change
        )
        self._hosted[topic_partition] = partition
        self._gauges.add(partition)
        self._offline.discard(topic_partition)
        return partition

    def _count_isr_change(self, change: IsrChanged) -> None:
        (self._shrinks if change.shrunk else self._expands).mark()

    def _tell(
        self,
        *,
        elected: Sequence[tuple[TopicPartition, int]] = (),
        resigned: Sequence[tuple[TopicPartition, int]] = (),
    ) -> None:
        """Call the listeners; between a change of role and this call nothing may be awaited."""
        for listener in self._listeners:
            listener.leadership_changed(elected, resigned)

    async def stop(
        self, partitions: Sequence[tuple[TopicPartition, int, bool]]
    ) -> dict[TopicPartition, ErrorCode]:
        """Stop hosting partitions, given as (partition, leader epoch, whether to delete its log)."""
        async with self._one_at_a_time:
            answers: dict[TopicPartition, ErrorCode] = {}
            turn = self._budget.turn()
            for topic_partition, leader_epoch, delete in partitions:
                await turn.yield_if_spent()
                await self._truncated(topic_partition)
                try:
                    answers[topic_partition] = self._stop_one(topic_partition, leader_epoch, delete)
                except KafkaError as error:
                    facts = {"partition": str(topic_partition), "reason": str(error)}
                    log.warning("partition not stopped", extra=facts)
                    answers[topic_partition] = error.code
            return answers

    def _stop_one(self, topic_partition: TopicPartition, leader_epoch: int, delete: bool) -> ErrorCode:
        partition = self._hosted.get(topic_partition)
        if topic_partition in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if partition is not None:
            if leader_epoch not in (DELETE_EPOCH, NO_EPOCH) and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            # One that was given up for want of room may be assigned again in the same epoch.
            rests = (
                partition.core.role is Role.FOLLOWER
                and self.full_directories.holds(partition.log)
                and not delete
            )
            if not rests:
                self._resign(partition)
        if delete:
            self._hosted.pop(topic_partition, None)
            self._gauges.remove(topic_partition)
            self._saved.pop(topic_partition, None)
            self.full_directories.forget(topic_partition)
            if self._logs.get(topic_partition) is not None:
                self._logs.delete(topic_partition)
        log.info("partition stopped", extra={"partition": str(topic_partition), "deleted": delete})
        return ErrorCode.NONE

    def _resign(self, partition: HostedPartition) -> None:
        led_before = partition.leads
        self._followers.unfollow(partition.topic_partition)
        partition.stop()
        if led_before:
            self._tell(resigned=[(partition.topic_partition, partition.leader_epoch)])

    def directory_failed(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Stop serving these partitions: their log directory has failed."""
        for topic_partition in topic_partitions:
            partition = self._hosted.pop(topic_partition, None)
            self.full_directories.forget(topic_partition)
            self._gauges.remove(topic_partition)
            self._offline.add(topic_partition)
            if partition is not None:
                self._resign(partition)

    async def copy_where_room_is(self, directory: Path) -> None:
        """Copy no more into a directory that is full, and go on once it has room."""
        name = str(directory)
        async for partition in self._budget.turn().over(list(self)):
            if partition.core.role is Role.FOLLOWER and os.path.dirname(partition.log.directory) == name:
                self._copy_or_rest(partition)

    async def has_news_of_room(self) -> bool:
        """Return whether the controller would get other answers now, as a directory is full or has room."""
        return await self._budget.turn().run(self.full_directories.is_due(self._hosted))

    def log_moved(self, partition: HostedPartition, log: Log) -> None:
        """Go on with a log that holds the same records in another directory, and copy where that has room."""
        was_full = self.full_directories.holds(partition.log)
        partition.replace_log(log)
        if partition.core.role is Role.FOLLOWER and self.full_directories.holds(log) != was_full:
            self._copy_or_rest(partition)

    # ---- in-sync replicas

    def shrink_isrs(self) -> None:
        """Propose ISRs without lagging followers; call it every half `replica.lag.time.max.ms`."""
        now_ms = self._clock.now_ms()
        for partition in self.leaders():
            if not self.full_directories.keeps_isr(partition):
                partition.perform(partition.core.shrink(now_ms))

    def isr_answered(
        self, topic_partition: TopicPartition, token: int, isr: Sequence[int], partition_epoch: int
    ) -> None:
        """The controller confirmed a proposed ISR."""
        partition = self._hosted.get(topic_partition)
        if partition is not None:
            partition.perform(partition.core.isr_answered(token, isr, partition_epoch, self._clock.now_ms()))

    def isr_read(
        self, topic_partition: TopicPartition, leader_epoch: int, isr: Sequence[int], partition_epoch: int
    ) -> None:
        """The committed state of a partition was read."""
        partition = self._hosted.get(topic_partition)
        if partition is not None:
            core = partition.core
            partition.perform(core.isr_read(leader_epoch, isr, partition_epoch, self._clock.now_ms()))

    def isr_refused(self, topic_partition: TopicPartition, token: int) -> None:
        """The controller refused a proposed ISR for good, and no copy of it is in flight."""
        partition = self._hosted.get(topic_partition)
        if partition is not None:
            partition.perform(partition.core.isr_refused(token, self._clock.now_ms()))

    def isr_retracted(self, topic_partition: TopicPartition, token: int) -> None:
        """The controller refused a proposed ISR of which copies may be in flight."""
        partition = self._hosted.get(topic_partition)
        if partition is not None:
            partition.perform(partition.core.isr_retracted(token))

    def still_proposed(self, proposals: Iterable[tuple[TopicPartition, int]]) -> list[TopicPartition]:
        """Return the partitions whose pending proposal has the token given with them."""
        return [
            topic_partition
            for topic_partition, token in proposals
            if (partition := self._hosted.get(topic_partition)) is not None
            and partition.core.proposal is not None
            and partition.core.proposal.token == token
        ]

    # ---- high watermarks

    def high_watermarks(self) -> dict[Path, dict[TopicPartition, int]]:
        """Return the high watermarks to checkpoint by log directory, empty directories included."""
        by_directory: dict[Path, dict[TopicPartition, int]] = {
            directory: {} for directory in self._logs.directories()
        }
        # By name: the hash of a new path costs more than all else, and there are thousands of partitions.
        by_name = {str(directory): offsets for directory, offsets in by_directory.items()}
        for topic_partition, partition in self._hosted.items():
            offsets = by_name.get(os.path.dirname(partition.log.directory))
            if offsets is not None:
                offsets[topic_partition] = partition.core.watermark.offset
        for topic_partition, high_watermark in self._saved.items():
            found = self._logs.get(topic_partition)
            offsets = by_name.get(os.path.dirname(found.directory)) if found is not None else None
            if offsets is not None:
                offsets[topic_partition] = high_watermark
        return by_directory

    async def checkpoint_high_watermarks(self) -> None:
        """Write every directory's `replication-offset-checkpoint`, on a thread."""
        try:
            checkpoints = self._checkpoints
            await asyncio.to_thread(checkpoints.write, checkpoints.begin(), self.high_watermarks())
        except OSError as error:
            # The checkpoint on the disk has lower ones, which is safe.
            log.warning("high watermarks not written", extra={"reason": str(error)})


def check_epoch(current_leader_epoch: int, leader_epoch: int) -> None:
    """Raise unless a client's leader epoch is the current one (KIP-320)."""
    if current_leader_epoch < leader_epoch:
        raise FencedLeaderEpoch
    if current_leader_epoch > leader_epoch:
        raise UnknownLeaderEpoch
