"""Headers by which readers tell the second copy of a row from the first. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pipeline.sink.identity import Place

if TYPE_CHECKING:
    import pyarrow as pa

QUERY, BATCH, PARTITION, ROW = "ottla-query", "ottla-batch", "ottla-partition", "ottla-row"
"""Which query wrote a row, in which batch and which of its tasks, and the how manyth of that it was: text."""

_HEADERS = 4


def with_row_ids(records: pa.RecordBatch, place: Place, first: int) -> pa.RecordBatch:
    """Return records with the headers of their place behind their own; the first is row number `first`."""
    import pyarrow as pa

    own = records.column("headers") if "headers" in records.schema.names else None
    headers = _appended(own, records.num_rows, place, first)
    others = [name for name in records.schema.names if name != "headers"]
    return pa.RecordBatch.from_arrays(
        [*(records.column(name) for name in others), headers], names=[*others, "headers"]
    )


def _appended(own: pa.Array | None, count: int, place: Place, first: int) -> pa.Array:
    """Lists of headers are pieces of two long columns: here are laid out those, and where pieces begin."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = np.zeros(count, np.int64)
    keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    if own is not None:
        lengths = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = own.flatten()  # what null lists hide is left out
        keys, values = flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())
    ends = np.cumsum(lengths + _HEADERS)
    numbers = pa.array(np.arange(first, first + count)).cast(pa.string()).cast(pa.binary())
    same = [place.query.encode(), b"%d" % place.batch, b"%d" % place.partition]
    pool_keys = pa.concat_arrays([keys, pa.array([QUERY, BATCH, PARTITION, ROW])])
    pool = pa.concat_arrays([values, pa.array(same, pa.binary()), numbers])
    # Which of the pool's entries stands where: by default the next one of the rows' own headers ...
    which = np.empty(int(ends[-1]) if count else 0, np.int64)
    is_own = np.ones(len(which), bool)
    for back in range(1, _HEADERS + 1):
        is_own[ends - back] = False
    which[is_own] = np.arange(len(keys))
    which_key = which.copy()
    # ... and at the end of each row's those of its place, the number of the row the last.
    for back in range(1, _HEADERS + 1):
        which_key[ends - back] = len(keys) + _HEADERS - back
        which[ends - back] = len(values) + _HEADERS - back
    which[ends - 1] = len(values) + _HEADERS - 1 + np.arange(count)
    entries = pa.StructArray.from_arrays(
        [pool_keys.take(pa.array(which_key)), pool.take(pa.array(which))], names=["key", "value"]
    )
    starts = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), entries)
