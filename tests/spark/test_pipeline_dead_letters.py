"""Dead letters that are sent exactly once, while the declaration is mended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.pipelines import FailingLogs
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
LINES = 24
"""In two batches: the second is done again."""
EVERY = {"a": 3, "b": 4, "c": 5}
"""Which lines have no such field."""


@pytest.fixture(params=["ottla", "kafka"])
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Topics]:
    if request.param == "ottla":
        with BrokerProcess(tmp_path / "broker") as ours, Topics(ours.bootstrap_servers) as topics:
            yield topics
        return
    if missing := missing_tools():
        pytest.skip(missing)
    settings = {"transaction.state.log.num.partitions": "8"}
    with KraftKafka(tmp_path / "kafka", settings) as kafka, Topics(kafka.bootstrap_servers) as topics:
        yield topics


class Mended:
    """Lines with some of the fields a, b and c, and declarations that require some of them."""

    def __init__(self, folder: Path, topics: Topics, fresh: Callable[[str], str]) -> None:
        self.folder, self.topics = folder, topics
        self.source = topics.create(fresh("lines"), PARTITIONS)
        self.dead = topics.create(fresh("dead"))

    def fill(self) -> None:
        """Send lines of JSON, to both partitions in turn."""
        lines = [{name: at for name, every in EVERY.items() if at % every} for at in range(LINES)]
        sent = [Sent(value=json.dumps(line).encode(), partition=at % 2) for at, line in enumerate(lines)]
        self.topics.send(self.source, sent)

    def declared(self, required: str) -> Path:
        file = self.folder / "logs.toml"
        file.write_text(
            f"""
kind = "logs"
name = "lines"
checkpoint = "state"
[source]
bootstrap_servers = "{self.topics.bootstrap_servers}"
topics = "{self.source}"
max_records_per_batch = {LINES // 2}
[parse]
format = "json"
fields.a = "INT"
fields.b = "INT"
fields.c = "INT"
required = "{required}"
[lake]
path = "lake"
[dead_letters]
topic = "{self.dead}"
delivery = "exactly-once"
"""
        )
        return file

    def fail(self, required: str) -> None:
        with pytest.raises(PipelineError, match="the power is gone"):
            Run(FailingLogs(**dict(read_job(self.declared(required)))), once=True)()

    def run(self, required: str) -> None:
        Run(read_job(self.declared(required)), once=True)()

    def letters(self, spark: SparkSession) -> Counter[int]:
        """Count the dead letters of each line."""
        frame = spark.read.format("ottla").option("subscribe", self.dead).option("includeHeaders", "true")
        frame = frame.option("kafka.bootstrap.servers", self.topics.bootstrap_servers)
        rows = frame.option("kafka.isolation.level", "read_committed").load().collect()
        headers = [{each.key: each.value.decode() for each in row.headers} for row in rows]
        return Counter(
            int(each["dead-offset"]) * PARTITIONS + int(each["dead-partition"]) for each in headers
        )

    def rows(self) -> Counter[int]:
        """Count the rows of each line in the table."""
        found = pq.read_table(self.folder / "lake").to_pylist()
        return Counter(each["_offset"] * PARTITIONS + each["_partition"] for each in found)


def lacking(*names: str, lines: range = range(LINES)) -> set[int]:
    return {at for at in lines if any(at % EVERY[name] == 0 for name in names)}


def test_lines_that_are_bad_only_since_the_declaration_was_mended_are_sent_besides(
    spark: SparkSession, topics: Topics, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    mended = Mended(tmp_path, topics, fresh)
    mended.fill()
    done, again = range(LINES // 2), range(LINES // 2, LINES)

    mended.fail("a")
    assert mended.letters(spark) == Counter(lacking("a"))
    mended.fail("b")
    mended.run("c")

    # What was sent stays, and is not sent again; what is bad by then is in no table, and among the letters.
    assert mended.letters(spark) == Counter(lacking("a", lines=done) | lacking("a", "b", "c", lines=again))
    good = (set(done) - lacking("a")) | (set(again) - lacking("c"))
    assert mended.rows() == Counter(good)


def test_a_declaration_that_stays_sends_each_dead_letter_once(
    spark: SparkSession, topics: Topics, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    mended = Mended(tmp_path, topics, fresh)
    mended.fill()

    for _ in range(2):
        mended.fail("a, b")
    mended.run("a, b")
    mended.fill()
    mended.run("c")

    later = {at + LINES for at in lacking("c")}
    assert mended.letters(spark) == Counter(lacking("a", "b") | later)
    assert mended.rows() == Counter(set(range(2 * LINES)) - lacking("a", "b") - later)
