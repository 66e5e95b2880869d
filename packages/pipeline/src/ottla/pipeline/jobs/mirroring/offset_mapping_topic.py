"""The topic of a mapping: made where it is missing, and read up to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from ottla.client.admin import LATEST, TOPIC, Admin
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, ConsumerConfig
from ottla.pipeline.jobs.mirroring.offset_mapping import (
    MAPPING_SETTINGS,
    MAPPING_TOPIC,
    MappingUnreadable,
    OffsetMapping,
)
from ottla.pipeline.jobs.mirroring.offset_spans import Spans
from ottla.producer import ProducerConfig
from ottla.protocol.errors import TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

READ_TIMEOUT_S = 120.0
"""How long a transaction that is still open may keep the end of the topic from being read: the time that
brokers give it, and some more."""
_WAIT_MS = 500


def client_of(properties: Mapping[str, str]) -> ClientConfig:
    """Return how to reach the target; what is said of it are settings of a producer."""
    return ProducerConfig.from_properties(dict(properties)).client


def reading(client: ClientConfig) -> ConsumerConfig:
    """Return how copies and mappings are read: what was committed, and without a group."""
    return ConsumerConfig(client=client, auto_offset_reset="none", isolation_level="read_committed")


async def make_mapping_topic(target: Admin, name: str) -> None:
    """Make the topic where it is missing. Raises MappingUnreadable for one that would forget."""
    try:
        await target.topics.describe(name)
    except NoSuchTopic:
        with suppress(TopicAlreadyExists):
            await target.topics.create(name, partitions=1, configs=MAPPING_SETTINGS)
    entries = await target.configs.describe(TOPIC, name)
    policy = next((each.value for each in entries if each.name == "cleanup.policy"), None) or ""
    if "compact" not in policy or "delete" in policy:
        raise MappingUnreadable(
            f"topic {name!r} has cleanup.policy={policy}, and would forget what became of offsets; "
            "set it to compact, or name another one (mapping_topic)"
        )


class MappingReader:
    """Reads a mapping, and later what is new in it."""

    def __init__(self, consumer: Consumer, admin: Admin, topic: str) -> None:
        self._consumer = consumer
        self._admin = admin
        self._place = TopicPartition(topic, 0)
        self.next_offset = 0

    def begin(self, next_offset: int = 0) -> None:
        """Go to an offset: that of the beginning, or where another reader is."""
        self.next_offset = next_offset
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, next_offset)

    async def read_into(self, mapping: OffsetMapping) -> None:
        """Take all that was written up to now. Raises MappingUnreadable when that takes too long."""
        # Of transactions that are open, too: behind their records could be some that count.
        end = (await self._admin.offsets.find({self._place: LATEST}))[self._place]
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                while await self._consumer.position(self._place) < end:
                    await self._take_some(mapping)
        except TimeoutError:
            raise MappingUnreadable(
                f"{self._place} could not be read up to offset {end}: is a transaction open there?"
            ) from None
        self.next_offset = max(self.next_offset, end)

    async def _take_some(self, mapping: OffsetMapping) -> None:
        for found in (await self._consumer.getmany(timeout_ms=_WAIT_MS)).values():
            for each in found:
                mapping.take(each.key, each.value)


@asynccontextmanager
async def mapping_reader(client: ClientConfig, admin: Admin, topic: str) -> AsyncIterator[MappingReader]:
    """Open a reader of a topic that exists; `begin` says from where."""
    config = replace(reading(client), auto_offset_reset="earliest")
    async with Consumer(config=config) as consumer:
        yield MappingReader(consumer, admin, topic)


async def read_mapping(
    properties: Mapping[str, str], mirror: str, topic: str = MAPPING_TOPIC
) -> dict[TopicPartition, Spans]:
    """Return the spans of a mirror, by partitions of the original; `properties` name the copies' cluster."""
    found = OffsetMapping(mirror)
    client = client_of(properties)
    async with (
        Admin(client.bootstrap_servers, client) as admin,
        mapping_reader(client, admin, topic) as reader,
    ):
        reader.begin()
        await reader.read_into(found)
    return found.spans
