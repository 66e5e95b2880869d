"""Whether all rows of a task arrived: to Spark's Python workers a failure before the sink looks like the end.

When an earlier step of a task fails, or when the task is killed, Java closes the connection to the worker of
the sink between two Arrow batches, and there Arrow sees an ordinary end. Only what follows tells them apart:
after all rows Java sends four more bytes, END_OF_STREAM in Spark's protocol. A worker reads them when the
writer is done, which is too late for a writer that commits; so they are looked at here and left in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ottla.pipeline.sink.errors import RowsCut

if TYPE_CHECKING:
    import pyarrow as pa

_WORKERS = ("pyspark.worker", "__main__")
"""The module of Spark's workers; the second where Spark starts a process for each of them."""


class Input(Protocol):
    """A buffered stream, such as the one from Java."""

    def peek(self, size: int = ..., /) -> bytes:
        """Return the next bytes without taking them; no bytes at the end."""


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task. Raises RowsCut at their end if rows are missing."""
    source = _input_of_worker()
    yield from batches
    if source is not None and not source.peek(1):
        raise RowsCut


def _input_of_worker() -> Input | None:
    """Return the stream from Java of the worker that runs this task; None outside of Spark's workers.

    Spark passes it to no writer; its function `main` has it.
    """
    frame: FrameType | None = sys._getframe()
    while frame := frame.f_back if frame else None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") in _WORKERS:
            found: Input | None = frame.f_locals.get("infile")
            return found
    return None
