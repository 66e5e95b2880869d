"""Batches with right checksums whose records cannot be read: reads fail by partition and offset.

With `failOnDataLoss=false` the rest of such a batch counts as lost: that is logged, and all others are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.errors import DataLoss, UnreadableBatch
from ottla.pipeline.segments.segment_reading import read
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offsets import OffsetRange
from ottla.pipeline.source.range_reader import SourceConsumer
from ottla.pipeline.source.spark_rows import Rows
from ottla.pipeline.values import ValueFormat
from ottla.protocol.storage.segments import SegmentFile, directory_name, file_name
from ottla.protocol.topics import TopicPartition
from peers.crafted_batches import CraftedBatch, crafted_batches, serve_crafted
from peers.segment_queries import SCHEMA, planned

CORPUS = crafted_batches()
TOPIC = "crafted"


def offsets_until_error(batches: Iterator[object], found: list[int]) -> Exception | None:
    """Collect the offsets of rows; return the error that ends them."""
    try:
        for batch in batches:
            found += batch.column("offset").to_pylist()  # type: ignore[attr-defined]
    except DataLoss as error:
        return error
    return None


def check(
    batch: CraftedBatch, name: str, found: list[int], error: Exception | None, *, allowed: bool
) -> None:
    """Compare the rows of a partition with the corpus."""
    if batch.is_legal:
        assert (found, error) == (batch.expected_offsets, None), batch.name
    elif allowed:
        assert (found, error) == ([*batch.expected_offsets, *batch.offsets_behind], None), batch.name
    else:
        assert found == batch.expected_offsets, (batch.name, error)
        unread = found[-1] + 1
        assert f"{name} at offset {unread}: " in str(error), (batch.name, error)
        assert 'option("failOnDataLoss", "false")' in str(error), batch.name


# --- files


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with a closed segment for each batch, which stands between good ones."""
    folder = tmp_path_factory.mktemp("crafted")
    for number, batch in enumerate(CORPUS):
        inside = folder / directory_name(TopicPartition(TOPIC, number))
        inside.mkdir()
        (inside / file_name(0, SegmentFile.LOG)).write_bytes(batch.in_the_middle())
        (inside / file_name(batch.offsets_behind[1] + 1, SegmentFile.LOG)).write_bytes(b"")
    return folder


@pytest.mark.parametrize("allowed", [False, True])
def test_a_segment_is_read_up_to_a_batch_that_cannot_be_read(
    log_dir: Path, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows(SCHEMA, ValueFormat())
    with caplog.at_level(logging.WARNING):
        for number, batch in enumerate(CORPUS):
            path = log_dir / directory_name(TopicPartition(TOPIC, number))
            found: list[int] = []
            error = None
            for task in planned(path):
                error = error or offsets_until_error(read(task, rows, fail_on_data_loss=not allowed), found)
            check(batch, f"{TOPIC}-{number}", found, error, allowed=allowed)
            assert error is None or isinstance(error, UnreadableBatch)
            lost = [line for line in caplog.text.splitlines() if f"{TOPIC}-{number} at offset" in line]
            assert len(lost) == int(allowed and not batch.is_legal), (batch.name, lost)


# --- topics


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that has the same batches, as an older one would have stored them."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        serve_crafted(broker, TOPIC, CORPUS)
        yield broker.bootstrap_servers


@pytest.mark.parametrize("allowed", [False, True])
def test_a_partition_is_read_up_to_a_batch_that_cannot_be_read(
    servers: str, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC, "failOnDataLoss": str(not allowed)}
    config = SourceConfig.of(
        options | {"kafka.retry.backoff.ms": "5", "kafka.fetch.max.wait.ms": "20"}, streaming=False
    )
    consumer = SourceConsumer(config.consumer_config())
    try:
        with caplog.at_level(logging.WARNING):
            for number, batch in enumerate(CORPUS):
                partition, found = TopicPartition(TOPIC, number), list[int]()
                whole = OffsetRange(partition, 0, batch.offsets_behind[1] + 1)
                rows = Rows(SCHEMA, ValueFormat())
                error = offsets_until_error(consumer.read(whole, None, rows, config), found)
                check(batch, str(partition), found, error, allowed=allowed)
                lost = [line for line in caplog.text.splitlines() if f"{partition} at offset" in line]
                assert len(lost) == int(allowed and not batch.is_legal), (batch.name, lost)
    finally:
        consumer.close(10)
