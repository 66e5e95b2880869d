"""The stored and the displayed status of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ottla.pipeline.errors import PipelineError, cause
from ottla.pipeline.jobs.progress_display import running_line, status_rows, summary_line
from ottla.pipeline.jobs.progress_report import Batch, QueryStatus, batch_of, lag, state_now
from ottla.pipeline.jobs.state_files import BatchCounts, BatchKey, StateFile, add_counts

PROGRESS = {
    "batchId": 4,
    "numInputRows": 30,
    "durationMs": {"addBatch": 100, "triggerExecution": 150},
    "eventTime": {"watermark": "2024-01-01T00:00:00.000Z"},
    "sources": [
        {"endOffset": {"t": {"0": 10, "1": 20}}, "latestOffset": {"t": {"0": 15, "1": 20}, "u": {"0": 7}}},
        {"endOffset": '{"v": {"0": 1}}', "latestOffset": '{"v": {"0": 3}}'},
    ],
    "stateOperators": [{"numRowsTotal": 5}, {"numRowsTotal": 6}],
}


def _rows(progress: dict[str, object]) -> int:
    batch = batch_of(progress | {"batchId": 0, "durationMs": {"addBatch": 1}})
    assert batch is not None
    return batch.rows


def test_a_progress_report_is_a_batch() -> None:
    assert batch_of(PROGRESS) == Batch(4, 30, 150.0, 14, "2024-01-01T00:00:00.000Z", 11)
    assert batch_of({"batchId": 5, "durationMs": {"latestOffset": 1}}) is None, "nothing was done"


def test_records_that_a_batch_looks_at_twice_count_once() -> None:
    source = {"startOffset": {"t": {"0": 4}}, "endOffset": {"t": {"0": 10, "1": 5}}}
    assert _rows({"numInputRows": 22, "sources": [source]}) == 11
    assert _rows({"numInputRows": 8, "sources": [source]}) == 8, (
        "offsets have gaps where a topic is compacted"
    )
    assert _rows({"numInputRows": 22, "sources": [source, {}]}) == 22


def test_where_the_first_batch_began_is_no_place_of_its_own() -> None:
    first = {"t": {"0": 10}, "t/from": {"0": 4}}
    assert lag({"sources": [{"endOffset": first, "latestOffset": {"t": {"0": 12}}}]}) == 2
    assert _rows({"numInputRows": 9, "sources": [{"startOffset": {"t": {"0": 7}}, "endOffset": first}]}) == 3
    later = {"startOffset": json.dumps(first), "endOffset": '{"t": {"0": 15}}'}
    assert _rows({"numInputRows": 9, "sources": [later]}) == 5


def test_lag_is_unknown_where_no_source_says() -> None:
    assert lag({"sources": [{"endOffset": None, "latestOffset": None}]}) is None
    assert lag({"sources": [{"endOffset": "text", "latestOffset": "text"}]}) is None
    assert lag({}) is None


def test_a_query_adds_batches_once() -> None:
    status = QueryStatus()
    for batch in (Batch(0, 10, 100, 5), Batch(1, 30, 100, 2), Batch(1, 30, 100, 2)):
        status.add(batch)
    found = status.summary()
    assert (found["batch"], found["batches"], found["rows"], found["lag"]) == (1, 2, 40, 2)
    assert found["rows_per_s"] == 200
    assert found["batch_ms"] == {"median": 100, "p95": 100, "max": 100}


def test_a_query_without_batches() -> None:
    found = QueryStatus().summary()
    assert found["rows_per_s"] == 0
    assert found["batch_ms"]["median"] is None


def test_a_pipeline_that_went_silent_was_killed() -> None:
    assert state_now({"state": "running", "updated_s": 100}, 110) == "running"
    assert state_now({"state": "running", "updated_s": 100}, 116) == "killed"
    assert state_now({"state": "done", "updated_s": 100}, 1_000) == "done"


def test_counts_of_a_batch_done_again_count_once(tmp_path: Path) -> None:
    def batch_counts() -> BatchCounts:
        return BatchCounts(StateFile(tmp_path / "counts" / "main.json"))

    batch_counts().record(0, {"late": 2})
    batch_counts().record(1, {"late": 3, "dead": 1})
    batch_counts().record(1, {"late": 3, "dead": 1})
    assert batch_counts().totals == {"late": 5, "dead": 1}
    batch_counts().record(2, {"dead": 4})
    assert batch_counts().totals == {"late": 5, "dead": 5}


def test_added() -> None:
    assert add_counts({"a": 1}, {"a": 2, "b": 3}) == {"a": 3, "b": 3}
    in_order = [*"gfedcba"]
    assert list(add_counts({"f": 1}, dict.fromkeys(in_order, 1))) == [*"fgedcba"], "as they were named"


def test_a_state_file_is_replaced_whole(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "place.json")
    assert file.read() == {}
    file.write({"id": 1})
    file.write({"id": 2}, durable=False)
    assert file.read() == {"id": 2}
    assert [each.name for each in file.path.parent.iterdir()] == ["place.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_damaged_state_file_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "place.json").write_text(text)
    with pytest.raises(PipelineError, match="is damaged"):
        StateFile(tmp_path / "place.json").read()


def test_keys_of_batches_are_told_apart() -> None:
    assert str(BatchKey("logs-1f.main", 12)) == "logs-1f.main-000012"


STATUS = {
    "name": "x",
    "queries": {
        name: QueryStatus(rows=1000, lag=5, counts={"late": late, "dead": 1}).summary()
        for name, late in (("one", 3), ("two", 2))
    },
}


def test_a_line_about_all_queries() -> None:
    assert summary_line(STATUS) == "1,000 rows, 0 rows/s, lag 5; total 3 late, 1 dead"
    columns, rows = status_rows(json.loads(json.dumps(STATUS)))
    assert dict(zip(columns, rows[0], strict=True))["late"] == 3
    assert rows[0][-1] == "1 dead"


def test_a_query_without_a_batch_has_no_number_of_one() -> None:
    status = {"queries": {"main": QueryStatus().summary()}}
    assert status["queries"]["main"]["batch"] is None
    for batch in (None, -1):  # -1: a file of an old release
        columns, rows = status_rows({"queries": {"main": status["queries"]["main"] | {"batch": batch}}})
        assert dict(zip(columns, rows[0], strict=True))["batch"] is None


FAILURE = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was thrown by Python
  File "x.py", line 1, in do
    raise ValueError
ottla.pipeline.errors.DataLoss: t-0 ends at 3, and was read up to 5 before

	at org.apache.spark.Foo(Foo.scala:1)
"""


def test_the_cause_of_a_failure_is_what_python_said() -> None:
    assert cause(FAILURE) == ("ottla.pipeline.errors.DataLoss: t-0 ends at 3, and was read up to 5 before")
    assert cause("\nno python here\n at x") == "no python here"
    own = FAILURE.replace("errors.DataLoss", "sink.errors.RowsUnfit")
    assert cause(own).startswith("ottla.pipeline.sink.errors.RowsUnfit: t-0")
    assert cause("") == "Spark gives no reason"


CALL_OF_JAVA = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function
  File "x.py", line 1, in do
py4j.protocol.Py4JJavaError: An error occurred while calling o385.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/proc/lake.
\tat org.apache.spark.Foo(Foo.scala:1)
Caused by: java.io.IOException: Mkdirs failed to create file:/proc/lake/_temporary
\tat org.apache.hadoop.Bar(Bar.java:2)
"""


def test_the_cause_of_a_call_that_failed_in_java_is_what_java_said() -> None:
    assert cause(CALL_OF_JAVA) == "java.io.IOException: Mkdirs failed to create file:/proc/lake/_temporary"
    alone = CALL_OF_JAVA.split("Caused by")[0]
    assert cause(alone).startswith("org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed")
    in_a_task = CALL_OF_JAVA + "Caused by: PythonException: Traceback\nottla.errors.DataLoss: t-0 ends at 3\n"
    assert cause(in_a_task) == "ottla.errors.DataLoss: t-0 ends at 3"


@pytest.mark.parametrize(
    ("adds_up", "said"), [(False, "600 rows, 9 rows/s, lag 2"), (True, "900 rows, 13 rows/s, lag 3")]
)
def test_queries_are_summed_up_where_each_has_rows_of_its_own(adds_up: bool, said: str) -> None:
    queries = {
        "orders": {"rows": 600, "rows_per_s": 9.0, "lag": 2, "counts": {}},
        "outbox": {"rows": 300, "rows_per_s": 4.0, "lag": 1, "counts": {}},
    }
    assert summary_line({"adds_up": adds_up, "queries": queries}) == said


def test_a_run_without_batches_says_what_it_waits_for() -> None:
    assert running_line({"queries": {}}) == "starting"
    query = QueryStatus()
    assert running_line({"queries": {"main": query.summary()}}) == "no batch is complete yet"
    query.add(Batch(0, 30, 1_000.0, 0))
    assert running_line({"queries": {"main": query.summary()}}) == "30 rows, 30 rows/s, lag 0"
