"""Declarations of change logs, and the merge of changes. (Reading records needs Spark.)"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipeline.jobs.change_reader import DELETED
from ottla.pipeline.jobs.changelog import Changelog, Merged
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import changes
from ottla.pipeline.jobs.state_files import BatchKey


def changelog(changes: dict[str, Any], **given: Any) -> Changelog:
    base: dict[str, Any] = {
        "kind": "changelog", "name": "customers", "checkpoint": "state",
        "source": {"bootstrap_servers": "a:9092", "topics": ["customers"]},
        "changes": {"key": {"id": "BIGINT"}, "columns": {"name": "STRING"}} | changes,
        "table": {"path": "lake"},
    }  # fmt: skip
    return Changelog.model_validate(base | given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"form": "flat", "operation": "__deleted", "deletes": "true"},
        {"form": "maxwell", "table": "shop.customers", "key_from": "value"},
        {"key": {"a": "DECIMAL(8, 2)", "b": "date"}},
    ],
)
def test_valid_declarations(given: dict[str, Any]) -> None:
    assert list(changelog(given).inspect()) == []


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [
        ({"key": {"id": "NUMBER"}}, "changes.key.id", "'NUMBER' is not a type"),
        ({"key": {"id": "DOUBLE"}}, "changes.key.id", "must not be DOUBLE: equal floating-point values"),
        ({"key": {"id": "STRUCT<a: INT>"}}, "changes.key.id", "use its parts as columns"),
        ({"columns": {"id": "STRING"}}, "changes.columns.id", "exists already"),
        ({"columns": {"a": "STRING", "A": "STRING"}}, "changes.columns.A", "exists already"),
        ({"columns": {"_x": "STRING"}}, "changes.columns._x", "must not begin with _"),
        ({"columns": {'x"': "STRING"}}, 'changes.columns.x"', "must not contain quotes"),
        ({"operation": "kind"}, "changes.operation", "is for the form flat; rows has its own operations"),
        ({"form": "debezium", "deletes": "x"}, "changes.deletes", "is for the form flat"),
        ({"table": "shop.customers"}, "changes.table", "is for debezium and maxwell"),
        ({"form": "maxwell", "table": "customers"}, "changes.table", "must be database.table"),
    ],
)
def test_invalid_settings_are_mistakes_with_their_paths(given: dict[str, Any], where: str, said: str) -> None:
    (mistake,) = changelog(given).inspect()
    assert mistake.where == where
    assert said in mistake.message


def test_the_other_tables_are_looked_at_too() -> None:
    job = changelog(
        {}, table={"path": "lake", "partition_by": ["nam"]}, dead_letters={"topic": "d", "options": {"a": 1}}
    )
    assert [each.where for each in job.inspect()] == ["dead_letters.options", "table.partition_by"]


def test_the_sample_is_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text(sample_declaration("changelog"))
    assert read_job(tmp_path / "sample.toml").kind == "changelog"


def test_the_sample_goes_on_where_a_shorter_one_ends() -> None:
    longer = list(changes(1_000))
    assert list(changes(321)) == longer[:321]
    assert sum(value is None for _, value in longer) > 30


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), (DELETED, pa.bool_())])


def _changes(*rows: tuple[int, str | None]) -> pa.Table:
    """Return changes; None as name deletes a row."""
    return pa.Table.from_pylist(
        [{"id": key, "name": name, DELETED: name is None} for key, name in rows], SCHEMA
    )


def _rows(table: Merged) -> dict[int, str]:
    found = table.delta()
    assert found is not None
    return {row["id"]: row["name"] for row in found.to_pyarrow_table().to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Merged:
    pytest.importorskip("deltalake")
    return Merged(path=str(tmp_path / "t"), compact_every=0)


def test_rows_are_inserted_updated_and_deleted(table: Merged) -> None:
    first = table.merge(_changes((1, "a"), (2, "b"), (3, None)), ["id"], BatchKey("x", 0))
    assert first == {"inserted": 2, "updated": 0, "deleted": 0}
    second = table.merge(_changes((1, "c"), (2, None), (4, "d")), ["id"], BatchKey("x", 1))
    assert second == {"inserted": 1, "updated": 1, "deleted": 1}
    assert _rows(table) == {1: "c", 4: "d"}


def test_a_batch_done_again_changes_nothing_and_counts_the_same(table: Merged) -> None:
    done = [
        table.merge(_changes((1, "a")), ["id"], BatchKey("x", 0)),
        table.merge(_changes((1, "b"), (2, "b")), ["id"], BatchKey("x", 1)),
        table.merge(_changes((1, "never")), ["id"], BatchKey("x", 1)),
    ]
    assert done[2] == done[1] == {"inserted": 1, "updated": 1, "deleted": 0}
    assert _rows(table) == {1: "b", 2: "b"}


def test_files_without_any_of_the_rows_are_not_read(table: Merged) -> None:
    for number, first in enumerate((0, 1_000)):
        rows = [(key, f"name {key}") for key in range(first, first + 50)]
        table.merge(_changes(*rows), ["id"], BatchKey("x", number))
    table.merge(_changes((1_010, None), (1_020, "new"), (9_999, "newest")), ["id"], BatchKey("x", 2))
    found = table.delta()
    assert found is not None
    assert found.history(1)[0]["operationMetrics"]["num_target_files_skipped_during_scan"] == 1
    assert len(_rows(table)) == 100
    assert _rows(table)[1_020] == "new"


def test_a_row_moves_to_another_partition(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    table = Merged(path=str(tmp_path / "t"), partition_by=["name"])
    table.merge(_changes((1, "a"), (2, "b"), (3, "b")), ["id"], BatchKey("x", 0))
    done = table.merge(_changes((1, "b"), (2, None), (3, "c")), ["id"], BatchKey("x", 1))
    assert done == {"inserted": 0, "updated": 2, "deleted": 1}
    assert _rows(table) == {1: "b", 3: "c"}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (pa.string(), ["a", "ä", "z" * 100]),
        (pa.date32(), [date(2024, 5, 1), date(1, 1, 1), date(9999, 12, 31)]),
        (pa.timestamp("us", "UTC"), [datetime(2024, 5, day, 1, 2, 3, 456789, UTC) for day in (1, 2, 3)]),
        (pa.decimal128(8, 2), [Decimal("1.10"), Decimal("-2.20"), Decimal("999999.99")]),
        (pa.bool_(), [True, False]),
        (pa.binary(), [b"a", b"\x00\xff", b""]),
    ],
    ids=str,
)
def test_rows_are_told_apart_by_keys_of_all_types(tmp_path: Path, kind: pa.DataType, keys: list[Any]) -> None:
    pytest.importorskip("deltalake")
    table = Merged(path=str(tmp_path / "t"))
    schema = pa.schema([("id", kind), ("two", pa.int32()), ("name", pa.string()), (DELETED, pa.bool_())])
    for number in range(2):
        rows = [{"id": key, "two": 2, "name": f"n{number}", DELETED: False} for key in keys[number:]]
        table.merge(pa.Table.from_pylist(rows, schema), ["id", "two"], BatchKey("x", number))
    gone = [{"id": keys[1], "two": 2, "name": None, DELETED: True}]
    assert table.merge(pa.Table.from_pylist(gone, schema), ["id", "two"], BatchKey("x", 2))["deleted"] == 1
    found = table.delta()
    assert found is not None
    left = {row["id"]: row["name"] for row in found.to_pyarrow_table().to_pylist()}
    assert left == {key: f"n{min(at, 1)}" for at, key in enumerate(keys) if at != 1}


def test_batches_of_another_checkpoint_are_others(table: Merged) -> None:
    table.merge(_changes((1, "a")), ["id"], BatchKey("x", 0))
    table.merge(_changes((1, "b")), ["id"], BatchKey("y", 0))
    assert _rows(table) == {1: "b"}


def test_a_batch_without_changes_makes_the_table_and_no_commit(table: Merged) -> None:
    nothing = {"inserted": 0, "updated": 0, "deleted": 0}
    assert table.merge(_changes(), ["id"], BatchKey("x", 0)) == nothing
    assert table.merge(_changes(), ["id"], BatchKey("x", 1)) == nothing
    found = table.delta()
    assert found is not None
    assert found.version() == 0


def test_a_column_that_is_new_is_added(table: Merged) -> None:
    table.merge(_changes((1, "a"), (2, "b")), ["id"], BatchKey("x", 0))
    more = pa.Table.from_pylist([{"id": 1, "name": "c", "city": "Turku", DELETED: False}])
    table.merge(more, ["id"], BatchKey("x", 1))
    found = table.delta()
    assert found is not None
    rows = sorted(found.to_pyarrow_table().to_pylist(), key=lambda row: int(row["id"]))
    assert rows == [{"id": 1, "name": "c", "city": "Turku"}, {"id": 2, "name": "b", "city": None}]


def test_small_files_become_large_ones(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    table = Merged(path=str(tmp_path / "t"), compact_every=3)
    for number in range(3):
        table.merge(_changes((number, "a")), ["id"], BatchKey("x", number))
    found = table.delta()
    assert found is not None
    assert len(found.file_uris()) == 1
    assert table.is_done(BatchKey("x", 2)), "what is done stays known"
