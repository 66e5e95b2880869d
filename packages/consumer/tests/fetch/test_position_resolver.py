"""Where to read from, when finding out takes several attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ottla.client.cluster import Cluster
from ottla.client.errors import DeadlineExceeded
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.offset_lookups import OffsetLookups
from ottla.consumer.fetch.position_resolver import PositionResolver
from ottla.consumer.fetch.positions import Positions
from ottla.consumer.fetch.resolution_steps import (
    CommittedOffsets,
    EpochValidation,
    FetchCommitted,
    OffsetReset,
)
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.protocol.errors import GroupAuthorizationFailed
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


def resolver_of(
    cluster: Cluster, positions: Positions, committed: FetchCommitted, on_resolved: Callable[[], None]
) -> PositionResolver:
    config, lookups = ConsumerConfig(group_id="billing"), OffsetLookups(cluster, read_committed=False)
    steps = (
        CommittedOffsets(config, committed),
        OffsetReset(config, lookups),
        EpochValidation(config, lookups, lambda: None),
    )
    return PositionResolver(cluster, positions, StateChangeNotifier(), steps, on_resolved=on_resolved)


async def test_an_outage_longer_than_a_call_waits_does_not_end_reading() -> None:
    answers: list[Exception | None] = [DeadlineExceeded("reading the offsets", 5, None), None]

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if (failure := answers.pop(0)) is not None:
            raise failure
        return {partition: OffsetAndMetadata(17) for partition in partitions}

    cluster = Cluster("127.0.0.1:1")
    positions = Positions()
    positions.assign([PARTITION])
    found = asyncio.Event()
    resolver = resolver_of(cluster, positions, committed, lambda: found.set() if not answers else None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(resolver.run())
        await found.wait()
        running.cancel()

    assert (positions[PARTITION].position, positions[PARTITION].failure) == (17, None)


async def test_a_coordinator_that_does_not_answer_holds_up_no_partition_that_needs_none() -> None:
    asked, never, found = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        asked.set()
        await never.wait()
        return {}

    cluster, positions = Cluster("127.0.0.1:1"), Positions()
    positions.assign([PARTITION, OTHER])
    positions[OTHER].seek(5)
    resolver = resolver_of(cluster, positions, committed, found.set)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(resolver.run())
        await asked.wait()
        positions[OTHER].must_validate = True
        resolver.wake()
        await found.wait()
        running.cancel()

    assert not positions[OTHER].must_validate


async def test_a_seek_during_the_lookup_hides_the_error_of_the_committed_offset() -> None:
    positions, found = Positions(), asyncio.Event()
    positions.assign([PARTITION, OTHER])

    async def committed(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        positions[PARTITION].seek(5)
        raise GroupAuthorizationFailed("no")

    cluster = Cluster("127.0.0.1:1")
    resolver = resolver_of(cluster, positions, committed, found.set)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(resolver.run())
        await found.wait()
        running.cancel()

    assert (positions[PARTITION].position, positions[PARTITION].failure) == (5, None)
    assert isinstance(positions[OTHER].failure, GroupAuthorizationFailed)
