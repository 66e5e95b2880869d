"""The mapping topic: create it if missing, and read it to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from ottla.admin import LATEST, TOPIC, Admin, ConfigEntry
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
"""How long an open transaction may hide the end of the topic: the default transaction timeout of brokers, and
some more."""
KNOWN_WITHIN_S = 30.0
"""How long brokers may take to hear of a new topic."""
_PAUSE_S = 0.05
_WAIT_MS = 500


def client_of(properties: Mapping[str, str]) -> ClientConfig:
    """Return the connection settings of the target from those of its producer."""
    return ProducerConfig.from_properties(dict(properties)).client


def reading(client: ClientConfig) -> ConsumerConfig:
    """Return the consumer configuration for copies and mappings: committed records, no group."""
    return ConsumerConfig(client=client, auto_offset_reset="none", isolation_level="read_committed")


async def make_mapping_topic(target: Admin, name: str) -> None:
    """Create the topic if it is missing. Raises MappingUnreadable for one that is not only compacted."""
    try:
        await target.topics.describe(name)
    except NoSuchTopic:
        with suppress(TopicAlreadyExists):
            await target.topics.create(name, partitions=1, configs=MAPPING_SETTINGS)
    entries = await _settings(target, name)
    policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None) or ""
    if "compact" not in policy or "delete" in policy:
        raise MappingUnreadable(
            f"topic {name!r} has cleanup.policy={policy}, so the offset mapping would be lost; set "
            "it to compact, or name another topic (mapping_topic)"
        )


async def _settings(target: Admin, name: str) -> list[ConfigEntry]:
    """Return the settings of a topic that is there; a broker may hear later of one that was just created."""
    tries = round(KNOWN_WITHIN_S / _PAUSE_S)
    for _ in range(tries):
        with suppress(NoSuchTopic):
            return await target.configs.describe(TOPIC, name)
        await asyncio.sleep(_PAUSE_S)
    return await target.configs.describe(TOPIC, name)


class MappingReader:
    """Reads a mapping, and later its new entries."""

    def __init__(self, consumer: Consumer, admin: Admin, topic: str) -> None:
        self._consumer = consumer
        self._admin = admin
        self._place = TopicPartition(topic, 0)
        self.next_offset = 0

    def begin(self, next_offset: int = 0) -> None:
        """Seek to an offset: 0, or the position of another reader."""
        self.next_offset = next_offset
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, next_offset)

    async def read_into(self, mapping: OffsetMapping) -> None:
        """Read to the current end. Raises MappingUnreadable if that takes too long."""
        # The end includes open transactions, because committed records may follow theirs.
        end = (await self._admin.offsets.find({self._place: LATEST}))[self._place]
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                while await self._consumer.position(self._place) < end:
                    await self._take_some(mapping)
        except TimeoutError:
            raise MappingUnreadable(
                f"{self._place} could not be read up to offset {end}; a transaction may be open there"
            ) from None
        self.next_offset = max(self.next_offset, end)

    async def _take_some(self, mapping: OffsetMapping) -> None:
        for found in (await self._consumer.getmany(timeout_ms=_WAIT_MS)).values():
            for record in found:
                mapping.take(record.key, record.value)


@asynccontextmanager
async def mapping_reader(client: ClientConfig, admin: Admin, topic: str) -> AsyncIterator[MappingReader]:
    """Open a reader of an existing topic; call `begin` before reading."""
    config = replace(reading(client), auto_offset_reset="earliest")
    async with Consumer(config=config) as consumer:
        yield MappingReader(consumer, admin, topic)


async def read_mapping(
    properties: Mapping[str, str], mirror: str, topic: str = MAPPING_TOPIC
) -> dict[TopicPartition, Spans]:
    """Return the spans of a mirror by partition of the original; `properties` are for the target."""
    found = OffsetMapping(mirror)
    client = client_of(properties)
    async with (
        Admin(client.bootstrap_servers, client) as admin,
        mapping_reader(client, admin, topic) as reader,
    ):
        reader.begin()
        await reader.read_into(found)
    return found.spans
