"""`ottla pipeline new`: a declaration drafted from a sample of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.cli import pipeline
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.drafts import Sample, drafted, spark_type
from ottla.pipeline.jobs.logs import Logs
from ottla.producer import SyncProducer

LINE = '203.0.113.9 - - [10/Oct/2024:13:55:36 +0000] "GET / HTTP/1.1" 200 2326 "-" "curl/8"'


def job_of(folder: Path, topic: str, *values: bytes) -> Logs:
    """Return the declared job of a draft, which is free of mistakes."""
    file = folder / "draft.toml"
    file.write_text(drafted(topic, [*map(Sample, values)], "127.0.0.1:9092"), encoding="utf-8")
    job = read_job(file)
    assert isinstance(job, Logs)
    return job


def test_json_objects_become_columns_with_types(tmp_path: Path) -> None:
    orders = [
        {"id": 1, "drink": "tea", "price": 2, "at": "2024-10-01T12:00:00Z", "day": "2024-10-01", "new": True},
        {"id": 2, "drink": None, "price": 2.5, "at": "2024-10-01T12:00:01.5Z", "day": "2024-10-02",
         "lines": [{"sku": "x", "n": 1}], "ship to": "Wien", "ID": 7, "_offset": 3},
    ]  # fmt: skip

    job = job_of(tmp_path, "orders", *(json.dumps(order).encode() for order in orders))

    assert job.parse.fields == {
        "id": "BIGINT", "drink": "STRING", "price": "DOUBLE", "at": "TIMESTAMP", "day": "DATE",
        "new": "BOOLEAN", "lines": "ARRAY<STRUCT<`sku`: STRING, `n`: BIGINT>>",
    }  # fmt: skip
    assert job.lake.partition_by == []
    text = (tmp_path / "draft.toml").read_text(encoding="utf-8")
    assert text.startswith("# Drafted from 2 records of topic orders: 2 are JSON objects.\n")
    assert '# Left out, because its name is taken or odd: "ship to"\n' in text
    assert job.dead_letters.topic == "orders-dead"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "STRING"), ([None, 1], "BIGINT"), ([1, 2.0], "DOUBLE"), ([1 << 70, 1], "STRING"),
        ([True, 1], "STRING"), (["2024-01-01", "2024-01-01T00:00:00Z"], "STRING"),
        ([[], [1.5]], "ARRAY<DOUBLE>"),
        ([{}], "STRING"), ([{"a": 1}, {"b": None}], "STRUCT<`a`: BIGINT, `b`: STRING>"),
        ([{"a": 1}, 1], "STRING"),
    ],
)  # fmt: skip
def test_a_type_fits_all_values_of_a_sample(values: list[object], kind: str) -> None:
    assert spark_type(values) == kind


def test_lines_of_web_servers_are_recognized(tmp_path: Path) -> None:
    job = job_of(tmp_path, "access", *[LINE.encode()] * 20, b"broken")
    common = LINE.partition(' "-"')[0]

    assert (job.parse.format, job.lake.partition_by) == ("nginx", ["day"])
    assert job_of(tmp_path, "access", common.encode()).parse.pattern == "common"


def test_other_text_becomes_a_column_to_take_apart(tmp_path: Path) -> None:
    job = job_of(tmp_path, "access", b"INFO begun", b"WARN slow")

    assert (job.parse.format, job.parse.names()) == ("regex", ("line",))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "has no record with a value"),
        ([b"\0\0\0\0\7abc"], "begin with the id of a schema: give the address of their schema registry"),
        ([b"\xff\xfe"], "neither JSON objects nor text"),
        ([b"{}"], "without a usable field"),
    ],
)
def test_values_that_no_pipeline_reads_are_refused_in_one_line(values: list[bytes], words: str) -> None:
    with pytest.raises(PipelineError, match=words) as refused:
        drafted("orders", [*map(Sample, values)], "127.0.0.1:9092")
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a topic of orders and an empty one."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        with SyncProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(500):
                producer.send("orders", b'{"id": %d}' % number).result(30)
        yield broker.bootstrap_servers


def call(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(pipeline, ["new", *words], input=answer)


def test_a_draft_is_shown_before_it_is_written(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"

    refused = call("orders", "-b", servers, "-o", str(file), "--sample", "50", answer="n\n")
    assert not file.exists()
    written = call("orders", "-b", servers, "-o", str(file), "--yes")

    assert refused.exit_code == 1
    assert refused.output.startswith("# Drafted from 50 records of topic orders: 50 are JSON objects.\n")
    assert f"Write {file}? [y/N]: n" in refused.output
    assert written.exit_code == 0, written.output
    assert file.read_text(encoding="utf-8") in written.output
    assert f"Wrote {file}: ottla pipeline run {file} --once" in written.output
    checked = CliRunner().invoke(pipeline, ["check", str(file)])
    assert checked.output == f"{file}: orders (logs) is valid\n"
    again = call("orders", "-b", servers, "-o", str(file), "--yes")
    assert again.output == f"Error: {file} exists already: give another file with --output\n"


def test_a_topic_or_a_broker_that_is_not_there_is_one_line(servers: str, tmp_path: Path) -> None:
    missing = call("ordres", "-b", servers, "-o", str(tmp_path / "a.toml"))
    nowhere = call("orders", "-b", "127.0.0.1:1", "-o", str(tmp_path / "a.toml"))

    assert missing.output == "Error: topic 'ordres' does not exist\n"
    assert nowhere.exit_code == 1
    assert nowhere.output.startswith("Error: ")
    assert nowhere.output.count("\n") == 1
