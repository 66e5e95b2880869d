"""Offsets of a group: committing them and reading them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ottla.client.admin.offsets import by_topic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer.errors import CommitFailed, NoSuchPartitions
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.fifo import Fifo, Ticket
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
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
from ottla.protocol.topics import TopicPartition

NOTHING_COMMITTED = -1
VERSION_WITH_INSTANCES = 7
VERSION_WITH_STABLE = 7

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

log = logging.getLogger(__name__)

_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT)
_STALE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)
_IN_BETWEEN = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)


class _Rebalancing(ClientError):
    """The group is between two generations."""

    retriable = True


class Commits:
    """Commits and reads the offsets of one group.

    `committer` says for which member; it gives None while there should be one and is not, because the group
    went on without this consumer. `keeps` says whether partitions stay the consumer's while the group
    rebalances: a commit for such waits for the next generation and goes on in its name. Commits are done one
    after the other, in the order of the calls.
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
        # Not the coordinator that members join on: commits shall not wait for others to join.
        self._coordinator = CoordinatorConnection(cluster, group_id)
        self._committer = committer
        self._keeps = keeps
        self._on_commit = on_commit
        self._metrics = metrics or ConsumerMetrics()
        self._fifo = Fifo()
        self._unawaited: set[asyncio.Task[None]] = set()

    async def commit(self, offsets: Offsets, *, timeout_s: float | None = None) -> None:
        """Store offsets, trying again while that may help. What can be stored is, whatever others fail with.

        Raises CommitFailed when the group gave the partitions to others, NoSuchPartitions at once for those
        that are not there, what the broker refuses as its KafkaError, and DeadlineExceeded after
        `default_api_timeout_ms`.
        """
        await self._commit(self._committer(), offsets, self._fifo.take(), timeout_s)

    def commit_nowait(self, offsets: Offsets, tasks: asyncio.TaskGroup) -> asyncio.Future[None]:
        """Store offsets without waiting for it; the future tells how it went, and may be left alone."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Both are those of this moment, not of the one in which the task gets to run.
        committer, ticket = self._committer(), self._fifo.take()

        async def commit() -> None:
            try:
                await self._commit(committer, offsets, ticket)
            except Exception as error:  # the future's to tell, whatever it is; nobody else waits
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
        """Wait until all that was to be committed is, within a bound: no member, no commit."""
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
                # Offsets of one generation must not be stored in the name of a later one.
                if not offsets:
                    return
                if committer is None:
                    raise CommitFailed(_OUT_OF_GROUP)
                await self._store(committer, left)
        except TimeoutError as error:  # of this bound: others arrive as cancellation
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
        """Store offsets, and take out of `left` what is stored."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        speaking = committer

        async def ask() -> None:
            nonlocal speaking
            try:
                await self._send(speaking, left)
            except _Rebalancing as error:
                speaking = self._successor(speaking, left, error)
                raise

        await self._cluster.retry(self._what, ask)
        self._metrics.committed((loop.time() - since_s) * 1_000)

    async def _send(self, committer: GroupMetadata, left: dict[TopicPartition, OffsetAndMetadata]) -> None:
        request = _commit_request(committer, left)
        min_version = VERSION_WITH_INSTANCES if committer.group_instance_id is not None else None
        answer = await self._coordinator.send(request, OffsetCommitResponse, min_version=min_version)
        failed = {
            TopicPartition(topic.name, each.partition_index): each.error_code
            for topic in answer.topics
            for each in topic.partitions
            if each.error_code != ErrorCode.NONE
        }
        for partition in left.keys() - failed.keys():
            del left[partition]
        self._raise_commit_errors(failed)

    def _successor(self, committer: GroupMetadata, offsets: Offsets, error: _Rebalancing) -> GroupMetadata:
        """Return who speaks in the generation that follows, if the partitions were kept all the time."""
        now = self._committer()
        if now is None or now.member_id != committer.member_id or not self._keeps(offsets):
            raise CommitFailed(f"{_OUT_OF_GROUP} ({error})") from error
        return now

    async def committed(
        self, partitions: Iterable[TopicPartition], *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed; partitions without a commit are left out.

        With `require_stable` it waits for open transactions that commit such offsets (KIP-447), where the
        broker knows of that.
        """
        topics = [
            OffsetFetchRequestTopic(name=topic, partition_indexes=[each.partition for each in found])
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
        """Close the connection, and give up what nobody waits for."""
        for task in self._unawaited:
            task.cancel()
        await self._coordinator.close()

    def _read(self, answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                self._raise_error(each.error_code)
                if each.committed_offset != NOTHING_COMMITTED:
                    found[TopicPartition(topic.name, each.partition_index)] = OffsetAndMetadata(
                        each.committed_offset, each.metadata or "", each.committed_leader_epoch
                    )
        return found

    def _raise_commit_errors(self, failed: Mapping[TopicPartition, int]) -> None:
        """Raise what is wrong. That a partition is not there comes last: trying again helps others first."""
        unknown = [each for each, code in failed.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        for partition, code in failed.items():
            if partition not in unknown:
                self._raise_commit_error(partition, code)
        if unknown:
            raise NoSuchPartitions(unknown)

    def _raise_commit_error(self, partition: TopicPartition, code: int) -> None:
        if code in _STALE:
            raise CommitFailed(f"{_OUT_OF_GROUP} ({ErrorCode(code).name} for {partition})")
        if code in _IN_BETWEEN:
            raise _Rebalancing(f"{ErrorCode(code).name} for {partition}")
        self._raise_error(code, f"offsets of {partition} were not committed")

    def _raise_error(self, code: int, message: str | None = None) -> None:
        if code == ErrorCode.NONE:
            return
        if code in _ELSEWHERE:
            self._coordinator.forget()
        raise error_for(code, message)


class AutoCommit:
    """Commits what the application is finished with: every interval, and when it is told to.

    Only what changed since is sent. Nobody waits for the regular commits, so that what goes wrong with them
    is logged; what is not stored by one is stored by the next.
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
        """Commit for ever, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.commit()

    async def commit(
        self, partitions: frozenset[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit what is finished, of some partitions or of all; what goes wrong is logged."""
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
        """Forget what was committed: others may commit for these partitions now."""
        for partition in partitions:
            self._stored.pop(partition, None)


_OUT_OF_GROUP = (
    "the group went on without this consumer, and its partitions may have gone to others: it was not asked "
    "for records for longer than max_poll_interval_ms, or its heartbeats did not get through for "
    "session_timeout_ms. What was not committed will be read again. Handle fewer records between two calls "
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
                partitions=[_commit_partition(each.partition, offsets[each]) for each in partitions],
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
        done.exception()  # it is logged, so that nobody has to ask for it
