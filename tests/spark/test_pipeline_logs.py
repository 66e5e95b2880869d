"""Logs become Parquet, each line once: also where the pipeline is killed in the middle."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import LINES_BAD_EVERY, lines
from peers.pipelines import SPARK, FailingLogs, Pipeline
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Place = tuple[str, int, int]


LAKE = 'path = "lake"\npartition_by = "day, hour"'
DELTA = f'{LAKE}\nformat = "delta"'


class Logs:
    """A topic of lines, and a declaration of what becomes of them."""

    def __init__(self, folder: Path, topics: Topics, fresh: Fresh) -> None:
        self.folder = folder
        self.topics = topics
        self.topic = topics.create(fresh("lines"), 2)
        self.dead = topics.create(fresh("dead"))

    def declare(self, parse: str, more: str = "", per_batch: int = 1_000, lake: str = LAKE) -> Path:
        """Write a declaration, and return its file."""
        file = self.folder / "logs.toml"
        file.write_text(
            f"""
kind = "logs"
name = "lines"
checkpoint = "state"
trigger = "100ms"
[source]
bootstrap_servers = "{self.topics.bootstrap_servers}"
topics = "{self.topic}"
max_records_per_batch = {per_batch}
[parse]
{parse}
[lake]
{lake}
[dead_letters]
topic = "{self.dead}"
{SPARK}{more}
"""
        )
        return file

    def send(self, *values: str | bytes | None) -> None:
        """Send lines, to both partitions in turn."""
        sent = [
            Sent(value=each.encode() if isinstance(each, str) else each, partition=at % 2, key=b"k")
            for at, each in enumerate(values)
        ]
        self.topics.send(self.topic, sent)

    def rows(self) -> list[dict[str, object]]:
        """Return what is in the lake."""
        return [row for folder in self.folder.glob("lake*") for row in _rows(folder)]

    def places(self) -> Counter[Place]:
        """Count the records that rows of the lake came from."""
        return Counter(
            (str(each["_topic"]), int(str(each["_partition"])), int(str(each["_offset"])))
            for each in self.rows()
        )

    def letters(self, spark: SparkSession) -> list[dict[str, str]]:
        """Return the headers of dead letters."""
        frame = spark.read.format("ottla").option("subscribe", self.dead).option("includeHeaders", "true")
        rows = frame.option("kafka.bootstrap.servers", self.topics.bootstrap_servers).load().collect()
        return [{each.key: each.value.decode() for each in row.headers} for row in rows]


def _rows(folder: Path) -> list[dict[str, object]]:
    is_delta = (folder / "_delta_log").exists()
    table = DeltaTable(folder).to_pyarrow_table() if is_delta else pq.read_table(folder)
    found: list[dict[str, object]] = table.to_pylist()
    return found


@pytest.fixture
def logs(tmp_path: Path, topics: Topics, fresh: Fresh) -> Logs:
    """A topic of its own."""
    return Logs(tmp_path, topics, fresh)


def _run(file: Path) -> dict[str, object]:
    said: dict[str, object] = {}
    Run(read_job(file), once=True, watch=said.update)()
    return said


JSON = """
format = "json"
fields.time = "TIMESTAMP"
fields.level = "STRING"
fields.code = "INT"
required = "time"
"""


@pytest.mark.slice
def test_json(spark: SparkSession, logs: Logs) -> None:
    logs.send(
        '{"time": "2024-05-01T06:30:00Z", "level": "INFO", "code": 3}',
        '{"time": "2024-05-01T07:30:00+01:00", "more": 1}\n',
        '{"time": "2024-05-01T06:30:00Z", "code": "many"}',
        "no json {",
        '{"level": "INFO"}',
        None,
        "",
        b"\xff\xfe",
    )
    _run(logs.declare(JSON))
    assert [(str(each["time"]), each["level"], each["code"], str(each["hour"])) for each in logs.rows()] == [
        ("2024-05-01 06:30:00+00:00", "INFO", 3, "6"),
        ("2024-05-01 06:30:00+00:00", None, None, "6"),
    ]
    reasons = {
        (each["dead-partition"], each["dead-offset"]): each["dead-reason"] for each in logs.letters(spark)
    }
    assert reasons == {
        ("0", "1"): "does not fit the fields",
        ("1", "1"): "is no JSON",
        ("0", "2"): "has no time",
        ("1", "2"): "has no value",
        ("0", "3"): "is no JSON",
        ("1", "3"): "is no JSON",
    }


def test_a_regular_expression(spark: SparkSession, logs: Logs) -> None:
    logs.send(
        "2024-05-01 06:30:00 WARN took 17 ms",
        "2024-05-01 06:30:00 WARN took long ms",
        "2024-05-01 WARN",
        "2024-99-01 06:30:00 WARN took 17 ms",
        "\x01\x01",
    )
    _run(
        logs.declare(
            r"""
format = "regex"
pattern = '(?<at>\S+ \S+) (?<level_name>[A-Z]+) took (?<took_ms>\S+) ms'
time_format = "yyyy-MM-dd HH:mm:ss"
fields.at = "TIMESTAMP"
fields.took_ms = "INT"
"""
        )
    )
    assert [(each["level_name"], each["took_ms"], each["day"].__str__()) for each in logs.rows()] == [
        ("WARN", 17, "2024-05-01")
    ]
    assert {
        each["dead-offset"] + each["dead-partition"]: each["dead-reason"] for each in logs.letters(spark)
    } == {
        "01": "took_ms is no INT: long",
        "10": "does not match the pattern",
        "11": "at is no TIMESTAMP: 2024-99-01 06:30:00",
        "20": "does not match the pattern",
    }


def test_lines_of_web_servers(spark: SparkSession, logs: Logs) -> None:
    logs.send(*lines(200))
    said = _run(logs.declare('format = "nginx"'))
    queries = said["queries"]
    assert isinstance(queries, dict)
    assert queries["main"]["counts"] == {"good": 196, "dead": 4}
    assert queries["main"]["rows"] == 200, "although bad lines are looked at twice"
    rows = logs.rows()
    assert len(rows) == 196
    assert {type(each["status"]) for each in rows} == {int}
    assert {each["user"] for each in rows} == {None, "anna", "maija"}
    assert {each["dead-pipeline"] for each in logs.letters(spark)} == {"lines"}


def test_the_sample_is_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text(sample_declaration("logs"))
    assert read_job(tmp_path / "sample.toml").kind == "logs"


def test_another_checkpoint_adds_and_overwrites_nothing(spark: SparkSession, logs: Logs) -> None:
    logs.send(*lines(20))
    file = logs.declare('format = "nginx"')
    _run(file)
    file.write_text(file.read_text().replace('checkpoint = "state"', 'checkpoint = "other"'))
    _run(file)
    assert set(logs.places().values()) == {2}, (
        "all was read again, and batch 0 of one is not that of the other"
    )


DYING = """
import os
from pathlib import Path
from typing import Literal
from ottla.pipeline.jobs.logs import Logs
from ottla.pipeline.jobs.declaration_files import read_job

died = Path(__file__).with_name("died")

class Dying(Logs):
    "Dies once, after a batch was written and before Spark knows."
    kind: Literal["logs"]

    def _write(self, run, parsed, batch_id):
        counts = super()._write(run, parsed, batch_id)
        if batch_id == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        return counts

pipeline = Dying(**dict(read_job(Path(__file__).with_name("logs.toml"))))
"""


def _expected(logs: Logs, count: int) -> tuple[set[Place], set[Place]]:
    """Return the places of good lines and of bad ones."""
    places = [(logs.topic, at % 2, at // 2) for at in range(count)]
    bad = {place for at, place in enumerate(places) if at % LINES_BAD_EVERY == LINES_BAD_EVERY - 1}
    return set(places) - bad, bad


def _check(spark: SparkSession, logs: Logs, pipeline: Pipeline, count: int) -> None:
    """Check that all lines are where they belong, once."""
    counts = pipeline.status()["queries"]["main"]["counts"]
    good, bad = _expected(logs, count)
    assert logs.places() == Counter(good)
    letters = [
        (each["dead-topic"], int(each["dead-partition"]), int(each["dead-offset"]))
        for each in logs.letters(spark)
    ]
    assert set(letters) == bad, "with delivery=dedupe letters may come twice, and say their place"
    assert counts == {"good": len(good), "dead": len(bad)}, "what is done again counts once"


@pytest.mark.parametrize("lake", [LAKE, DELTA], ids=["parquet", "delta"])
def test_killed_between_writing_and_committing(
    spark: SparkSession, logs: Logs, tmp_path: Path, lake: str
) -> None:
    logs.send(*lines(400))
    logs.declare('format = "nginx"', per_batch=100, lake=lake)
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    pipeline = Pipeline(file, tmp_path / "state")
    with pytest.raises(AssertionError):
        pipeline.once()
    assert (pipeline.planned(), pipeline.committed()) == (2, 1)
    assert len(logs.rows()) == 196, "batch 1 is written, and Spark does not know"
    pipeline.once()
    _check(spark, logs, pipeline, 400)


MENDED = """
format = "json"
fields.made = "TIMESTAMP"
fields.time = "TIMESTAMP"
required = "time, made"
"""


def _event(at: int) -> str:
    made = {} if at % 4 == 3 else {"made": "2024-07-02T12:00:00Z"}
    return json.dumps({"time": "2024-05-01T06:30:00Z"} | made)


@pytest.mark.parametrize(
    ("before", "after", "is_moved"),
    [
        (LAKE, LAKE, True),
        (LAKE, 'path = "lake"\npartition_by = "hour"', True),
        (LAKE, LAKE.replace('"lake"', '"lake [b], {c}*"'), True),
        (LAKE.replace('"lake"', '"lake [b], {c}*"'), LAKE, True),
        (LAKE, DELTA.replace('"lake"', '"lake2"'), True),
        (DELTA, DELTA, False),
        (DELTA, LAKE.replace('"lake"', '"lake2"'), False),
    ],
    ids=["parse", "partitions", "to-odd", "from-odd", "to-delta", "delta", "from-delta"],
)
def test_a_declaration_corrected_before_a_repeated_batch_duplicates_nothing(
    spark: SparkSession, logs: Logs, before: str, after: str, is_moved: bool
) -> None:
    """With what is mended rows have other days, and some are bad. What Delta has by then, it keeps."""
    logs.send(*(_event(at) for at in range(40)))
    places = [(logs.topic, at % 2, at // 2) for at in range(40)]
    with pytest.raises(PipelineError, match="the power is gone"):
        Run(FailingLogs(**dict(read_job(logs.declare(JSON, per_batch=20, lake=before)))), once=True)()
    assert logs.places() == Counter(places), "both batches are written, and Spark knows of one"
    _run(logs.declare(MENDED, per_batch=20, lake=after))
    bad = {places[at] for at in range(20, 40) if at % 4 == 3} if is_moved else set()
    assert logs.places() == Counter(set(places) - bad)
    assert len(logs.letters(spark)) == len(bad)
    assert sum(str(row["hour"]) == "12" for row in logs.rows()) == (15 if is_moved else 0)


def test_delta_takes_a_batch_that_the_driver_could_not(logs: Logs, tmp_path: Path) -> None:
    """Spark ends what sends a driver more than it said it takes."""
    logs.send(*lines(30_000))
    file = logs.declare('format = "nginx"', 'driver.maxResultSize = "1m"', per_batch=100_000, lake=DELTA)
    status = Pipeline(file, tmp_path / "state").once()
    assert status["queries"]["main"]["counts"] == {"good": 29_400, "dead": 600}
    table = DeltaTable(tmp_path / "lake")
    assert logs.places() == Counter(_expected(logs, 30_000)[0])
    assert [each["operation"] for each in table.history()] == ["WRITE", "CREATE TABLE"], "in one commit"


SLOW_PYTHON = """#!/bin/sh
case "$*" in
*python_streaming_source_runner*) mkdir {flag} 2>/dev/null && sleep 15 ;;
esac
exec {python} "$@"
"""


@pytest.mark.timeout(900)
def test_a_python_that_starts_slowly_only_costs_time(
    spark: SparkSession, logs: Logs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, flag = tmp_path / "slow-python", tmp_path / "was-slow"
    slow.write_text(SLOW_PYTHON.format(flag=flag, python=sys.executable))
    slow.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(slow))
    logs.send(*lines(400))
    pipeline = Pipeline(logs.declare('format = "nginx"'), tmp_path / "state")
    pipeline.once()
    assert flag.exists()
    _check(spark, logs, pipeline, 400)


@pytest.mark.timeout(900)
def test_without_its_java_it_ends_and_says_so(spark: SparkSession, logs: Logs, tmp_path: Path) -> None:
    logs.send(*lines(2_000))
    pipeline = Pipeline(logs.declare('format = "nginx"', per_batch=100), tmp_path / "state")
    pipeline.start()
    pipeline.until(lambda: pipeline.committed() > 1)
    assert pipeline.kill_java() == 1
    assert "Spark's Java ended" in pipeline.said()
    assert "Traceback" not in pipeline.said()
    assert pipeline.status()["state"] == "failed"
    assert "Spark's Java ended" in pipeline.status()["error"]
    pipeline.once()
    _check(spark, logs, pipeline, 2_000)


@pytest.mark.timeout(900)
def test_a_signal_to_all_its_processes_stops_it(spark: SparkSession, logs: Logs, tmp_path: Path) -> None:
    logs.send(*lines(2_000))
    pipeline = Pipeline(logs.declare('format = "nginx"', per_batch=100), tmp_path / "state")
    pipeline.start()
    pipeline.until(lambda: pipeline.committed() > 1)
    assert pipeline.stop_all() == 0, pipeline.said()
    assert pipeline.status()["state"] == "stopped"
    pipeline.once()
    _check(spark, logs, pipeline, 2_000)


@pytest.mark.timeout(900)
def test_ctrl_c_lets_it_finish_its_batch(spark: SparkSession, logs: Logs, tmp_path: Path) -> None:
    logs.send(*lines(2_000))
    pipeline = Pipeline(logs.declare('format = "nginx"', per_batch=100), tmp_path / "state")
    pipeline.start()
    pipeline.until(lambda: pipeline.committed() > 1)
    assert pipeline.interrupt() == 0
    assert pipeline.status()["state"] == "stopped"
    pipeline.once()
    _check(spark, logs, pipeline, 2_000)


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_killed_in_the_middle(spark: SparkSession, logs: Logs, tmp_path: Path, rounds: int) -> None:
    each = 2_000
    logs.send(*lines(each))
    pipeline = Pipeline(logs.declare('format = "nginx"', per_batch=250), tmp_path / "state")
    chance = random.Random(rounds)
    for number in range(rounds):
        begun = pipeline.planned()
        pipeline.start()
        pipeline.until(lambda begun=begun: pipeline.planned() > begun + 1)  # type: ignore[misc]
        time.sleep(chance.random() * 0.5)
        pipeline.kill()
        more = list(lines(each * (number + 2)))[each * (number + 1) :]
        logs.send(*more)
    pipeline.once()
    _check(spark, logs, pipeline, each * (rounds + 1))


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_workers_and_broker_are_killed(
    spark: SparkSession, tmp_path: Path, fresh: Fresh, rounds: int
) -> None:
    each = 1_000
    with BrokerProcess(tmp_path / "broker") as broker, Topics(broker.bootstrap_servers) as topics:
        logs = Logs(tmp_path, topics, fresh)
        logs.send(*lines(each))
        pipeline = Pipeline(logs.declare('format = "nginx"', per_batch=250), tmp_path / "state")
        pipeline.start()
        for number in range(rounds):
            more = list(lines(each * (number + 2)))[each * (number + 1) :]
            pipeline.kill_worker_and(broker, partial(logs.send, *more))
        pipeline.until(lambda: pipeline.committed() >= 4 * (rounds + 1))
        assert pipeline.stop() == 0
        pipeline.once()
        _check(spark, logs, pipeline, each * (rounds + 1))
