"""The bytes behind a task's rows tell whether all rows arrived."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla.pipeline.sink.errors import RowsCut
from ottla.pipeline.sink.tasks import whole

END_OF_STREAM = (-4).to_bytes(4, "big", signed=True)
WORKER = "def main(infile, read): return read(infile)"


def stream(rows: int, *, is_whole: bool) -> io.BufferedReader:
    """Return what Java sends: Arrow's batches; and, when all are there, Arrow's end and Spark's."""
    written = io.BytesIO()
    batch = pa.record_batch({"value": [b"row"]})
    writer = pa.ipc.new_stream(written, batch.schema)
    for _ in range(rows):
        writer.write_batch(batch)
    if is_whole:
        writer.close()
        written.write(END_OF_STREAM)
    return io.BufferedReader(io.BytesIO(written.getvalue()))


def batches(infile: Any) -> Iterator[pa.RecordBatch]:
    yield from pa.ipc.open_stream(infile)


def in_worker(infile: io.BufferedReader) -> int:
    """Count the batches where Spark calls a writer: below the function `main` of its worker."""
    worker: dict[str, Any] = {"__name__": "pyspark.worker"}
    exec(WORKER, worker)
    found: int = worker["main"](infile, lambda _: sum(1 for _ in whole(batches(infile))))
    return found


def test_all_rows_arrived_and_the_end_is_left_to_the_worker() -> None:
    infile = stream(3, is_whole=True)

    assert in_worker(infile) == 3
    assert infile.read() == END_OF_STREAM


def test_rows_that_end_without_an_end_are_cut() -> None:
    assert sum(1 for _ in batches(stream(3, is_whole=False))) == 3, "Arrow takes it for the end"

    with pytest.raises(RowsCut, match="an earlier step of this task failed"):
        in_worker(stream(3, is_whole=False))


def test_outside_of_workers_rows_end_as_they_do() -> None:
    assert sum(1 for _ in whole(batches(stream(2, is_whole=False)))) == 2
