"""Delta tables accept each batch once. (The same for Parquet needs Spark.)"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.delta_table import reasons_against
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.state_files import BatchKey, StateFile

deltalake = pytest.importorskip("deltalake")


SCHEMA = pa.schema([("day", pa.string()), ("n", pa.int64())])


class Spark:
    """The part of a session that the lake uses."""

    def createDataFrame(self, rows: list[Any], schema: pa.Schema) -> Frame:  # noqa: N802 - Spark's name
        """Return an empty frame of the batch's schema."""
        assert (rows, schema) == ([], SCHEMA)
        return Frame()


class Frame:
    """The part of a batch that the lake uses, with two tasks that have alternate rows."""

    columns = tuple(SCHEMA.names)
    schema = SCHEMA
    sparkSession = Spark()  # noqa: N815 - Spark's name

    def __init__(self, *rows: dict[str, Any]) -> None:
        self._tasks = [pa.Table.from_pylist(list(some), SCHEMA) for some in (rows[::2], rows[1::2])]
        self.looked_at = 0

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Return all rows."""
        return pa.concat_tables(self._tasks)

    def sortWithinPartitions(self, *names: str) -> Frame:  # noqa: N802 - Spark's name
        """Sort the rows of each task."""
        by = [(name.strip("`"), "ascending") for name in names]
        self._tasks = [some.sort_by(by) for some in self._tasks]
        return self

    def mapInArrow(self, function: Any, schema: str) -> Said:  # noqa: N802 - Spark's name
        """Pass the rows of each task to a function when its result is requested."""
        return Said(self, function)

    def tasks(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Consume the rows, in batches of two."""
        self.looked_at += 1
        return (iter(some.to_batches(max_chunksize=2)) for some in self._tasks)

    @property
    def write(self) -> Nowhere:
        """Consume the rows and return none."""
        return Nowhere(self)


@dataclass
class Said:
    """The results of a function for the rows of a batch."""

    frame: Frame
    function: Any

    def collect(self) -> list[Row]:
        """Run the tasks."""
        said = [each for task in self.frame.tasks() for each in self.function(task)]
        return [Row(**row) for each in said for row in each.to_pylist()]


@dataclass
class Nowhere:
    """Spark's writer to its `noop`."""

    frame: Frame

    def format(self, name: str) -> Nowhere:
        """Accept only this format."""
        assert name == "noop"
        return self

    def mode(self, name: str) -> Nowhere:
        """Accept any mode."""
        return self

    def save(self) -> None:
        """Consume the rows."""
        self.frame.tasks()


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


def test_partitions_have_a_file_of_each_task(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta", partition_by=["day"])
    table.append(Frame(*({"day": f"{n // 2 % 3}", "n": n} for n in range(60))), BatchKey("a", 0), begun)
    for day in range(3):
        files = list((tmp_path / "t" / f"day={day}").iterdir())
        assert [pq.read_metadata(each).num_rows for each in files] == [10, 10]
    assert _rows(table) == list(range(60))


def test_mistakes_of_a_lake(tmp_path: Path) -> None:
    assert _mistakes(Lake(path=str(tmp_path), partition_by=["Batch"])) == [
        "partition_by: 'batch' is reserved for the batch of a row"
    ]
    assert _mistakes(Lake(path=str(tmp_path), format="delta", partition_by=["batch"])) == []


def _mistakes(table: Lake) -> list[str]:
    return [f"{each.where}: {each.message.split(':')[0]}" for each in table.inspect()]


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from ottla.pipeline.jobs.delta_table import need_delta
from ottla.pipeline.jobs.lake import Lake
print([each.message for each in Lake(path="x", format="delta").inspect()])
need_delta()
"""


@pytest.mark.parametrize("library", ["deltalake", "pandas"])
def test_without_its_libraries_it_says_how_to_have_them(library: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT, library], capture_output=True, text=True, timeout=60
    )
    how = "pip install 'ottla-pipeline[delta]'"
    assert found.stdout == f"{[f'delta needs a library: {how}']}\n"
    assert found.stderr.endswith(f"PipelineError: Delta tables need a library: {how}\n")


def test_columns_that_clash_with_others(tmp_path: Path) -> None:
    files, table = Lake(path=str(tmp_path)), Lake(path=str(tmp_path), format="delta")
    given = ("level", "BATCH", "Ended", "Level")
    assert [name for name, _ in files.clashes(given, ["ended"])] == ["BATCH", "Ended", "Level"]
    assert [name for name, _ in table.clashes(given, ["ended"])] == ["Ended", "Level"]


def test_a_table_that_cannot_take_the_rows_says_why(tmp_path: Path, begun: StateFile) -> None:
    table = Lake(path=str(tmp_path / "t"), format="delta", partition_by=["day"])
    table.append(Frame({"day": "a", "n": 1}), BatchKey("a", 0), begun)
    made = table.delta()
    assert made is not None
    types = {"day": "string", "n": "long"}
    assert [*reasons_against(made, types, ["day"]), *reasons_against(made, {"n": None}, [])] == []
    found = [*reasons_against(made, types | {"Other": "string"}, ["n"])]
    assert [each.split(";")[0] for each in found] == [
        "has no column 'Other'",
        "is partitioned by ['day'], but partition_by is ['n']: choose another path",
    ]
    made.alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(
        PipelineError, match=r"has delta\.constraints\.positive, which this pipeline does not support"
    ):
        table.append(Frame({"day": "a", "n": -1}), BatchKey("a", 1), begun)
    assert _rows(table) == [1]


@pytest.mark.parametrize(("mode", "said"), [("none", []), ("name", ["has delta.columnMapping.mode"])])
def test_columns_with_other_names_in_files_are_refused(tmp_path: Path, mode: str, said: list[str]) -> None:
    settings = {"delta.columnMapping.mode": mode}
    table = deltalake.DeltaTable.create(str(tmp_path), SCHEMA, configuration=settings)
    assert [each.split(",")[0] for each in reasons_against(table, dict.fromkeys(SCHEMA.names), [])] == said


def test_where_a_batch_was_begun_is_known_by_all_that_come_after(tmp_path: Path, begun: StateFile) -> None:
    one, other = (Lake(path=str(tmp_path / name), format="delta", partition_by=["day"]) for name in "ab")
    assert one.begun_in(BatchKey("a", 0), begun) == one, "a checkpoint may be older than what is kept"
    one.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    assert other.begun_in(BatchKey("a", 0), begun) == one
    assert other.begun_in(BatchKey("a", 1), begun) is None


def test_a_batch_is_in_one_table_also_where_another_is_declared_in_between(
    tmp_path: Path, begun: StateFile
) -> None:
    one, other = (Lake(path=str(tmp_path / name), format="delta") for name in "ab")
    one.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    other.append(Frame({"day": "a", "n": 0}), BatchKey("a", 0), begun)
    other.append(Frame({"day": "a", "n": 1}), BatchKey("a", 1), begun)
    assert (_rows(one), _rows(other)) == ([0], [1])


def test_calls_before_the_commit_do_not_follow_it(tmp_path: Path, begun: StateFile) -> None:
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


def _with(rows: pa.Table) -> Any:
    """Return a batch of other columns than `Frame` has."""

    class Other(Frame):
        columns = tuple(rows.schema.names)
        schema = rows.schema

        def __init__(self) -> None:
            self._tasks = [rows]
            self.looked_at = 0

    class Session:
        def createDataFrame(self, given: list[Any], schema: pa.Schema) -> Any:  # noqa: N802 - Spark's name
            assert given == []
            return _with(schema.empty_table())

    frame = Other()
    frame.sparkSession = Session()  # type: ignore[assignment]
    return frame


def _lake(tmp_path: Path, begun: StateFile, **given: Any) -> Lake:
    table = Lake(path=str(tmp_path / "t"), format="delta", **given)
    table.append(Frame({"day": "a", "n": 1}), BatchKey("a", 0), begun)
    return table


def test_new_columns_are_added_where_that_is_declared(tmp_path: Path, begun: StateFile) -> None:
    table = _lake(tmp_path, begun, schema="merge", partition_by=["day"])
    more = pa.table({"day": ["b"], "n": [2], "price": [1.5], "at": pa.array([0], pa.timestamp("us", "UTC"))})
    table.append(_with(more), BatchKey("a", 1), begun)
    table.append(Frame({"day": "c", "n": 3}), BatchKey("a", 2), begun)

    made = table.delta()
    assert made is not None
    found = made.to_pyarrow_table().sort_by("n")
    assert found.schema.names == ["day", "n", "price", "at"]
    assert found.column("n").to_pylist() == [1, 2, 3]
    assert found.column("price").to_pylist() == [None, 1.5, None]


def test_new_columns_are_refused_unless_that_is_declared(tmp_path: Path, begun: StateFile) -> None:
    table = _lake(tmp_path, begun)
    with pytest.raises(PipelineError, match=r"has no column 'price'.*schema = .merge. adds it"):
        table.append(_with(pa.table({"day": ["b"], "n": [2], "price": [1.5]})), BatchKey("a", 1), begun)


@pytest.mark.parametrize("given", [{}, {"schema": "merge"}])
def test_another_type_is_refused_and_never_cast(
    tmp_path: Path, begun: StateFile, given: dict[str, Any]
) -> None:
    table = _lake(tmp_path, begun, **given)
    for values, kind in (([2.0], "double"), (["2"], "string"), (pa.array([2], pa.int32()), "integer")):
        with pytest.raises(PipelineError, match=f"has 'n' as long, and the rows have it as {kind}"):
            table.append(_with(pa.table({"day": ["b"], "n": values})), BatchKey("a", 1), begun)
    assert _rows(table) == [1]


def test_declared_types_are_compared_with_a_table_that_is_there(tmp_path: Path, begun: StateFile) -> None:
    table = _lake(tmp_path, begun)
    assert list(table.inspect_types({"day": "STRING", "n": "BIGINT"})) == []
    found = dict(table.inspect_types({"day": "STRING", "n": "DOUBLE", "price": "DECIMAL(8, 2)"}))
    assert list(found) == ["price", "n"]
    assert "has no column 'price'" in found["price"]
    assert "has 'n' as long, and the rows have it as double: declare the type" in found["n"]
    merging = Lake(path=table.path, format="delta", schema="merge")
    assert list(dict(merging.inspect_types({"n": "DOUBLE", "price": "DECIMAL(8, 2)"}))) == ["n"]
    assert list(Lake(path=str(tmp_path / "none"), format="delta").inspect_types({"n": "DOUBLE"})) == []
    assert "is for format" in _mistakes(Lake(path=table.path, schema="merge"))[0]
