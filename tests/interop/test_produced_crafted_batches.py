"""Batches with right checksums and wrong contents, produced to Apache Kafka 3.9 and to Ottla."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder, Codec
from peers.apache_kafka import ApacheKafka
from peers.crafted_batches import TIME_MS, CraftedBatch, crafted_batches, lz4_batches

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

VERSION: Final = 9
BOUND_S: Final = 60.0
_LARGE: Final = {"max.message.bytes": str(32 << 20)}
TOPICS: Final = {"crafted": _LARGE, "compacted": {"cleanup.policy": "compact", **_LARGE}}
TAKEN_BY_APACHE_KAFKA_ALONE: Final = {
    # Two records at one offset, or records behind the end of their batch: consumers skip them.
    "offset-delta-repeated", "offset-delta-falls", "offset-delta-negative", "offset-delta-beyond-the-last",
    "offset-delta-seven-of-one-record",
    # Java's readers pass over bytes behind a frame, others stop there.
    "garbage-behind-frame", "four-bytes-behind-frame",
    # Apache Kafka does not compare the length of a compressed record with its fields; its consumer does.
    "record-length-2^31", "record-length-one-less", "record-length-one-more", "record-length-max",
    "record-length-zero", "record-length-negative",
    # Java's readers do not compare the checksum of the contents, those of other languages do.
    "lz4-content-checksum-wrong",
    # Apache Kafka refuses it only where the topic has LogAppendTime, and else clears the attribute.
    "log-append-time",
}  # fmt: skip
"""Kinds that Apache Kafka stores, at least in one codec."""


CORPUS: Final = [*crafted_batches(), *lz4_batches()]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m"))
        ottla = stack.enter_context(BrokerProcess(tmp_path_factory.mktemp("ottla")))
        yield {"kafka": kafka.bootstrap_servers, "ottla": ottla.bootstrap_servers}


async def verdicts(servers: str, topic: str, corpus: Sequence[CraftedBatch]) -> dict[str, ErrorCode]:
    """Produce every batch of a corpus with acks=1; return the error code of each."""
    async with Admin(servers) as admin, asyncio.timeout(BOUND_S):
        if topic not in {found.name for found in await admin.topics.list()}:
            await admin.topics.create(topic, partitions=1, configs=TOPICS[topic])
    host, _, port = servers.partition(":")
    found = {}
    async with Connection(Address(host, int(port))) as connection, asyncio.timeout(BOUND_S):
        for batch in corpus:
            data = PartitionProduceData(index=0, records=batch.data)
            request = ProduceRequest(
                acks=1, timeout_ms=5_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
            )
            answer = await connection.send(request, ProduceResponse, max_version=VERSION)
            code = answer.responses[0].partition_responses[0].error_code
            found[batch.name] = ErrorCode(code)
    return found


@pytest.mark.parametrize("topic", TOPICS)
async def test_nothing_that_apache_kafka_takes_is_refused_but_what_readers_lose(
    servers: dict[str, str], topic: str
) -> None:
    theirs, ours = [await verdicts(servers[kind], topic, CORPUS) for kind in ("kafka", "ottla")]

    print("\n".join(row(batch, theirs, ours) for batch in CORPUS))
    refused = [batch for batch in CORPUS if ours[batch.name] and not theirs[batch.name]]
    stored = [batch for batch in CORPUS if theirs[batch.name] and not ours[batch.name]]
    assert {batch.kind for batch in refused} <= TAKEN_BY_APACHE_KAFKA_ALONE
    assert stored == []
    both = [batch.name for batch in CORPUS if ours[batch.name] and theirs[batch.name]]
    assert not [name for name in both if ours[name] == ErrorCode.UNKNOWN_SERVER_ERROR]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_a_batch_of_any_size_without_compression_is_taken_unless_it_has_to_be_compacted(
    servers: dict[str, str], codec: Codec
) -> None:
    """One that unfolds to more than 256 MiB is never opened whole, neither by Apache Kafka's broker nor here.

    Its cleaner opens a batch whole, and gives the partition up where the heap does not suffice; here such a
    batch is refused.
    """
    builder = BatchBuilder(1 << 30, codec=codec)
    for _ in range(3):
        builder.append(b"key", bytes(100 << 20), TIME_MS)
    huge = [CraftedBatch(f"huge-{codec.name.lower()}", "huge", codec, builder.build(), (0, 1, 2))]

    found = {
        (kind, topic): (await verdicts(servers[kind], topic, huge))[huge[0].name]
        for kind in servers
        for topic in TOPICS
    }

    assert found == {
        ("kafka", "crafted"): ErrorCode.NONE,
        ("kafka", "compacted"): ErrorCode.NONE,
        ("ottla", "crafted"): ErrorCode.NONE,
        ("ottla", "compacted"): ErrorCode.MESSAGE_TOO_LARGE,
    }


def row(batch: CraftedBatch, theirs: dict[str, ErrorCode], ours: dict[str, ErrorCode]) -> str:
    return f"{batch.name:50} {theirs[batch.name].name:28} {ours[batch.name].name}"
