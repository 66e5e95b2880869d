"""Delta tables take each batch once. (That Parquet does needs Spark.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs import lake
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.state import BatchKey, StateFile

pytest.importorskip("deltalake")


SCHEMA = pa.schema([("day", pa.string()), ("n", pa.int64())])


class Frame:
    """What the lake wants of a batch, with a task for each row."""

    columns = tuple(SCHEMA.names)
    schema = SCHEMA

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._tasks = [[pa.RecordBatch.from_pylist([row], SCHEMA)] for row in rows] or [[]]
        self.looked_at = 0
        done = SimpleNamespace(save=self._look)
        self.write = SimpleNamespace(format=lambda name: SimpleNamespace(mode=lambda mode: done))
        empty = SimpleNamespace(toArrow=lambda: pa.Table.from_pylist([], SCHEMA))
        self.sparkSession = SimpleNamespace(createDataFrame=lambda rows, schema: empty)

    def mapInArrow(self, function: Any, schema: str) -> Any:  # noqa: N802 - Spark's name
        """Give each task to a function when what it returns is asked for."""
        return SimpleNamespace(collect=lambda: [*self._collected(function)])

    def _collected(self, function: Any) -> Iterator[SimpleNamespace]:
        self._look()
        for task in self._tasks:
            for batch in function(iter(task)):
                yield from (SimpleNamespace(**row) for row in batch.to_pylist())

    def _look(self) -> None:
        self.looked_at += 1


@pytest.fixture
def begun(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "begun.json")


def _rows(table: Lake) -> list[int]:
    found = table.delta()
    assert found is not None
    return sorted(found.to_pyarrow_table().column("n").to_pylist())


def test_a_batch_done_again_changes_nothing(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta", partition_by=["day"])
    key = BatchKey("one.main", 0)
    for _ in range(2):
        batch: Any = Frame({"day": "a", "n": 1}, {"day": "b", "n": 2})
        table.append(batch, key, begun)
        assert batch.looked_at == 1, "what is counted on the way is counted, also where nothing is written"
    assert _rows(table) == [1, 2]
    assert (tmp_path / "t" / "day=a").is_dir()


def test_other_batches_queries_and_checkpoints_are_added(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta")
    for n, key in enumerate((BatchKey("a", 0), BatchKey("a", 1), BatchKey("b", 0), BatchKey("b", 1))):
        table.append(Frame({"day": "a", "n": n}), key, begun)
    assert _rows(table) == [0, 1, 2, 3]
    assert table.is_done(BatchKey("a", 0))
    assert not table.is_done(BatchKey("a", 2))
    assert not table.is_done(BatchKey("c", 0))


def test_an_empty_batch_makes_the_table_and_no_commit_after(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta")
    assert not table.is_done(BatchKey("a", 0))
    for number in range(2):
        table.append(Frame(), BatchKey("a", number), begun)
    found = table.delta()
    assert found is not None
    assert found.version() == 0


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "_has_delta", lambda: False)
    table = Lake(path=str(tmp_path), partition_by=["Batch"])
    assert [(each.where, each.message.split(":")[0]) for each in table.inspect()] == [
        ("partition_by", "'batch' is taken")
    ]
    table = Lake(path=str(tmp_path), format="delta", partition_by=["batch"])
    assert [(each.where, each.message.split(":")[0]) for each in table.inspect()] == [
        ("format", "delta needs a library")
    ]


def test_columns_that_cannot_be_beside_others(tmp_path: Path) -> None:
    files, table = Lake(path=str(tmp_path)), Lake(path=str(tmp_path), format="delta")
    given = ("level", "BATCH", "Ended", "Level")
    assert [name for name, _ in files.clashes(given, ["ended"])] == ["BATCH", "Ended", "Level"]
    assert [name for name, _ in table.clashes(given, ["ended"])] == ["Ended", "Level"]


def test_a_table_that_cannot_take_the_rows_says_why(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta", partition_by=["day"])
    table.append(Frame({"day": "a", "n": 1}), BatchKey("a", 0), begun)
    made = table.delta()
    assert made is not None
    assert [*lake.unfit(made, ["day", "n"], ["day"]), *lake.unfit(made, ["n"], [])] == []
    found = [*lake.unfit(made, ["day", "n", "Other"], ["n"])]
    assert [each.split(";")[0] for each in found] == [
        "has no column 'Other'",
        "is partitioned by ['day'], and partition_by says ['n']: choose another path",
    ]
    made.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(PipelineError, match=r"has delta\.constraints\.positive, which is not looked at here"):
        table.append(Frame({"day": "a", "n": -1}), BatchKey("a", 1), begun)
    assert _rows(table) == [1]


def test_where_a_batch_was_begun_is_known_by_all_that_come_after(tmp_path: Path, begun: StateFile) -> None:
    one, other = (Lake(path=str(tmp_path / name), format="delta", partition_by=["day"]) for name in "ab")
    assert one.begun_in(BatchKey("a", 0), begun) == (one,), "a checkpoint may be older than what is kept"
    one.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    assert other.begun_in(BatchKey("a", 0), begun) == (one,)
    assert other.begun_in(BatchKey("a", 1), begun) == ()


def test_a_batch_is_in_one_table_also_where_another_is_declared_in_between(
    tmp_path: Path, begun: StateFile
) -> None:
    one, other = (Lake(path=str(tmp_path / name), format="delta") for name in "ab")
    one.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    other.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    other.append(Frame({"day": "a", "n": 1}), BatchKey("a", 1), begun)
    assert (_rows(one), _rows(other)) == ([0], [1])


def test_what_comes_before_the_commit_does_not_come_after_it(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta")
    was_done: list[bool] = []

    def before() -> None:
        was_done.append(table.is_done(BatchKey("a", 0)))
        if len(was_done) == 1:
            raise ValueError("the broker is gone")

    with pytest.raises(ValueError, match="gone"):
        table.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun, before)
    for _ in range(2):
        table.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun, before)
    assert was_done == [False, False]
    assert _rows(table) == [0]
