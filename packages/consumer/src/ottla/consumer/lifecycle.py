"""The lifecycle of a consumer: its parts put together, how they start and how they stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Self

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import ConsumerClosed, ConsumerStopped
from ottla.consumer.fetch.prefetch import Prefetch
from ottla.consumer.group.consumer_group import ConsumerGroup
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription_state import SubscriptionState
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition

_NOT_OPEN = "the consumer is not open; use it inside `async with`"


class ConsumerLifecycle:
    """Owns the prefetch, the group and the subscription of a consumer, and runs their tasks.

    All tasks live in one task group, inside the one task that `start` creates. A failure of any of them ends
    the consumer, and is raised by every later call.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        client = config.client
        self.cluster = Cluster(client.bootstrap_servers, client)
        self.metrics = ConsumerMetrics()
        self._interceptors = Interceptors(config.interceptors)
        self._on_commit = self._interceptors.methods("on_commit")
        fetch_committed = self._fetch_committed if config.group_id is not None else None
        self.fetch = Prefetch(self.cluster, config, self.metrics, self._interceptors, self, fetch_committed)
        self.metrics.lags = self.fetch.position_operations.lags
        self.group = self._make_group()
        self.subscriptions = SubscriptionState(self.cluster, config, self.fetch, self.group)
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None

    def _make_group(self) -> ConsumerGroup | None:
        if (config := self.config.group()) is None:
            return None
        return ConsumerGroup(
            self.cluster,
            config,
            self.fetch.assigned,
            finished_offsets=self.fetch.assigned.finished_offsets,
            is_subscribed=lambda: self.subscriptions.is_subscribed,
            on_commit=self._committed,
            wake=self.fetch.notifier.notify,
            metrics=self.metrics,
        )

    # --- lifetime

    async def start(self) -> None:
        """Connect, and join the group; return once partitions are assigned, or there are none to have.

        Raises what prevents the start: NoBrokerAvailable, NoSuchTopic, errors of authorization.
        """
        if self.usable._main is not None:
            raise ConsumerClosed("a consumer starts only once")
        started = asyncio.get_running_loop().create_future()
        self._main = asyncio.get_running_loop().create_task(self._run(started), name="ottla-consumer")
        try:
            await started
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Commit finished records, leave the group, and close all connections."""
        if self._main is None:
            self._failure = ConsumerStopped("the consumer was closed")
            return
        self._stopping.set()
        try:
            await asyncio.shield(self._main)
        except asyncio.CancelledError:
            self._main.cancel()
            with suppress(asyncio.CancelledError):
                await self._main
            raise

    async def _run(self, started: asyncio.Future[None]) -> None:
        try:
            async with self.cluster, asyncio.TaskGroup() as tasks:
                await self._run_parts(tasks, started)
        except BaseExceptionGroup as group:
            self._fail(group.exceptions[0] if len(group.exceptions) == 1 else group, started)
        except asyncio.CancelledError:
            self._fail(ConsumerClosed("the consumer was cancelled"), started)
            raise
        except Exception as error:
            self._fail(error, started)
        finally:
            self._tasks = None
            self._fail(ConsumerStopped("the consumer was closed"), started)

    async def _run_parts(self, tasks: asyncio.TaskGroup, started: asyncio.Future[None]) -> None:
        self._tasks = tasks
        await self.subscriptions.find_topics()
        running = self.fetch.start(tasks)
        if self.group is not None:
            self.group.start(tasks)
        try:
            if self.group is not None and self.subscriptions.is_subscribed:
                self.group.join()
                timeout_s = self.config.client.default_api_timeout_ms / 1_000
                await self.group.first_assignment(timeout_s, self._stopping)
            if not started.done():
                started.set_result(None)
            await self._stopping.wait()
            if self.group is not None:
                await self.group.leave()
        finally:
            for task in running:
                task.cancel()
            if self.group is not None:
                await self.group.close()

    def _fail(self, error: BaseException, started: asyncio.Future[None]) -> None:
        self._failure = self._failure or error
        self.fetch.delivery.suspend(self.fetch.positions.assigned)  # the next call must raise the failure
        if not started.done():
            started.set_exception(error)
        self.fetch.notifier.notify()

    # --- what the parts ask for

    def check_open(self) -> None:
        """Raise what ended the consumer; ConsumerClosed before it starts; WrongMode if it reads nothing."""
        _ = self.opened
        self.subscriptions.check_chosen()

    def check_group(self) -> None:
        """Note for the group that records are asked for. Raises the error of the group or its listener."""
        if self.group is not None:
            self.group.polled()

    def topics_wanted(self) -> frozenset[str] | None:
        """Return the topics whose metadata are needed; None for all."""
        return self.subscriptions.topics_wanted()

    def topics_seen(self, response: MetadataResponse) -> None:
        """Apply new metadata to the subscription."""
        self.subscriptions.topics_seen(response)

    # --- what the consumer asks for

    @property
    def usable(self) -> Self:
        """The consumer until it ends: topics may be chosen. Raises ConsumerStopped, or what ended it."""
        if self._failure is not None:
            raise self._failure
        return self

    @property
    def opened(self) -> Self:
        """The running consumer: requests may be sent. Raises as `usable`; ConsumerClosed before the start.

        A request before or after that would wait for tasks that do not run, or open connections that nothing
        closes.
        """
        if self.usable._tasks is None:
            raise ConsumerClosed(_NOT_OPEN)
        return self

    @property
    def tasks(self) -> asyncio.TaskGroup:
        """The task group of the running consumer."""
        assert self._tasks is not None
        return self._tasks

    def need_group(self) -> ConsumerGroup:
        """Return the group. Raises ValueError without `group_id`."""
        if self.group is None:
            raise ValueError("there is no group to commit for; set group_id")
        return self.group

    async def _fetch_committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return await self.need_group().committed(partitions)

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._interceptors.tell(self._on_commit, dict(offsets))
