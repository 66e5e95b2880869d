"""Headers by which readers tell the second copy of a row from the first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.pipeline.sink.identity import Place
from ottla.pipeline.sink.repeats import Repeats
from ottla.pipeline.sink.row_hashes import RowHashes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

QUERY, BATCH, PARTITION, ROW = "ottla-query", "ottla-batch", "ottla-partition", "ottla-row"
"""Which query wrote a row, in which batch and which of its tasks, and which row of that it was: text."""

_HEADERS = 4


class RowIds:
    """Ids for the rows of a task.

    That of a row is its hash, and how many equal ones came before it: Spark gives a task its rows in another
    order the next time when they come from a shuffle.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._hashes = RowHashes(place.query.encode())
        self._repeats = Repeats()

    def added(self, records: pa.RecordBatch, topics: pa.Array | None = None) -> pa.RecordBatch:
        """Return records with their ids behind the headers of their own."""
        import pyarrow as pa

        rows = records if topics is None else records.append_column("topic", topics)
        own = records.column("headers") if "headers" in records.schema.names else None
        headers = _appended(own, self._ids(rows), self._place)
        others = [name for name in records.schema.names if name != "headers"]
        return pa.RecordBatch.from_arrays(
            [*(records.column(name) for name in others), headers], names=[*others, "headers"]
        )

    def _ids(self, rows: pa.RecordBatch) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        hashes = self._hashes.of(rows)
        counts = pa.array(self._repeats.of(hashes.view("<u8")[:, 0])).cast(pa.string()).cast(pa.binary())
        return pc.binary_join_element_wise(_hexadecimal(hashes), counts, b"-")


def _hexadecimal(hashes: np.ndarray[Any, Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    pairs = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
    count, size = hashes.shape
    digits = pa.py_buffer(pairs[hashes])
    return pa.Array.from_buffers(pa.binary(2 * size), count, [None, digits]).cast(pa.binary())


def _appended(own: pa.Array | None, ids: pa.Array, place: Place) -> pa.Array:
    """Lists of headers are pieces of two long columns: here are laid out those, and where pieces begin."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(ids)
    lengths = np.zeros(count, np.int64)
    keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    if own is not None:
        lengths = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = own.flatten()  # what null lists hide is left out
        keys, values = flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())
    ends = np.cumsum(lengths + _HEADERS)
    same = [place.query.encode(), b"%d" % place.batch, b"%d" % place.partition]
    pool_keys = pa.concat_arrays([keys, pa.array([QUERY, BATCH, PARTITION, ROW])])
    pool = pa.concat_arrays([values, pa.array(same, pa.binary()), ids])
    # Which of the pool's entries stands where: by default the next one of the rows' own headers ...
    which = np.empty(int(ends[-1]) if count else 0, np.int64)
    is_own = np.ones(len(which), bool)
    for back in range(1, _HEADERS + 1):
        is_own[ends - back] = False
    which[is_own] = np.arange(len(keys))
    which_key = which.copy()
    # ... and at the end of each row's those of its place, the id of the row the last.
    for back in range(1, _HEADERS + 1):
        which_key[ends - back] = len(keys) + _HEADERS - back
        which[ends - back] = len(values) + _HEADERS - back
    which[ends - 1] = len(values) + _HEADERS - 1 + np.arange(count)
    entries = pa.StructArray.from_arrays(
        [pool_keys.take(pa.array(which_key)), pool.take(pa.array(which))], names=["key", "value"]
    )
    starts = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), entries)
