"""Rows as bytes: equal for rows that are equal in all columns, and different otherwise. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

WORD = 4
"""Rows begin and end at multiples of this number of bytes."""


def row_bytes(rows: pa.RecordBatch) -> pa.Array:
    """Return the bytes of each row: lengths and numbers first, then all texts.

    The columns are those of records: binary or text, integers, timestamps, and headers.
    """
    import numpy as np
    import pyarrow as pa

    front: list[np.ndarray[Any, Any]] = []
    texts: list[pa.Array] = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name == "headers":
            counts, text = _headers(column)
            front += [counts, _lengths(text)]
            texts.append(text)
        elif pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
            front += _numbers(column)
        else:
            texts.append(column.cast(pa.binary()))
            front.append(_lengths(texts[-1]))
    padding = -sum((np.maximum(each, 0) for each in map(_lengths, texts)), np.zeros(rows.num_rows, np.int32))
    return _joined([_packed(front), *texts, _zeros(padding % WORD)])


def _headers(column: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Return the number of headers of each row, and all headers concatenated, each after its lengths."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    flat = column.flatten()  # removes entries hidden by null lists
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value").cast(pa.binary())
    entries = _joined([_packed([_lengths(keys), _lengths(values)]), keys, values])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return counts, pc.binary_join(pa.ListArray.from_arrays(pa.array(starts), entries), b"")


def _lengths(texts: pa.Array) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow.compute as pc

    found = pc.fill_null(pc.binary_length(texts), -1).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int32)


def _numbers(column: pa.Array) -> list[np.ndarray[Any, Any]]:
    """Return each number as two halves, and whether it is null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype("<i8")
    halves = whole.view("<i4").reshape(-1, 2)
    is_there = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
    return [halves[:, 0], halves[:, 1], is_there]


def _packed(numbers: list[np.ndarray[Any, Any]]) -> pa.Array:
    """Return the numbers of each row side by side."""
    import numpy as np
    import pyarrow as pa

    count, size = len(numbers[0]), len(numbers) * WORD
    data = np.stack(numbers, axis=1).astype("<i4")
    return pa.Array.from_buffers(pa.binary(size), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _zeros(lengths: np.ndarray[Any, Any]) -> pa.Array:
    import pyarrow as pa

    return pa.array([b"\0" * each for each in range(WORD)], pa.binary()).take(pa.array(lengths))


def _joined(columns: list[pa.Array]) -> pa.Array:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*columns, b"", null_handling="replace")
