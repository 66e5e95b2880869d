"""What a mirror remembers: a compacted topic of the cluster that the copies are in.

It has two sorts of records. Spans say which offset became which; a span that grows replaces itself. Origins
say of a topic that it is a copy, and of which clusters: so that no mirror copies it back there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.producer import Producer
from ottla.producer.accumulator import Acknowledgement
from ottla.protocol.topics import TopicPartition

MAPPING_TOPIC = "ottla-mirror-offsets"
MAPPING_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}


class MappingUnreadable(PipelineError):
    """The topic of the mapping holds something else, or cannot be read to its end."""


@dataclass(frozen=True, slots=True)
class MappedSpan:
    """A span, and of which mirror and partition of the original it is."""

    mirror: str
    partition: TopicPartition
    span: Span
    sure: int | None = None
    """Where there are no transactions, a span is kept before its records are written. Then this is the
    offset of the copy up to which it was complete at that time. None: all of it is written."""

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
    """Where the records of a copy come from."""

    mirror: str
    clusters: tuple[str, ...]
    """The ids of the clusters that they went through, the first one first."""

    @staticmethod
    def key(copy: str) -> bytes:
        """Return the key of the record about a copy."""
        return _json({"copy": copy})

    def value(self) -> bytes:
        """Return the record's value."""
        return _json({"mirror": self.mirror, "clusters": self.clusters})


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


Found: TypeAlias = list[tuple[TopicPartition, Span]]


class OffsetMapping:
    """The spans of a mirror, and the origins of all copies, as far as the topic was read."""

    def __init__(self, mirror: str) -> None:
        self.mirror = mirror
        self.spans: dict[TopicPartition, Spans] = {}
        self.origins: dict[str, Origin] = {}
        self._sure: dict[TopicPartition, int | None] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record of the topic. Raises MappingUnreadable for one by somebody else."""
        try:
            where = json.loads(key or b"")
            what = json.loads(value) if value else None
            if "copy" in where:
                self._take_origin(str(where["copy"]), what)
            elif where["mirror"] == self.mirror:
                self._take_span(where, what)
        except (ValueError, TypeError, KeyError):
            raise MappingUnreadable(
                f"{(key or b'')[:80]!r} is no record of a mirror: mapping_topic must name a topic of its own"
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
        """Say up to where a copy is complete; of the records of a partition the newest is right about it."""
        self._sure[partition] = sure

    def last(self, partition: TopicPartition) -> Span | None:
        """Return the newest span of a partition."""
        found = self.spans.get(partition)
        return found.last if found is not None else None

    def sure(self, partition: TopicPartition) -> int | None:
        """Return up to which offset a copy is complete for sure; None where that is all of its last span."""
        return self._sure.get(partition)

    def part(self, partitions: Iterable[TopicPartition]) -> OffsetMapping:
        """Return of some partitions what is needed to go on with them."""
        found = OffsetMapping(self.mirror)
        for each in partitions:
            spans, sure = self.spans.get(each), self.sure(each)
            if spans is not None and spans.last is not None:
                found.spans[each] = Spans(spans.since(spans.last.target if sure is None else sure))
                found.set_sure(each, sure)
        return found


class MappingWriter:
    """Writes what is new in a mapping to its topic."""

    def __init__(self, mapping: OffsetMapping, topic: str, producer: Producer) -> None:
        self.mapping = mapping
        self.topic = topic
        self.producer = producer

    async def add(self, copies: Mapping[str, str], found: Found, sure: Mapping[TopicPartition, int]) -> None:
        """Take spans, of topics with such copies; return once they are written.

        `sure` says up to where copies are complete, where the records of the spans are not written yet.
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
        """Write spans that became shorter, and delete others; all that is left is written for sure."""
        last = self.mapping.last(partition)
        kept = {each.source: each for each in (*changed, *([last] if last is not None else []))}
        waiting = await self._drop(partition, gone)
        await _all(waiting + await self._put(partition, copy, kept.values(), None))

    async def thin_out(self) -> None:
        """Let go of older spans where there are too many."""
        waiting: list[Acknowledgement] = []
        for partition, spans in self.mapping.spans.items():
            waiting += await self._drop(partition, spans.thin_out())
        await _all(waiting)

    async def set_origins(self, origins: Mapping[str, Origin | None]) -> None:
        """Write where copies come from, or delete that (None)."""
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
        keys = [MappedSpan(self.mapping.mirror, partition, each).key() for each in spans]
        return [await self.producer.send(self.topic, None, key, 0) for key in keys]


async def _all(waiting: Iterable[Acknowledgement]) -> None:
    for each in waiting:
        await each
