"""The lifecycle of a consumer: its parts put together, how they start and how they stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.interceptors import Interceptors
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.prefetch import Prefetch
from ottla.consumer.group.consumer_group import ConsumerGroup
from ottla.consumer.main_task import MainTask
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription_state import SubscriptionState
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition


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
        self._main = MainTask("ottla-consumer", self.cluster, self._run, self._ended)

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
        await self._main.start()

    async def stop(self) -> None:
        """Commit finished records, leave the group, and close all connections."""
        await self._main.stop()

    async def _run(self, tasks: asyncio.TaskGroup, ready: Callable[[], None]) -> None:
        await self.subscriptions.find_topics()
        running = self.fetch.start(tasks)
        if self.group is not None:
            self.group.start(tasks)
        try:
            if self.group is not None and self.subscriptions.is_subscribed:
                self.group.join()
                timeout_s = self.config.client.default_api_timeout_ms / 1_000
                await self.group.first_assignment(timeout_s, self._main.stopping)
            ready()
            await self._main.stopping.wait()
            if self.group is not None:
                await self.group.leave()
        finally:
            for task in running:
                task.cancel()
            if self.group is not None:
                await self.group.close()

    def _ended(self) -> None:
        self.fetch.delivery.suspend(self.fetch.positions.assigned)  # the next call must raise the failure
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
        self._main.check_usable()
        return self

    @property
    def opened(self) -> Self:
        """The running consumer: requests may be sent. Raises as `usable`; ConsumerClosed before the start.

        A request before or after that would wait for tasks that do not run, or open connections that nothing
        closes.
        """
        self._main.check_open()
        return self

    @property
    def tasks(self) -> asyncio.TaskGroup:
        """The task group of the running consumer."""
        assert self._main.tasks is not None
        return self._main.tasks

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
