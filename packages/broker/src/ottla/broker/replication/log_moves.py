"""Moves of replicas to other log directories of this broker (KIP-113): copy, catch up, take the place."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.broker.log.state.leader_epochs import UNDEFINED
from ottla.protocol.errors import KafkaError, KafkaStorageError, ReplicaNotAvailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.log.log import Log
    from ottla.broker.quotas.replication import ReplicationQuota
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.replication.replicas import Replicas
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

COPIED_BYTES: Final = 1 << 20
"""How much one step copies."""
PAUSE_S: Final = 0.1
"""Between attempts while no move can go on: a role is missing, a log is being truncated."""
FAILED_PAUSE_S: Final = 5.0


class LogMoves:
    """Moves replicas, a step of each in turn, as one task.

    A copy follows its log as a follower follows its leader: by leader epochs (KIP-279), so that a truncation
    of the log, also one that happened before a restart, truncates the copy.
    """

    def __init__(
        self,
        logs: LogRegistry,
        replicas: Replicas,
        now_ms: Callable[[], int],
        quota: ReplicationQuota | None = None,
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._now_ms = now_ms
        self._quota = quota
        self._begun = asyncio.Event()

    def move(self, topic_partition: TopicPartition, path: str) -> None:
        """Begin to move a replica into the log directory `path`; the directory that it is in ends a move.

        A partition that is not here yet will be created there. Raises `LogDirNotFound`, `KafkaStorageError`,
        `InvalidTopicException`, and `ReplicaNotAvailable` when it is not here.
        """
        target = self._logs.log_directories.named(path)
        if self._replicas.is_offline(topic_partition):
            raise KafkaStorageError(f"the log directory of {topic_partition} is offline")
        partition = self._replicas.hosted(topic_partition)
        if partition is None:
            self._logs.log_directories.prefer(topic_partition, target)
            raise ReplicaNotAvailable(f"{topic_partition} is not here")
        copy = self._logs.futures.get(topic_partition)
        if copy is not None and copy.directory.parent == target.path:
            return
        self._logs.futures.drop(topic_partition)
        if partition.log.directory.parent != target.path:
            self._logs.create_future(partition.log, target)
            self._begun.set()

    async def run(self) -> None:
        """Carry out the moves until cancelled; those that the last life of the broker began, too."""
        while True:
            self._begun.clear()
            steps = [await self._retire(partition) for partition in self._logs.futures.replaced]
            steps += [await self._step(topic_partition, copy) for topic_partition, copy in self._logs.futures]
            if not steps:
                await self._begun.wait()
            elif not any(steps):
                await asyncio.sleep(PAUSE_S)

    async def _retire(self, topic_partition: TopicPartition) -> bool:
        """Delete the log that a moved replica has left; return whether that is done."""
        try:
            await self._logs.futures.retire(topic_partition)
        except (KafkaError, OSError) as error:
            facts = {"partition": str(topic_partition), "reason": str(error)}
            log.warning("log that a moved replica left not deleted, repeated", extra=facts)
            await asyncio.sleep(FAILED_PAUSE_S)
            return False
        return True

    async def _step(self, topic_partition: TopicPartition, copy: Log) -> bool:
        """Bring one move a step forward; return whether another step may follow at once."""
        partition, futures = self._replicas.hosted(topic_partition), self._logs.futures
        if partition is None or futures.get(topic_partition) is not copy or not _rests(partition):
            return False
        if topic_partition in futures.replaced:
            return False  # the log of the move before may still have the name that this copy is to get
        if self._quota is not None and self._quota.is_exceeded:
            return False
        try:
            if is_close(copy, partition.log):
                return await self._finish(partition, copy)
            return await self._follow(partition, copy)
        except (KafkaError, OSError) as error:
            facts = {"partition": str(topic_partition), "reason": str(error)}
            log.warning("move of a replica failed, repeated", extra=facts)
            await asyncio.sleep(FAILED_PAUSE_S)
            return False

    async def _follow(self, partition: HostedPartition, copy: Log) -> bool:
        current = partition.log
        common = common_end(copy, current)
        if common < copy.log_end_offset and self._logs.futures.is_named(copy):
            self._begin_anew(copy, current)
            return True
        if copy.log_end_offset < current.log_start_offset or common < copy.log_start_offset:
            await copy.truncation.run_on_thread(copy.truncation.begin_restart(current.log_start_offset))
            return True
        if common < copy.log_end_offset:
            await copy.truncation.run_on_thread(copy.truncation.begin(common))
            return True
        records = current.read(copy.log_end_offset, COPIED_BYTES, up_to=current.log_end_offset)
        batches = await asyncio.to_thread(records.read)
        if not batches or not self._is_prefix(partition, copy):
            return False
        self._append(copy, batches)
        return True

    def _begin_anew(self, copy: Log, current: Log) -> None:
        """Copy once more: a thread that cut a named copy could meet a new log under the name.

        The partition may be deleted, and created here, while the thread works.
        """
        directory = self._logs.log_directories.of(copy)
        self._logs.futures.drop(copy.topic_partition)
        self._logs.create_future(current, directory)

    def _is_prefix(self, partition: HostedPartition, copy: Log) -> bool:
        """Whether a copy still goes on in its log: neither was dropped, truncated or replaced meanwhile."""
        is_copy = self._logs.futures.get(partition.topic_partition) is copy
        return is_copy and _rests(partition) and common_end(copy, partition.log) == copy.log_end_offset

    async def _finish(self, partition: HostedPartition, copy: Log) -> bool:
        if not self._logs.futures.is_named(copy):
            await self._logs.futures.give_name(copy)
        if not self._is_prefix(partition, copy) or not self._catch_up(partition.log, copy):
            return True
        older = partition.log
        self._logs.exchange(copy, older)
        self._replicas.log_moved(partition, copy)
        log.info(
            "replica moved",
            extra={
                "partition": str(partition.topic_partition),
                "from_directory": str(older.directory),
                "to_directory": str(copy.directory),
            },
        )
        return True

    def _catch_up(self, current: Log, copy: Log) -> bool:
        """Copy what was appended meanwhile, at once; return False where that is too much."""
        left = COPIED_BYTES
        while copy.log_end_offset < current.log_end_offset and left > 0:
            batches = current.read(copy.log_end_offset, left, up_to=current.log_end_offset).read()
            if not batches:
                return False
            self._append(copy, batches)
            left -= len(batches)
        return copy.log_end_offset == current.log_end_offset

    def _append(self, copy: Log, batches: bytes) -> None:
        copy.append_as_follower(batches, self._now_ms())
        if self._quota is not None:
            self._quota.record(len(batches))


def _rests(partition: HostedPartition) -> bool:
    """Whether no thread changes the segments of a partition's log."""
    current = partition.log
    return current.offline is None and not current.is_truncating and current.segments.replacing is None


def is_close(copy: Log, current: Log) -> bool:
    """Whether a copy holds the same records up to its end, and lacks few of those behind it."""
    if not current.log_start_offset <= copy.log_end_offset == common_end(copy, current):
        return False
    rest = current.read(copy.log_end_offset, COPIED_BYTES, up_to=current.log_end_offset)
    log_end = current.log_end
    return rest.file is log_end.segment.file and log_end.position - rest.position <= COPIED_BYTES


def common_end(copy: Log, current: Log) -> int:
    """The offset below which a copy and its log may hold the same records; asked again after a truncation."""
    epoch, end = copy.leader_epochs.latest, copy.log_end_offset
    if epoch == UNDEFINED:
        return min(end, current.log_end_offset)
    found, found_end = current.leader_epochs.end_offset_for(epoch, current.log_end_offset)
    if found == UNDEFINED:  # of a later epoch than all of the log's, which was truncated
        found, found_end = current.leader_epochs.latest, current.log_end_offset
    if found != UNDEFINED and found < epoch:
        end = min(end, copy.leader_epochs.end_offset_for(found, end)[1])
    return max(0, min(end, found_end))
