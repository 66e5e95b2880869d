"""Commit the offsets of a group, automatically or on request and in that order, and read them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded, Need, error_about
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer.errors import CommitFailed, NoSuchPartitions
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition, by_topic

NOTHING_COMMITTED = -1
VERSION_WITH_INSTANCES = 7
VERSION_WITH_STABLE = 7

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

log = logging.getLogger(__name__)

_COORDINATOR_MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
)
_NO_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH)
_REBALANCING = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
)


class _Rebalancing(ClientError):
    """The group rebalances; the commit is retried in the next generation."""

    retriable = True


class Commits:
    """Commits and reads the offsets of one group.

    `committer` returns the member to commit for, or None if the group continues without this consumer.
    `keeps` returns whether partitions stay assigned during a rebalance: their commit then waits for the next
    generation. Commits are sent one after the other, in the order of the calls.
    """

    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        committer: Callable[[], GroupMetadata | None],
        *,
        keeps: Callable[[Iterable[TopicPartition]], bool] = lambda _: False,
        on_commit: Callable[[Offsets], None] | None = None,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self.group_id = group_id
        self._cluster = cluster
        # Not the connection that members join on: commits must not wait for other members to join.
        self._coordinator = CoordinatorConnection(cluster, group_id)
        self._committer = committer
        self._keeps = keeps
        self._on_commit = on_commit
        self._metrics = metrics or ConsumerMetrics()
        self._fifo = Fifo()
        self._unawaited: set[asyncio.Task[None]] = set()

    async def commit(self, offsets: Offsets, *, timeout_s: float | None = None) -> None:
        """Store offsets, with retries. Offsets of some partitions are stored even if those of others fail.

        Raises CommitFailed when the group assigned the partitions to others, NoSuchPartitions at once for
        those that do not exist, KafkaError for other refusals, and DeadlineExceeded after
        `default_api_timeout_ms`.
        """
        await self._commit(self._committer(), offsets, self._fifo.take(), timeout_s)

    def commit_nowait(self, offsets: Offsets, tasks: asyncio.TaskGroup) -> asyncio.Future[None]:
        """Store offsets without waiting; the future has the result, and need not be awaited."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Both are taken now, not when the task starts.
        committer, ticket = self._committer(), self._fifo.take()

        async def commit() -> None:
            try:
                await self._commit(committer, offsets, ticket)
            except Exception as error:  # it is reported through the future
                extra = {"group": self.group_id, "reason": str(error)}
                log.warning("offsets were not committed", extra=extra)
                _fail(done, error)
            else:
                if not done.done():
                    done.set_result(None)

        def over(task: asyncio.Task[None]) -> None:
            self._unawaited.discard(task)
            ticket.release()  # a task that is cancelled early never entered it
            done.cancel()

        task = tasks.create_task(commit())
        self._unawaited.add(task)
        task.add_done_callback(over)
        return done

    async def settle(self, timeout_s: float) -> None:
        """Wait for outstanding commits, within a timeout: after the member left they would fail."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._fifo.take():
                return

    async def _commit(
        self,
        committer: GroupMetadata | None,
        offsets: Offsets,
        ticket: Ticket,
        timeout_s: float | None = None,
    ) -> None:
        left = dict(offsets)
        try:
            async with asyncio.timeout(timeout_s), ticket:
                # Offsets of one generation must not be stored for a later one.
                if not offsets:
                    return
                if committer is None:
                    raise CommitFailed(_OUT_OF_GROUP)
                await self._store(committer, left)
        except TimeoutError as error:  # of this timeout: outer ones arrive as a cancellation
            self._metrics.commit_error_total += 1
            raise DeadlineExceeded(self._what, timeout_s or 0, error) from error
        except (ClientError, KafkaError):
            self._metrics.commit_error_total += 1
            raise
        finally:
            stored = {partition: offset for partition, offset in offsets.items() if partition not in left}
            if stored and self._on_commit is not None:
                self._on_commit(stored)

    @property
    def _what(self) -> str:
        return f"committing offsets of group {self.group_id!r}"

    async def _store(self, committer: GroupMetadata, left: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Store offsets, and remove the stored ones from `left`."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        member = committer

        async def ask() -> None:
            nonlocal member
            try:
                await self._send(member, left)
            except _Rebalancing as error:
                member = self._successor(member, left, error)
                raise

        await self._cluster.retry(self._what, ask)
        self._metrics.committed((loop.time() - since_s) * 1_000)

    async def _send(self, committer: GroupMetadata, left: dict[TopicPartition, OffsetAndMetadata]) -> None:
        request = _commit_request(committer, left)
        min_version = VERSION_WITH_INSTANCES if committer.group_instance_id is not None else None
        answer = await self._coordinator.send(request, OffsetCommitResponse, min_version=min_version)
        failed = {
            TopicPartition(topic.name, stored.partition_index): stored.error_code
            for topic in answer.topics
            for stored in topic.partitions
            if stored.error_code != ErrorCode.NONE
        }
        for partition in left.keys() - failed.keys():
            del left[partition]
        self._raise_commit_errors(failed)

    def _successor(self, committer: GroupMetadata, offsets: Offsets, error: _Rebalancing) -> GroupMetadata:
        """Return the member of the next generation, if the partitions were kept all the time."""
        now = self._committer()
        if now is None or now.member_id != committer.member_id or not self._keeps(offsets):
            raise CommitFailed(f"{_OUT_OF_GROUP} ({error})") from error
        return now

    async def committed(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets; partitions without one are left out.

        With `require_stable` it waits for open transactions with pending commits (KIP-447), if the broker
        supports that.
        """
        topics = [
            OffsetFetchRequestTopic(
                name=topic, partition_indexes=[partition.partition for partition in found]
            )
            for topic, found in by_topic(partitions).items()
        ]
        if not topics:
            return {}

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            can = (
                require_stable and await self._coordinator.version(OffsetFetchRequest) >= VERSION_WITH_STABLE
            )
            request = OffsetFetchRequest(group_id=self.group_id, topics=topics, require_stable=can)
            answer = await self._coordinator.send(request, OffsetFetchResponse)
            self._raise_error(answer.error_code)
            return self._read(answer)

        return await self._cluster.retry(f"reading the offsets of group {self.group_id!r}", ask)

    async def close(self) -> None:
        """Close the connection, and cancel commits that are not awaited."""
        for task in self._unawaited:
            task.cancel()
        await self._coordinator.close()

    def _read(self, answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                self._raise_error(partition.error_code)
                if partition.committed_offset != NOTHING_COMMITTED:
                    found[TopicPartition(topic.name, partition.partition_index)] = OffsetAndMetadata(
                        partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                    )
        return found

    def _raise_commit_errors(self, failed: Mapping[TopicPartition, int]) -> None:
        """Raise an error. Missing partitions are raised last, as a retry may help the others."""
        unknown = [
            partition for partition, code in failed.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        for partition, code in failed.items():
            if partition not in unknown:
                self._raise_commit_error(partition, code)
        if unknown:
            raise NoSuchPartitions(unknown)

    def _raise_commit_error(self, partition: TopicPartition, code: int) -> None:
        if code in _NO_MEMBER:
            raise CommitFailed(f"{_OUT_OF_GROUP} ({ErrorCode(code).name} for {partition})")
        if code in _REBALANCING:
            raise _Rebalancing(f"{ErrorCode(code).name} for {partition}")
        self._raise_error(code, f"offsets of {partition} were not committed", partition.topic)

    def _raise_error(self, code: int, message: str | None = None, topic: str | None = None) -> None:
        if code == ErrorCode.NONE:
            return
        if code in _COORDINATOR_MOVED:
            self._coordinator.forget()
        needs = [Need(Operation.READ, ResourceType.GROUP, self._coordinator.group_id)]
        if topic is not None:
            needs.append(Need(Operation.READ, ResourceType.TOPIC, topic))
        raise error_about(code, message, *needs)


class AutoCommit:
    """Commits finished offsets at an interval, and on request.

    Only changed offsets are sent. Errors are logged, as no caller waits; the next commit repeats them.
    """

    def __init__(
        self,
        commits: Commits,
        finished: Callable[[], dict[TopicPartition, OffsetAndMetadata]],
        interval_ms: float,
    ) -> None:
        self._commits = commits
        self._finished = finished
        self._interval_s = interval_ms / 1_000
        self._stored: dict[TopicPartition, OffsetAndMetadata] = {}

    async def run(self) -> None:
        """Commit at the interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.commit()

    async def commit(
        self, partitions: frozenset[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit finished offsets of all partitions or some; errors are logged."""
        finished = self._finished()
        changed = {
            partition: offset
            for partition, offset in finished.items()
            if (partitions is None or partition in partitions) and self._stored.get(partition) != offset
        }
        try:
            await self._commits.commit(changed, timeout_s=timeout_s)
        except (ClientError, KafkaError) as error:
            extra = {"group": self._commits.group_id, "reason": str(error)}
            log.warning("finished offsets were not committed", extra=extra)
        else:
            self._stored |= changed

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget committed offsets: other members may commit for these partitions now."""
        for partition in partitions:
            self._stored.pop(partition, None)


_OUT_OF_GROUP = (
    "the group continued without this consumer, and its partitions may be assigned to others: it was not "
    "polled for longer than max_poll_interval_ms, or its heartbeats did not arrive for session_timeout_ms. "
    "Records that were not committed are read again. Handle fewer records between two calls "
    "(max_poll_records), or raise these limits"
)


def _commit_request(committer: GroupMetadata, offsets: Offsets) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=committer.group_id,
        generation_id_or_member_epoch=committer.generation_id,
        member_id=committer.member_id,
        group_instance_id=committer.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    _commit_partition(partition.partition, offsets[partition]) for partition in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def _commit_partition(index: int, offset: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def _fail(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # retrieved: it was logged


class Ticket:
    """A position in the queue: entering it waits until all earlier tickets were released."""

    def __init__(self, before: asyncio.Future[None] | None, released: asyncio.Future[None]) -> None:
        self._before = before
        self._released = released

    async def __aenter__(self) -> Self:
        try:
            if self._before is not None and not self._before.done():
                await asyncio.wait([self._before])
        except BaseException:
            self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Admit the next ticket, once all earlier ones were released. Idempotent."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.release())
        elif not self._released.done():
            self._released.set_result(None)


class Fifo:
    """A queue of operations: a ticket is taken when one is requested, and entered when it is awaited."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    def take(self) -> Ticket:
        """Return the next ticket. The caller must enter or release it."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = Ticket(self._last, released)
        self._last = released
        return ticket
