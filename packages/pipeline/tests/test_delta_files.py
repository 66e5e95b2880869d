"""Tasks write files of a Delta table, and a commit adds them: reads return the written rows."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.delta_files import (
    Layout,
    Limits,
    file_writing_task,
    layout_of,
    partitions,
    tables_of_bytes,
    write_rows,
)

deltalake = pytest.importorskip("deltalake")

AT = datetime(2024, 5, 1, 6, 30, 0, 123_456, tzinfo=UTC)
ODD = ["a", None, "a b", "a/b", "a%2Fb", "é:=?#&+*", "x\\y", "..", "a'b\"<>|", "__HIVE_DEFAULT_PARTITION__x"]


def _table(path: Path, schema: pa.Schema, *partition_by: str) -> Any:
    return deltalake.DeltaTable.create(str(path), schema, partition_by=list(partition_by) or None)


def _commit(table: Any, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Commit files, and return all rows of the table."""
    from deltalake.transaction import AddAction

    actions = [
        AddAction(each["path"], each["size"], json.loads(each["partitions"]), 0, True, each["stats"])
        for each in files
    ]
    table.create_write_transaction(actions, "append", table.schema(), table.metadata().partition_columns)
    found: list[dict[str, Any]] = deltalake.DeltaTable(table.table_uri).to_pyarrow_table().to_pylist()
    return found


def test_all_kinds_of_partitions_come_back(tmp_path: Path) -> None:
    row = {
        "at": AT,
        "on": True,
        "price": Decimal("1.50"),
        "born": date(2024, 5, 1),
        "part": 1.5,
        "number": -7,
    }
    types = [
        pa.timestamp("us", "UTC"),
        pa.bool_(),
        pa.decimal128(10, 2),
        pa.date32(),
        pa.float64(),
        pa.int32(),
    ]
    nested = ("s", pa.struct([("x", pa.list_(pa.int32()))]))
    named = [("name", pa.string()), *zip(row, types, strict=True)]
    schema = pa.schema([*named, ("n", pa.int64()), nested])
    table = _table(tmp_path, schema, *(name for name, _ in named))
    rows = [row | {"name": name, "n": n, "s": {"x": [n]}} for n, name in enumerate(ODD)]
    rows.append(dict.fromkeys(row) | {"name": "nothing", "n": len(rows), "s": None})
    files = write_rows([pa.RecordBatch.from_pylist(rows, schema)], layout_of(table, table.table_uri))
    assert len(files) == len(rows)
    assert sorted(_commit(table, files), key=lambda each: each["n"]) == rows
    assert _unknown(tmp_path) == []


def _unknown(path: Path) -> list[str]:
    """Return the files that the vacuum of the how-to would remove if all were old."""
    table = deltalake.DeltaTable(str(path))
    found: list[str] = table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    return found


def test_files_that_no_commit_names_are_removed_by_vacuum(tmp_path: Path) -> None:
    table = _table(tmp_path, pa.schema([("day", pa.string()), ("n", pa.int64())]), "day")
    layout = layout_of(table, str(tmp_path))
    rows = [pa.RecordBatch.from_pylist([{"day": "a b", "n": n}], layout.schema) for n in range(2)]
    lost, named = (write_rows([each], layout) for each in rows)
    _commit(table, named)
    assert [unquote(each) for each in _unknown(tmp_path)] == [unquote(lost[0]["path"])]
    deltalake.DeltaTable(str(tmp_path)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert _written(tmp_path) == [1]
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["n"].to_pylist() == [1]


def test_empty_text_is_no_partition_of_its_own() -> None:
    rows = pa.table({"name": ["", None, "a"], "n": [1, 2, 3]})
    assert [(values, found["n"].to_pylist()) for values, found in partitions(rows, ["name"])] == [
        ((None,), [1, 2]),
        (("a",), [3]),
    ]


def test_memory_files_and_row_groups_are_bounded(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64()), ("text", pa.string())])
    table = _table(tmp_path, schema, "day")
    limits = Limits(held_bytes=1 << 20, file_bytes=2 << 20)
    before = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(100):
            rows = range(at * 100, at * 100 + 100)
            texts = [secrets.token_hex(500) for _ in rows]
            assert pa.total_allocated_bytes() - before < 1.5 * limits.held_bytes, "the rest is in files"
            yield pa.record_batch([[f"{n // 4_000}" for n in rows], rows, texts], schema=schema)

    files = write_rows(batches(), layout_of(table, str(tmp_path)), limits)
    assert len(files) > 3
    assert max(each["size"] for each in files) < limits.file_bytes + 2 * limits.held_bytes
    assert Counter(each["n"] for each in _commit(table, files)) == Counter(range(10_000))


def test_a_partition_whose_rows_come_together_is_one_file(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    table = _table(tmp_path, schema, "day")
    rows = pa.table({"day": [f"{n // 7}" for n in range(1_000)], "n": range(1_000)}, schema)
    files = write_rows(rows.to_batches(max_chunksize=10), layout_of(table, str(tmp_path)))
    assert sorted(_written(tmp_path)) == [6, *[7] * 142]
    assert sorted(each["n"] for each in _commit(table, files)) == list(range(1_000))


def test_rows_of_a_partition_keep_their_order() -> None:
    rows = pa.table({"day": [f"{n * 7 % 10}" for n in range(1_000)], "n": range(1_000)})
    found = list(partitions(rows, ["day"]))
    assert [values for values, _ in found] == [(f"{n * 7 % 10}",) for n in range(10)], "as they began"
    assert [some["n"].to_pylist() for _, some in found] == [list(range(n, 1_000, 10)) for n in range(10)]


def test_small_tables_count_for_more_than_their_values() -> None:
    small = pa.table({"n": [1], "more": [2]})
    assert [len(some) for some in tables_of_bytes([small] * 25, 20 << 10)] == [10, 10, 5]
    large = pa.table({"n": range(10_000)})
    assert [len(some) for some in tables_of_bytes([large] * 3, 100_000)] == [20_000, 10_000]


def _written(folder: Path) -> list[int]:
    return [pq.read_metadata(each).num_rows for each in folder.rglob("*.parquet")]


@pytest.mark.parametrize("partition_by", [[], ["day"]])
@pytest.mark.parametrize("batches", [0, 1])
def test_no_rows_are_no_files(tmp_path: Path, partition_by: list[str], batches: int) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    layout = layout_of(_table(tmp_path, schema, *partition_by), str(tmp_path))
    (said,) = file_writing_task(layout)(iter([pa.RecordBatch.from_pylist([], schema)] * batches))
    assert said.num_rows == 0
    assert list(tmp_path.rglob("*.parquet")) == []


def test_rows_get_the_types_of_the_table(tmp_path: Path) -> None:
    table = _table(tmp_path, pa.schema([("n", pa.int64()), ("more", pa.string())]))
    layout = layout_of(table, str(tmp_path))
    files = write_rows([pa.RecordBatch.from_pylist([{"n": 1}], pa.schema([("n", pa.int32())]))], layout)
    assert _commit(table, files) == [{"n": 1, "more": None}]
    with pytest.raises(pa.ArrowInvalid):
        write_rows([pa.RecordBatch.from_pylist([{"n": "many"}])], layout)


def test_null_is_refused_where_the_table_takes_none(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path), pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with pytest.raises(PipelineError, match="forbids null in 'n'"):
        write_rows([pa.RecordBatch.from_pylist([{"n": None}], pa.schema([("n", pa.int64())]))], layout)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("year", [1, 33, 999, 1969, 9999])
def test_times_of_every_year_are_found(tmp_path: Path, year: int, zone: str | None) -> None:
    at = datetime(year, 12, 31, 23, 59, 59, 999_999)
    now = datetime(2024, 5, 1)
    times = pa.array([at, now]).cast(pa.timestamp("us", zone))
    rows = pa.record_batch({"at": times, "n": pa.array([1, 2])})
    table = _table(tmp_path, rows.schema)
    _commit(table, write_rows([rows], layout_of(table, table.table_uri)))
    found = deltalake.DeltaTable(str(tmp_path))
    for n in range(2):
        assert found.to_pyarrow_table(filters=pc.field("at") == times[n])["n"].to_pylist() == [n + 1]
    assert found.to_pyarrow_table(filters=pc.field("at") <= times[1]).num_rows == (1 if at > now else 2)
    assert found.to_pyarrow_table(filters=pc.field("at") >= times[1]).num_rows == (2 if at > now else 1)


def test_readers_leave_out_files_by_stats(tmp_path: Path) -> None:
    table = _table(tmp_path, pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    layout = layout_of(table, str(tmp_path))
    rows = [pa.RecordBatch.from_pylist([{"n": n, "at": AT.replace(hour=n)}], layout.schema) for n in range(3)]
    _commit(table, [file for batch in rows for file in write_rows([batch], layout)])
    dataset = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    import pyarrow.dataset as ds

    for condition in (ds.field("n") == 2, ds.field("at") >= pa.scalar(AT.replace(hour=2))):
        assert len(list(dataset.get_fragments(condition))) == 1
        assert dataset.to_table(filter=condition)["n"].to_pylist() == [2]
