"""Topics and their copies in other clusters, for tests of mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ottla.admin import Admin
from ottla.consumer import ConsumerRecord, SyncConsumer
from ottla.pipeline.jobs.mirroring.offset_spans import Spans
from ottla.protocol.topics import TopicPartition
from peers.topics import Sent


def read(servers: str, topic: str) -> list[ConsumerRecord]:
    """Return all records that a reader of committed records sees in a topic."""
    with SyncConsumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed",
        consumer_timeout_ms=1_500,
    ) as consumer:  # fmt: skip
        return list(consumer)


def names(servers: str, stem: str) -> set[str]:
    """Return the topics whose names contain a word."""

    async def ask() -> set[str]:
        async with Admin(servers) as admin:
            return {each.name for each in await admin.topics.list() if stem in each.name}

    return asyncio.run(ask())


def what(records: list[ConsumerRecord]) -> dict[int, list[tuple[object, ...]]]:
    """Return everything that a copy has to preserve, in order, by partition."""
    found: dict[int, list[tuple[object, ...]]] = {}
    for each in records:
        kept = (each.key, each.value, each.timestamp, tuple(each.headers))
        found.setdefault(each.partition, []).append(kept)
    return found


def varied(count: int, start: int = 0) -> list[Sent]:
    """Return various records: without keys, tombstones, with headers."""
    return [
        Sent(
            key=None if number % 5 == 0 else b"key-%d" % (number % 17),
            value=None if number % 11 == 0 else b"value-%d" % number,
            timestamp_ms=1_714_557_600_000 + number,
            headers=(("number", b"%d" % number), ("empty", None)) if number % 3 else (),
        )
        for number in range(start, start + count)
    ]


def check_translations(
    mapping: Mapping[TopicPartition, Spans], originals: list[ConsumerRecord], copies: list[ConsumerRecord]
) -> None:
    """Compare the mapping of each record with its actual offset; records have unique timestamps."""
    copied = {(each.partition, each.offset): each.timestamp for each in copies}
    for each in originals:
        offset = mapping[each.topic_partition].translate(each.offset)
        assert offset is not None
        assert copied[each.partition, offset] == each.timestamp
