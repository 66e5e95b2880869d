"""The meaning of the options of `ottla-log`, and rejected options."""

from __future__ import annotations

import pickle
import re

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.source.config import TopicSelection
from ottla.pipeline.source.offset_bounds import Edge
from ottla.protocol.topics import TopicPartition


def config(**options: str) -> SegmentsConfig:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return SegmentsConfig.of({"path": "/data"} | given)


def test_a_path_is_enough_to_read_all_that_is_closed() -> None:
    found = config()

    assert found.paths == ("/data",)
    assert found.wanted.matches("orders")
    assert found.wanted.names is None
    assert (found.starting.edge, found.ending.edge) == (Edge.EARLIEST, Edge.LATEST)
    assert (found.include_active, found.reads_committed, found.include_headers) == (False, False, False)
    assert (found.fail_on_data_loss, found.most_bytes, found.min_partitions) == (True, 128 * 1024**2, None)


def test_options_are_what_they_say() -> None:
    found = config(
        TOPICS="orders, bills", includeActive="true", isolation__level="read_committed",
        maxBytesPerTask="2m", minPartitions="7", failOnDataLoss="false", includeHeaders="true",
    )  # fmt: skip

    assert found.wanted == TopicSelection(topics=frozenset({"orders", "bills"}))
    assert (found.include_active, found.reads_committed, found.include_headers) == (True, True, True)
    assert (found.fail_on_data_loss, found.most_bytes, found.min_partitions) == (False, 2 * 1024**2, 7)


def test_a_query_of_the_broker_can_keep_its_options() -> None:
    assert config(subscribe="orders").wanted == TopicSelection(topics=frozenset({"orders"}))
    assert config(subscribePattern="ord.*").wanted == TopicSelection(pattern="ord.*")
    assigned = config(assign='{"orders": [1]}').wanted
    assert assigned == TopicSelection(partitions=frozenset({TopicPartition("orders", 1)}))
    assert config(kafka__isolation__level="read_committed").reads_committed


def test_several_paths_come_as_json() -> None:
    found = SegmentsConfig.of({"paths": '["/one", "file:///two/orders-0"]'})

    assert found.paths == ("/one", "/two/orders-0")


@pytest.mark.parametrize(
    ("size", "expected"), [("500000", 500_000), ("1k", 1024), ("3MB", 3 * 1024**2), ("2 GiB", 2 * 1024**3)]
)
def test_sizes_have_units(size: str, expected: int) -> None:
    assert config(maxBytesPerTask=size).most_bytes == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "option 'path' is missing"),
        ({"path": "s3://bucket/orders-0"}, "is not a local file"),
        ({"kafka.bootstrap.servers": "a:1"}, "this source reads files and asks no broker"),
        ({"topics": "a", "subscribe": "b"}, "only one of the options topics and subscribe"),
        ({"topics": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"maxBytesPerTask": "much"}, "must be a size such as 128m"),
        ({"maxBytesPerTask": "0"}, "must be a size such as 128m"),
        ({"isolation.level": "dirty"}, "must be 'read_uncommitted' or 'read_committed', not 'dirty'"),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"topic": "orders"}, "did you mean 'topics'?"),
        ({"maxOffsetsPerTrigger": "5"}, "there is no option 'maxoffsetspertrigger'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        SegmentsConfig.of({"path": "/data"} | options)


def test_a_configuration_travels_to_workers() -> None:
    found = config(topics="orders", startingOffsets='{"orders": {"0": 5}}')
    assert pickle.loads(pickle.dumps(found)) == found
