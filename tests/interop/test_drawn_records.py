"""Records that hypothesis draws, written by each client family in each codec: all are taken and read back.

The brokers read every record before they acknowledge it; what an honest client writes must pass. A batch
goes to the clients of other languages as lines: `batch CODEC`, then a line for each record with its time,
key, value and headers. Bytes are `=` and their hexadecimal digits, null is `-`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path
from typing import Final, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kafka.codec import has_lz4, has_snappy, has_zstd

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer, ConsumerRecord
from peers.fetched_programs import go_program
from peers.java import compile_program
from peers.maven import kafka_clients

pytestmark = pytest.mark.timeout(400)

HERE: Final = Path(__file__).parent
BATCHES: Final = 30
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_S: Final = 60.0
LINGER_MS: Final = 10_000
"""Far longer than a batch is made: a flush ends each."""
_numbers = count(1)


class Drawn(NamedTuple):
    """One record."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(NamedTuple):
    """Records that are sent together."""

    codec: str
    records: list[Drawn]


def drawn_batches(*, null_in_headers: bool) -> list[Batch]:
    """Return thirty batches, the same in each run."""
    # The Python clients refuse records without key and value. Several take a time of 0 for the present.
    # librdkafka ends the name of a header at a NUL.
    name = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
    content = st.binary(max_size=20)
    header = st.tuples(name, st.none() | content if null_in_headers else content)
    large = st.binary(min_size=1, max_size=4).map(lambda part: part * 20_000)
    key, value = st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=300) | large
    record = st.builds(
        lambda time, both, headers: Drawn(time, both[0], both[1], tuple(headers)),
        st.integers(1, 2**42),
        st.tuples(key, value).filter(lambda both: both != (None, None)),
        st.lists(header, max_size=4),
    )
    found: list[Batch] = []
    codecs = cycle(CODECS)

    @settings(
        max_examples=BATCHES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(record, min_size=1, max_size=40))
    def draw(records: list[Drawn]) -> None:
        found.append(Batch(next(codecs), records))

    draw()
    return found


def with_kafka_python(servers: str, topic: str, batches: list[Batch]) -> None:
    installed = {"snappy": has_snappy(), "lz4": has_lz4(), "zstd": has_zstd()}
    for batch in batches:
        codec = batch.codec if installed.get(batch.codec, True) else "none"
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=LINGER_MS,
            batch_size=900_000,
        )
        sent = [
            producer.send(
                topic,
                record.value,
                record.key,
                list(record.headers),
                partition=0,
                timestamp_ms=record.timestamp_ms,
            )
            for record in batch.records
        ]
        producer.flush(FLUSH_S)
        assert [future.get(FLUSH_S).offset for future in sent]
        producer.close()


def with_aiokafka(servers: str, topic: str, batches: list[Batch]) -> None:
    async def write(batch: Batch) -> None:
        codec = None if batch.codec == "none" else batch.codec
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, compression_type=codec, linger_ms=50, max_batch_size=900_000
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in batch.records
            ]
            await producer.flush()
            await asyncio.gather(*sent)

    async def write_all() -> None:
        for batch in batches:
            await write(batch)

    asyncio.run(write_all())


def with_confluent_kafka(servers: str, topic: str, batches: list[Batch]) -> None:
    for batch in batches:
        errors: list[object] = []
        producer = confluent_kafka.Producer({
            "bootstrap.servers": servers, "compression.type": batch.codec, "linger.ms": LINGER_MS,
            "batch.size": 900_000,
        })  # fmt: skip
        for record in batch.records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
                on_delivery=lambda error, _, errors=errors: errors.append(error),
            )
        assert producer.flush(FLUSH_S) == 0
        assert errors == [None] * len(batch.records)


def as_lines(batches: list[Batch]) -> str:
    """Return batches as the programs of other languages read them."""
    lines = []
    for batch in batches:
        lines.append(f"batch {batch.codec}")
        for record in batch.records:
            pairs = [part for name, value in record.headers for part in (_hex(name.encode()), _hex(value))]
            words = [str(record.timestamp_ms), _hex(record.key), _hex(record.value), *pairs]
            lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


def _hex(data: bytes | None) -> str:
    return "-" if data is None else f"={data.hex()}"


def run(command: list[str], servers: str, topic: str, batches: list[Batch]) -> None:
    """Run a program that writes the batches of its standard input."""
    done = subprocess.run(
        [*command, servers, topic], input=as_lines(batches), capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.split() == ["written", str(sum(len(batch.records) for batch in batches))]


def with_franz_go(servers: str, topic: str, batches: list[Batch]) -> None:
    program = go_program(HERE / "go" / "drawn_records.go", "github.com/twmb/franz-go@v1.22.3")
    run([str(program)], servers, topic, batches)


def with_java(servers: str, topic: str, batches: list[Batch]) -> None:
    class_path = kafka_clients("3.9.1")
    classes = compile_program(HERE / "java" / "DrawnRecords.java", class_path)
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    command = ["java", "-Xmx256m", log, "-cp", f"{classes}{os.pathsep}{class_path}", "DrawnRecords"]
    run(command, servers, topic, batches)


Write = Callable[[str, str, list[Batch]], None]
FAMILIES: Final = [
    with_kafka_python,
    with_aiokafka,
    with_confluent_kafka,
    with_franz_go,
    pytest.param(with_java, marks=pytest.mark.java),
]


@pytest.mark.parametrize("write", FAMILIES)
async def test_thirty_drawn_batches_of_a_client_are_taken_and_read_back(
    broker: BrokerProcess, write: Write
) -> None:
    topic = f"drawn-{next(_numbers)}"
    batches = drawn_batches(null_in_headers=write is not with_kafka_python)  # which refuses it
    async with Admin(broker.bootstrap_servers) as admin:
        kept = {"retention.ms": "-1"}  # most of the times are long past
        await admin.topics.create(topic, partitions=1, replication_factor=1, configs=kept)

    await asyncio.to_thread(write, broker.bootstrap_servers, topic, batches)

    assert len(batches) == BATCHES
    expected = [record for batch in batches for record in batch.records]
    assert await read(broker.bootstrap_servers, topic, len(expected)) == expected


async def read(servers: str, topic: str, records: int) -> list[Drawn]:
    found: list[Drawn] = []
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(FLUSH_S):
            while len(found) < records:
                found.append(_drawn(await anext(consumer)))
    return found


def _drawn(record: ConsumerRecord) -> Drawn:
    headers = tuple((name, None if value is None else bytes(value)) for name, value in record.headers)
    return Drawn(record.timestamp, record.key, record.value, headers)
