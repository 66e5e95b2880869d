"""The state of a mirror: a compacted topic in the cluster of the copies, created if missing and read whole.

It has two kinds of records. A span maps offsets of the original to offsets of the copy; a longer version
replaces it. An origin says that a topic is a copy, and of which clusters, so that no mirror copies it back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass, replace
from typing import Any, TypeAlias

from ottla.admin import LATEST, TOPIC, Admin, ConfigEntry
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, ConsumerConfig
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.producer import Producer, ProducerConfig
from ottla.producer.accumulator import Acknowledgement
from ottla.protocol.errors import TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

MAPPING_TOPIC = "ottla-mirror-offsets"
MAPPING_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}

READ_TIMEOUT_S = 120.0
"""How long an open transaction may hide the end of the topic: the default transaction timeout of brokers, and
some more."""
KNOWN_WITHIN_S = 30.0
"""How long brokers may take to hear of a new topic."""
_PAUSE_S = 0.05
_WAIT_MS = 500


class MappingUnreadable(PipelineError):
    """The mapping topic holds foreign records, or cannot be read to its end."""


@dataclass(frozen=True, slots=True)
class MappedSpan:
    """A span, with its mirror and the partition of the original."""

    mirror: str
    partition: TopicPartition
    span: Span
    sure: int | None = None
    """Without transactions, a span is stored before its records are written. Then this is the offset up to
    which the copy was complete at that time. None: all of the span is written."""

    def key(self) -> bytes:
        """Return the record's key."""
        topic, number = self.partition
        return _json({"mirror": self.mirror, "topic": topic, "partition": number, "source": self.span.source})

    def value(self, copy: str) -> bytes:
        """Return the record's value."""
        said: dict[str, object] = {"topic": copy, "target": self.span.target, "count": self.span.count}
        return _json(said if self.sure is None else said | {"sure": self.sure})


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of the records of a copy."""

    mirror: str
    clusters: tuple[str, ...]
    """The ids of the clusters on the records' way, starting with the first one."""

    @staticmethod
    def key(copy: str) -> bytes:
        """Return the key of a copy's origin."""
        return _json({"copy": copy})

    def value(self) -> bytes:
        """Return the record's value."""
        return _json({"mirror": self.mirror, "clusters": self.clusters})


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


Found: TypeAlias = list[tuple[TopicPartition, Span]]


class OffsetMapping:
    """The spans of a mirror and the origins of all copies, as far as the topic was read."""

    def __init__(self, mirror: str) -> None:
        self.mirror = mirror
        self.spans: dict[TopicPartition, Spans] = {}
        self.origins: dict[str, Origin] = {}
        self._sure: dict[TopicPartition, int | None] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record of the topic. Raises MappingUnreadable for a foreign one."""
        try:
            where = json.loads(key or b"")
            what = json.loads(value) if value else None
            if "copy" in where:
                self._take_origin(str(where["copy"]), what)
            elif where["mirror"] == self.mirror:
                self._take_span(where, what)
        except (ValueError, TypeError, KeyError):
            raise MappingUnreadable(
                f"{(key or b'')[:80]!r} is not a record of a mirror: mapping_topic must name a "
                "dedicated topic"
            ) from None

    def _take_origin(self, copy: str, what: Mapping[str, list[str] | str] | None) -> None:
        if what is None:
            self.origins.pop(copy, None)
        else:
            self.origins[copy] = Origin(str(what["mirror"]), tuple(what["clusters"]))

    def _take_span(self, where: Mapping[str, str | int], what: Mapping[str, int] | None) -> None:
        partition, source = TopicPartition(str(where["topic"]), int(where["partition"])), int(where["source"])
        if what is None:
            if partition in self.spans:
                self.spans[partition].remove(source)
            return
        span = Span(source, int(what["target"]), int(what["count"]))
        self.spans.setdefault(partition, Spans()).put(span)
        self.set_sure(partition, what.get("sure"))

    def set_sure(self, partition: TopicPartition, sure: int | None) -> None:
        """Set the offset up to which a copy is complete; the newest record of a partition decides."""
        self._sure[partition] = sure

    def last(self, partition: TopicPartition) -> Span | None:
        """Return the newest span of a partition."""
        found = self.spans.get(partition)
        return found.last if found is not None else None

    def sure(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which a copy is known to be complete; None if all of its last span is."""
        return self._sure.get(partition)

    def spans_json(self) -> dict[str, Any]:
        """Return the spans as JSON, without the origins."""
        return {
            "mirror": self.mirror,
            "spans": [
                [topic, number, self.sure(TopicPartition(topic, number)), [astuple(span) for span in spans]]
                for (topic, number), spans in self.spans.items()
            ],
        }

    @staticmethod
    def from_spans_json(found: Mapping[str, Any]) -> OffsetMapping:
        """Undo `spans_json`."""
        mapping = OffsetMapping(found["mirror"])
        for topic, number, sure, spans in found["spans"]:
            partition = TopicPartition(topic, number)
            mapping.spans[partition] = Spans(Span(*span) for span in spans)
            mapping.set_sure(partition, sure)
        return mapping

    def part(self, partitions: Iterable[TopicPartition]) -> OffsetMapping:
        """Return the part of the mapping that is needed to continue with some partitions."""
        found = OffsetMapping(self.mirror)
        for partition in partitions:
            spans, sure = self.spans.get(partition), self.sure(partition)
            if spans is not None and spans.last is not None:
                found.spans[partition] = Spans(spans.since(spans.last.target if sure is None else sure))
                found.set_sure(partition, sure)
        return found


class MappingWriter:
    """Writes new entries of a mapping to its topic."""

    def __init__(self, mapping: OffsetMapping, topic: str, producer: Producer) -> None:
        self.mapping = mapping
        self.topic = topic
        self.producer = producer

    async def add(self, copies: Mapping[str, str], found: Found, sure: Mapping[TopicPartition, int]) -> None:
        """Add spans; return once they are written. `copies` has the names of copies by topic.

        `sure` says up to where copies are complete, if the records of the spans are not written yet.
        """
        by_partition: dict[TopicPartition, list[Span]] = {}
        for partition, span in found:
            by_partition.setdefault(partition, []).append(span)
        waiting: list[Acknowledgement] = []
        for partition, some in by_partition.items():
            changed = self.mapping.spans.setdefault(partition, Spans()).add(some)
            waiting += await self._put(partition, copies[partition.topic], changed, sure.get(partition))
        await _all(waiting)

    async def correct(
        self, partition: TopicPartition, copy: str, changed: Iterable[Span], gone: Iterable[Span]
    ) -> None:
        """Write spans that became shorter, and delete others; the rest is complete."""
        last = self.mapping.last(partition)
        kept = {span.source: span for span in (*changed, *([last] if last is not None else []))}
        waiting = await self._drop(partition, gone)
        await _all(waiting + await self._put(partition, copy, kept.values(), None))

    async def thin_out(self) -> None:
        """Remove older spans of partitions that have too many."""
        waiting: list[Acknowledgement] = []
        for partition, spans in self.mapping.spans.items():
            waiting += await self._drop(partition, spans.thin_out())
        await _all(waiting)

    async def set_origins(self, origins: Mapping[str, Origin | None]) -> None:
        """Write the origins of copies, or delete them (None)."""
        waiting = []
        for copy, origin in origins.items():
            value = None if origin is None else origin.value()
            waiting.append(await self.producer.send(self.topic, value, Origin.key(copy), 0))
            self.mapping.take(Origin.key(copy), value)
        await _all(waiting)

    async def _put(
        self, partition: TopicPartition, copy: str, spans: Iterable[Span], sure: int | None
    ) -> list[Acknowledgement]:
        waiting = []
        for span in spans:
            one = MappedSpan(self.mapping.mirror, partition, span, sure)
            waiting.append(await self.producer.send(self.topic, one.value(copy), one.key(), 0))
            self.mapping.set_sure(partition, sure)
        return waiting

    async def _drop(self, partition: TopicPartition, spans: Iterable[Span]) -> list[Acknowledgement]:
        keys = [MappedSpan(self.mapping.mirror, partition, span).key() for span in spans]
        return [await self.producer.send(self.topic, None, key, 0) for key in keys]


async def _all(waiting: Iterable[Acknowledgement]) -> None:
    for waited in waiting:
        await waited


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
