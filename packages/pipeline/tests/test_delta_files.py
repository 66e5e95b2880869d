"""Tasks write files of a Delta table, and a commit names them: what is read is what was written."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs import delta_files
from ottla.pipeline.jobs.delta_files import Layout, layout_of, partitions, write_rows

deltalake = pytest.importorskip("deltalake")

AT = datetime(2024, 5, 1, 6, 30, 0, 123_456, tzinfo=UTC)
ODD = ["a", None, "a b", "a/b", "a%2Fb", "é:=?#&+*", "x\\y", "..", "a'b\"<>|", "__HIVE_DEFAULT_PARTITION__x"]


def _table(path: Path, schema: pa.Schema, *partition_by: str) -> Any:
    return deltalake.DeltaTable.create(str(path), schema, partition_by=list(partition_by) or None)


def _commit(table: Any, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Commit files, and return all that is in the table."""
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
    assert table.vacuum(0, dry_run=True, enforce_retention_duration=False) == [], "no file is unknown"


def test_empty_text_is_no_partition_of_its_own() -> None:
    rows = pa.table({"name": ["", None, "a"], "n": [1, 2, 3]})
    assert [(values, found["n"].to_pylist()) for values, found in partitions(rows, ["name"])] == [
        ((None,), [1, 2]),
        (("a",), [3]),
    ]


def test_memory_files_and_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_files, "HELD_BYTES", 8_000)
    monkeypatch.setattr(delta_files, "FILE_BYTES", 30_000)
    monkeypatch.setattr(delta_files, "OPEN_FILES", 2)
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    table = _table(tmp_path, schema, "day")
    layout = layout_of(table, str(tmp_path))
    read = 0

    def batches() -> Any:
        nonlocal read
        for at in range(100):
            rows = [{"day": f"{n % 3}", "n": n} for n in range(at * 300, at * 300 + 300)]
            read += 300
            assert read - sum(_written(tmp_path)) <= 8_000 // 8 + 30_000 // 8 * 3, "the rest is in files"
            yield pa.RecordBatch.from_pylist(rows, schema)

    files = write_rows(batches(), layout)
    assert len(files) > 3
    assert max(each["size"] for each in files) < 45_000
    assert Counter(each["n"] for each in _commit(table, files)) == Counter(range(30_000))


def _written(folder: Path) -> list[int]:
    return [pq.read_metadata(each).num_rows for each in folder.rglob("*.parquet")]


def test_no_rows_are_no_files(tmp_path: Path) -> None:
    table = _table(tmp_path, pa.schema([("n", pa.int64())]))
    layout = layout_of(table, str(tmp_path))
    (said,) = delta_files.writing(layout)(iter(()))
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
    with pytest.raises(PipelineError, match="takes no null in 'n'"):
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
