"""What a consumer is made of, and how it starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.client.settings import chosen
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import ConsumerClosed, NoOffset, WrongMode
from ottla.consumer.fetch.assigned_partitions import GroupSide
from ottla.consumer.fetch.delivery import Giver
from ottla.consumer.fetch.fetcher import Fetcher
from ottla.consumer.fetch.leaders import Leaders, partitions_of
from ottla.consumer.fetch.lookups import EARLIEST, Lookups
from ottla.consumer.fetch.notifier import News
from ottla.consumer.fetch.position_resolver import Beginnings
from ottla.consumer.fetch.positions import Place, Positions
from ottla.consumer.foreign_names import check_settings
from ottla.consumer.group.commits import AutoCommit, Commits
from ottla.consumer.group.membership import Membership
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition

LOOK_EVERY_S = 0.05


class Life(Giver):
    """A consumer's parts, put together; `Consumer` is what applications use of them."""

    def __init__(self, config: ConsumerConfig | None, settings: Mapping[str, Any]) -> None:
        check_settings(settings)
        self.config = chosen(ConsumerConfig, config, settings)
        client = self.config.client
        self._cluster = Cluster(client.bootstrap_servers, client)
        self._metrics = ConsumerMetrics(lags=self._lags)
        self._interceptors = Interceptors(self.config.interceptors)
        self._lookups = Lookups(self._cluster, read_committed=self.config.reads_committed)
        positions, news = Positions(), News()
        self._leaders = Leaders(
            self._cluster,
            positions,
            news,
            self._topics_wanted,
            self._topics_seen,
            may_create=self.config.allow_auto_create_topics,
            on_leaders=self._look,
        )
        self._commits = self._make_commits()
        self._beginnings = Beginnings(
            self._cluster,
            positions,
            self._lookups,
            self.config,
            news,
            self._read_committed if self._commits is not None else None,
            on_found=self._look,
            on_stale=self._leaders.look_again,
        )
        fetcher = Fetcher(
            self._cluster,
            positions,
            self.config,
            news,
            self._metrics,
            look_up_leaders=self._leaders.look_again,
            look_up_offsets=self._beginnings.look,
        )
        super().__init__(positions, fetcher, news, self._interceptors, float(self.config.consumer_timeout_ms))
        self._side = GroupSide(positions, self, self._look)
        self._auto_commit = self._make_auto_commit()
        self._membership = self._make_membership()
        self._subscription: Subscription | None = None
        self._knows_topics = False
        self._is_manual = False
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._joining: asyncio.Task[None] | None = None

    # --- starting and stopping

    async def start(self) -> None:
        """Connect, and join the group; returns when there are partitions to read, or none to be had.

        Raises what keeps it from starting: NoBrokerAvailable, NoSuchTopic, errors of authorization.
        """
        if self._main is not None:
            raise ConsumerClosed("a consumer starts only once")
        started = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._live(started), name="ottla-consumer")
        try:
            await started
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Commit what is finished, leave the group, and close all connections."""
        if self._main is None:
            self._failure = ConsumerClosed("the consumer was closed")
            return
        self._stopping.set()
        try:
            await asyncio.shield(self._main)
        except asyncio.CancelledError:
            self._main.cancel()
            with suppress(asyncio.CancelledError):
                await self._main
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _live(self, started: asyncio.Future[None]) -> None:
        try:
            async with self._cluster, asyncio.TaskGroup() as tasks:
                await self._work(tasks, started)
        except BaseExceptionGroup as group:
            self._fail(group.exceptions[0] if len(group.exceptions) == 1 else group, started)
        except asyncio.CancelledError:
            self._fail(ConsumerClosed("the consumer was cancelled"), started)
            raise
        except Exception as error:
            self._fail(error, started)
        finally:
            self._tasks = None
            self._fail(ConsumerClosed("the consumer was closed"), started)

    async def _work(self, tasks: asyncio.TaskGroup, started: asyncio.Future[None]) -> None:
        self._tasks = tasks
        if self._subscription is not None and self._membership is None:
            await self._find_topics(self._subscription)
        running = [tasks.create_task(each.run()) for each in (self._leaders, self._beginnings, self._fetcher)]
        if self._auto_commit is not None:
            running.append(tasks.create_task(self._auto_commit.run()))
        try:
            if self._subscription is not None and self._membership is not None:
                self._join()
                await self._first_assignment(self._membership)
            if not started.done():
                started.set_result(None)
            await self._stopping.wait()
            await self._leave_group()
        finally:
            for task in (*running, self._joining):
                if task is not None:
                    task.cancel()
            if self._commits is not None:
                await self._commits.close()

    async def _first_assignment(self, membership: Membership) -> None:
        """Wait until the group has given partitions, within a bound: others may take their time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.config.default_api_timeout_ms / 1_000):
                while not membership.is_stable and not self._stopping.is_set():
                    membership.asked()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(membership.stable(), LOOK_EVERY_S)

    async def _leave_group(self) -> None:
        if self._commits is not None:
            await self._commits.settle(self.config.close_timeout_ms / 3_000)
        if self._membership is not None and self._joining is not None:
            await self._membership.close()
        elif self._auto_commit is not None:
            await self._auto_commit.commit(timeout_s=self.config.close_timeout_ms / 1_000)

    def _fail(self, error: BaseException, started: asyncio.Future[None]) -> None:
        self._failure = self._failure or error
        self.stop_giving(self._positions.assigned)  # whoever asks shall hear of it
        if not started.done():
            started.set_exception(error)
        self._news.tell()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._tasks is None:
            raise ConsumerClosed("the consumer is not open; use it inside `async with`")
        if self._subscription is None and not self._is_manual:
            raise WrongMode("there is nothing to read: subscribe to topics, or assign partitions")

    def _need_tasks(self) -> asyncio.TaskGroup:
        if self._tasks is None:
            raise ConsumerClosed("the consumer is not open; use it inside `async with`")
        return self._tasks

    # --- the group

    def _make_commits(self) -> Commits | None:
        if self.config.group_id is None:
            return None
        on_commit = self._interceptors.methods("on_commit")

        def tell(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            self._interceptors.tell(on_commit, dict(offsets))

        return Commits(
            self._cluster,
            self.config.group_id,
            self._speaker,
            keeps=self._keeps,
            on_commit=tell,
            metrics=self._metrics,
        )

    def _keeps(self, partitions: Iterable[TopicPartition]) -> bool:
        """Say whether partitions are ours, and stay so while the group rebalances."""
        cooperates = self._membership is not None and self._membership.keeps_partitions
        return cooperates and self._positions.assigned.issuperset(partitions)

    def _make_auto_commit(self) -> AutoCommit | None:
        if self._commits is None or not self.config.enable_auto_commit:
            return None
        return AutoCommit(self._commits, self._side.finished_offsets, self.config.auto_commit_interval_ms)

    def _make_membership(self) -> Membership | None:
        if (group := self.config.group()) is None:
            return None
        return Membership(
            self._cluster,
            group,
            self._side,
            self._auto_commit,
            wake=self._news.tell,
            metrics=self._metrics,
        )

    @property
    def _is_member(self) -> bool:
        # Whoever has just unsubscribed still speaks as a member, for what is to be committed.
        involved = self._membership is not None and self._membership.is_involved
        return self._membership is not None and (self._subscription is not None or involved)

    def _speaker(self) -> GroupMetadata | None:
        """Return for whom offsets are committed; None while the group goes on without us."""
        if self._membership is not None and self._is_member:
            return self._membership.speaker()
        return GroupMetadata(self.config.group_id or "")

    def _group_metadata(self) -> GroupMetadata:
        if self._membership is not None and self._is_member:
            return self._membership.group_metadata()
        return GroupMetadata(self.config.group_id or "")

    def _need_commits(self) -> Commits:
        if self._commits is None:
            raise ValueError("there is no group to commit for; set group_id")
        return self._commits

    async def _read_committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await self._need_commits().committed(partitions, require_stable=self.config.reads_committed)

    def _join(self) -> None:
        if self._joining is None and self._membership is not None:
            self._joining = self._need_tasks().create_task(self._membership.run())

    # --- what is read

    def _subscribe(self, wanted: Subscription, listener: Any) -> None:
        self._subscription = wanted
        self._knows_topics = False
        if self._membership is not None:
            self._side.is_over = False
            self._membership.subscribe(wanted, listener)
            if self._tasks is not None:
                self._join()
        self._leaders.look_again()

    def _unsubscribe(self) -> None:
        if self._subscription is not None and self._membership is not None:
            self.stop_giving(self._positions.assigned)
            self._membership.unsubscribe()
        else:
            self.take_away(self._positions.assigned)
        self._subscription = None
        self._is_manual = False
        self._news.tell()  # whoever waits for records would do so for nothing

    def _assign_by_hand(self, wanted: Collection[TopicPartition]) -> None:
        self.take_away(self._positions.assigned - frozenset(wanted))
        self._positions.assign(wanted)
        self._subscription = None
        self._is_manual = self._side.is_over = True
        # What the group is about to take is held, and it will not come to taking it: nobody would let it go.
        self._side.release(self._positions.assigned)
        self._leaders.look_again()
        self._look()

    def _topics_wanted(self) -> frozenset[str] | None:
        """Name the topics to know of; None stands for all."""
        held = frozenset(each.topic for each in self._positions.assigned)
        wanted = self._subscription
        if wanted is None or self._membership is not None:
            return held
        return None if wanted.filter is not None else wanted.names | held

    async def _find_topics(self, wanted: Subscription) -> None:
        """Find the topics that are named before reading begins. Raises NoSuchTopic."""
        for name in sorted(wanted.names):
            await self._cluster.topic(name, may_create=self.config.allow_auto_create_topics)
        answer = await self._cluster.retry(
            "finding topics", lambda: self._cluster.refresh(sorted(wanted.names) or None)
        )
        self._topics_seen(answer)

    def _topics_seen(self, answer: MetadataResponse) -> None:
        """Without a group all partitions of what is subscribed to are read, new ones from their beginning."""
        wanted = self._subscription
        if wanted is None or self._membership is not None:
            return
        known = {
            each.name or "": each.is_internal
            for each in answer.topics
            if each.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        topics = wanted.topics(known, exclude_internal=self.config.exclude_internal_topics)
        found = {each for topic in answer.topics if topic.name in topics for each in partitions_of(topic)}
        there = {each.name for each in answer.topics if each.error_code == ErrorCode.NONE}
        gone = {each.topic for each in self._positions.assigned} & topics - there
        found |= {each for each in self._positions.assigned if each.topic in gone}
        added = found - self._positions.assigned
        self.take_away(self._positions.assigned - found)
        self._positions.assign(sorted(found))
        if self._knows_topics:
            for partition in added:
                self._positions[partition].seek_time(EARLIEST)
        self._knows_topics = True
        self._look()

    # --- places

    def _look(self) -> None:
        """Something changed: see what there is to do."""
        self._fetcher.look()
        self._beginnings.look()

    def _leave(self, place: Place) -> None:
        """Give out nothing more of what is at hand of a partition, and forget what is in hand."""
        self.stop_giving(frozenset((place.partition,)))
        self._forget_hand(place.partition)

    def _put_back(self) -> None:
        """Give out again what is in hand: the application never saw it. Places that were left stay."""
        for partition, offset in self.handled().items():
            if (place := self._positions.get(partition)) is not None:
                self._leave(place)
                place.seek(offset)
        self._look()

    async def _seek_times(self, times: Mapping[TopicPartition, int]) -> None:
        for partition, time in times.items():
            place = self._positions[partition]
            self._leave(place)
            place.seek_time(time)
        for partition in times:
            await self._position(partition)

    async def _position(self, partition: TopicPartition) -> int:
        timeout_s = self._cluster.config.default_api_timeout_ms / 1_000
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (position := self._positions[partition].position) is None:
            self._check_open()
            place = self._positions[partition]
            place.is_needed = True
            if place.failure is not None:
                failure, place.failure = place.failure, None
                raise failure
            self._look()
            if not await self._news.wait(deadline_s):
                raise NoOffset(partition)
        return position

    def _lag(self, place: Place) -> int | None:
        end = place.last_stable_offset if self.config.reads_committed else place.high_watermark
        position = place.position
        return None if end is None or position is None else max(0, end - position)

    def _lags(self) -> dict[TopicPartition, int]:
        lags = ((place.partition, self._lag(place)) for place in self._positions)
        return {partition: lag for partition, lag in lags if lag is not None}
