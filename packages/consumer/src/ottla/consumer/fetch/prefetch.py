"""Prefetch the assigned partitions: the parts between Fetch requests and delivered records, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ottla.client.cluster import Cluster
from ottla.client.interceptors import Interceptors
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.assigned_partitions import AssignedPartitions, PositionOperations
from ottla.consumer.fetch.decoding import RecordDecoder
from ottla.consumer.fetch.fetcher import Fetcher
from ottla.consumer.fetch.leaders import PartitionLeaders
from ottla.consumer.fetch.offset_lookups import OffsetLookups
from ottla.consumer.fetch.position_resolver import PositionResolver
from ottla.consumer.fetch.positions import Positions
from ottla.consumer.fetch.record_delivery import RawFetches, RecordDelivery
from ottla.consumer.fetch.resolution_steps import (
    CommittedOffsets,
    EpochValidation,
    FetchCommitted,
    OffsetReset,
)
from ottla.consumer.fetch.responses import FetchResponseReader
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.messages.metadata import MetadataResponse


class Owner(Protocol):
    """The consumer that owns the prefetch."""

    def check_open(self) -> None:
        """Raise what ended the consumer."""

    def check_group(self) -> None:
        """Note for the group that records are asked for. Raises the error of the group or its listener."""

    def topics_wanted(self) -> frozenset[str] | None:
        """Return the topics whose metadata are needed; None for all."""

    def topics_seen(self, response: MetadataResponse) -> None:
        """Apply new metadata to the subscription."""


class Prefetch:
    """Owns the parts that read the assigned partitions, and starts their three tasks."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        metrics: ConsumerMetrics,
        interceptors: Interceptors,
        owner: Owner,
        fetch_committed: FetchCommitted | None,
    ) -> None:
        self.positions = positions = Positions()
        self.notifier = notifier = StateChangeNotifier()
        self.offset_lookups = OffsetLookups(cluster, read_committed=config.reads_committed)
        self.leaders = PartitionLeaders(
            cluster, config, positions, notifier, owner.topics_wanted, owner.topics_seen, on_leaders=self.wake
        )
        look_up_leaders = self.leaders.refresh_soon
        steps = (
            CommittedOffsets(config, fetch_committed),
            OffsetReset(config, self.offset_lookups),
            EpochValidation(config, self.offset_lookups, look_up_leaders),
        )
        self.resolver = PositionResolver(cluster, positions, notifier, steps, on_resolved=self.wake)
        decoder = RecordDecoder(config)
        self.fetcher = _fetcher(
            cluster, positions, config, notifier, metrics, decoder, look_up_leaders, self.resolver.wake
        )
        self.delivery = RecordDelivery(
            positions,
            self.fetcher,
            RawFetches(positions, decoder, self.resolver.wake),
            notifier,
            interceptors,
            float(config.consumer_timeout_ms),
            check_open=owner.check_open,
            check_group=owner.check_group,
            preparation_timeout_s=config.client.default_api_timeout_ms / 1_000,
        )
        self.position_operations = PositionOperations(
            positions,
            self.delivery,
            notifier,
            timeout_s=config.client.default_api_timeout_ms / 1_000,
            read_committed=config.reads_committed,
            check_open=owner.check_open,
            on_change=self.wake,
        )
        self.assigned = AssignedPartitions(positions, self.delivery, self.wake)

    def start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Start fetching; the tasks run until they are cancelled."""
        return [tasks.create_task(part.run()) for part in (self.leaders, self.resolver, self.fetcher)]

    def wake(self) -> None:
        """Check what can be fetched and what must be resolved: positions or leaders changed."""
        self.fetcher.wake()
        self.resolver.wake()


def _fetcher(
    cluster: Cluster,
    positions: Positions,
    config: ConsumerConfig,
    notifier: StateChangeNotifier,
    metrics: ConsumerMetrics,
    decoder: RecordDecoder,
    look_up_leaders: Callable[[], None],
    look_up_offsets: Callable[[], None],
) -> Fetcher:
    responses = FetchResponseReader(
        cluster,
        positions,
        config,
        notifier,
        metrics,
        decoder,
        look_up_leaders=look_up_leaders,
        look_up_offsets=look_up_offsets,
    )
    return Fetcher(
        cluster,
        positions,
        config,
        notifier,
        metrics,
        responses,
        look_up_leaders=look_up_leaders,
        look_up_offsets=look_up_offsets,
    )
