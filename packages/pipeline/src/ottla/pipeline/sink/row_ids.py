"""Headers by which readers recognise the second copy of a row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.pipeline.sink.equal_rows import EqualRowCounter
from ottla.pipeline.sink.row_hashes import RowHashes
from ottla.pipeline.sink.task_identity import TaskIdentity

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

QUERY, BATCH, PARTITION, ROW = "ottla-query", "ottla-batch", "ottla-partition", "ottla-row"
"""Headers with the query, the batch, the task and the id of a row, as text."""

_HEADERS = 4


class RowIds:
    """Ids for the rows of a task.

    The id of a row is its hash and the number of equal rows before it: after a shuffle, a replayed task gets
    its rows in another order.
    """

    def __init__(self, task: TaskIdentity) -> None:
        self._task = task
        self._hashes = RowHashes(task.query.encode())
        self._equal_rows = EqualRowCounter()

    def added(self, records: pa.RecordBatch, topics: pa.Array | None = None) -> pa.RecordBatch:
        """Return the records with their ids added after their own headers."""
        import pyarrow as pa

        rows = records if topics is None else records.append_column("topic", topics)
        own = records.column("headers") if "headers" in records.schema.names else None
        headers = _appended(own, self._ids(rows), self._task)
        others = [name for name in records.schema.names if name != "headers"]
        return pa.RecordBatch.from_arrays(
            [*(records.column(name) for name in others), headers], names=[*others, "headers"]
        )

    def _ids(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        hashes = self._hashes.of(rows)
        counts = pa.array(self._equal_rows.of(hashes.view("<u8")[:, 0])).cast(pa.string()).cast(pa.binary())
        return pc.binary_join_element_wise(_hexadecimal(hashes), counts, b"-")


def _hexadecimal(hashes: np.ndarray[Any, Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    pairs = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
    count, size = hashes.shape
    digits = pa.py_buffer(pairs[hashes])
    return pa.Array.from_buffers(pa.binary(2 * size), count, [None, digits]).cast(pa.binary())


def _appended(own: pa.Array | None, ids: pa.Array, task: TaskIdentity) -> pa.Array:
    """Return the headers of each row with the four headers of its task and id appended.

    Arrow stores the headers of all rows concatenated, with the end of each row.
    """
    import numpy as np
    import pyarrow as pa

    count = len(ids)
    keys, values, lengths = _laid_flat(own, count)
    ends = np.cumsum(lengths + _HEADERS)
    every_key = _with_four(keys, pa.array([QUERY, BATCH, PARTITION, ROW]), (0, 1, 2, 3), ends)
    same = pa.array([task.query.encode(), b"%d" % task.batch, b"%d" % task.partition], pa.binary())
    each_its_own = 3 + np.arange(count)
    every_value = _with_four(values, pa.concat_arrays([same, ids]), (0, 1, 2, each_its_own), ends)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    headers = pa.StructArray.from_arrays([every_key, every_value], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), headers)


def _laid_flat(own: pa.Array | None, count: int) -> tuple[pa.Array, pa.Array, Numbers]:
    """Return the keys and values of all headers, and the number of headers of each row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if own is None:
        return pa.array([], pa.string()), pa.array([], pa.binary()), np.zeros(count, np.int64)
    lengths = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = own.flatten()  # removes entries hidden by null lists
    return flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary()), lengths


def _with_four(own: pa.Array, added: pa.Array, which: Sequence[int | Numbers], ends: Numbers) -> pa.Array:
    """Return the entries of each row followed by four of `added`; the entries of a row end at `ends`."""
    import numpy as np
    import pyarrow as pa

    order = np.empty(len(own) + _HEADERS * len(ends), np.int64)
    is_own = np.ones(len(order), bool)
    for back, entry in zip(range(_HEADERS, 0, -1), which, strict=True):
        order[ends - back] = len(own) + entry
        is_own[ends - back] = False
    order[is_own] = np.arange(len(own))
    return pa.concat_arrays([own, added]).take(pa.array(order))
