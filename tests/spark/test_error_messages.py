"""The error of a data source begins with its message, on real Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.broker.testing import BrokerProcess
from peers.spark import Stream
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Table = Callable[[Mapping[str, object]], DataFrame]

NOWHERE = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.bootstrap.timeout.ms": "500"}


def failure_of(run: Callable[[], object]) -> str:
    """Return the message of the error that a query raises."""
    with pytest.raises(Exception) as failure:  # noqa: PT011 - Spark's own types, of which each test checks the text
        run()
    return str(failure.value)


def check_begins(text: str, condition: str, error: str) -> None:
    """Check that the message of an error of ours follows Spark's own words at once."""
    assert re.match(rf"{condition}[^:\n]*: (ottla\.[\w.]+: )?{error}", text), text
    assert "Traceback" not in text


@pytest.mark.slice
def test_an_option_that_does_not_exist_is_the_first_words(table: Table) -> None:
    text = failure_of(lambda: table({"subscribe": "orders", "startingOfsets": "latest"}).collect())
    check_begins(
        text,
        r"\[PYTHON_DATA_SOURCE_ERROR\]",
        "there is no option 'startingofsets'; did you mean 'startingOffsets'",
    )


@pytest.mark.slice
def test_brokers_that_cannot_be_reached_are_the_first_words(table: Table) -> None:
    text = failure_of(lambda: table({"subscribe": "orders", **NOWHERE}).collect())
    check_begins(text, r"\[PYTHON_DATA_SOURCE_ERROR\]", "reaching the cluster did not succeed within 0.5 s")


def test_rows_that_cannot_be_records_are_the_first_words(spark: SparkSession, broker: BrokerProcess) -> None:
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS drink")
    writer = rows.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    text = failure_of(writer.mode("append").save)
    check_begins(text, r"\[PYTHON_DATA_SOURCE_ERROR\]", "the rows have no column 'value'")


def test_files_that_are_no_segments_are_the_first_words(spark: SparkSession, tmp_path: Path) -> None:
    text = failure_of(spark.read.format("ottla-log").load(str(tmp_path)).collect)
    check_begins(text, r"\[PYTHON_DATA_SOURCE_ERROR\]", "option 'path'")


@pytest.mark.slice
def test_the_error_of_a_stream_is_the_first_words(stream: Callable[..., Stream]) -> None:
    query = stream({"subscribe": "orders", **NOWHERE})
    query.start()
    text = query.failure().partition("terminated with exception: ")[2]
    check_begins(
        text, r"\[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR\]", "reaching the cluster did not succeed within"
    )


@pytest.mark.slice
def test_the_error_of_a_task_is_the_first_words(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("malformed"))
    topics.send(name, [Sent(value=b"no JSON")])
    given: dict[str, Any] = {"value.format": "json", "value.schema": "drink STRING", "value.mode": "failfast"}
    text = failure_of(table({"subscribe": name, **given}).collect)
    assert re.search(r"Python worker:\s+(ottla\.[\w.]+: )?a value is not json of value\.schema", text), text
    assert "Traceback" not in text
