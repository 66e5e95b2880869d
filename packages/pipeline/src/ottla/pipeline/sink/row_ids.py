"""Headers by which readers recognise the second copy of a row. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.pipeline.lazy import np, pa, pc
from ottla.pipeline.sink.tasks import TaskIdentity

if TYPE_CHECKING:
    Keys = np.ndarray[Any, Any]
    Numbers = np.ndarray[Any, np.dtype[np.int64]]

WORD = 4
"""Rows begin and end at multiples of this number of bytes."""


def row_bytes(rows: pa.RecordBatch) -> pa.Array:
    """Return the bytes of each row: lengths and numbers first, then all texts.

    The columns are those of records: binary or text, integers, timestamps, and headers.
    """
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
    padding = -sum(
        (np.maximum(length, 0) for length in map(_lengths, texts)), np.zeros(rows.num_rows, np.int32)
    )
    return _joined([_packed(front), *texts, _zeros(padding % WORD)])


def _headers(column: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Array]:
    """Return the number of headers of each row, and all headers concatenated, each after its lengths."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    flat = column.flatten()  # removes entries hidden by null lists
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value").cast(pa.binary())
    entries = _joined([_packed([_lengths(keys), _lengths(values)]), keys, values])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return counts, pc.binary_join(pa.ListArray.from_arrays(pa.array(starts), entries), b"")


def _lengths(texts: pa.Array) -> np.ndarray[Any, Any]:
    found = pc.fill_null(pc.binary_length(texts), -1).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.int32)


def _numbers(column: pa.Array) -> list[np.ndarray[Any, Any]]:
    """Return each number as two halves, and whether it is null."""
    whole = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).astype("<i8")
    halves = whole.view("<i4").reshape(-1, 2)
    is_there = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int32)
    return [halves[:, 0], halves[:, 1], is_there]


def _packed(numbers: list[np.ndarray[Any, Any]]) -> pa.Array:
    """Return the numbers of each row side by side."""
    count, size = len(numbers[0]), len(numbers) * WORD
    data = np.stack(numbers, axis=1).astype("<i4")
    return pa.Array.from_buffers(pa.binary(size), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _zeros(lengths: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array([b"\0" * size for size in range(WORD)], pa.binary()).take(pa.array(lengths))


def _joined(columns: list[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*columns, b"", null_handling="replace")


SIZE = 16
"""Bytes of a hash."""

_SUMS = 4
_LONG = 1_024
"""Rows with more bytes are long."""


class RowHashes:
    """The hashes of rows under a key; equal rows have equal hashes in every process and order."""

    def __init__(self, key: bytes) -> None:
        numbers = _SUMS * (_LONG // WORD + 1)
        drawn = hashlib.shake_128(key).digest(numbers * 8)
        self._numbers = np.frombuffer(drawn, "<u8").reshape(_SUMS, -1)
        self._key = hashlib.blake2b(key).digest()

    def of(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return the hashes of the rows, `SIZE` bytes each."""
        texts = row_bytes(rows)
        lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        is_long = lengths > _LONG
        found = np.empty((len(texts), SIZE), np.uint8)
        found[~is_long] = self._short(texts.filter(pa.array(~is_long)) if is_long.any() else texts)
        if is_long.any():
            found[is_long] = self._long(texts.filter(pa.array(is_long)))
        return found

    def _short(self, texts: pa.Array) -> np.ndarray[Any, Any]:
        _, offsets, data = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1] // WORD
        words, sizes = np.frombuffer(data, "<u4"), np.diff(bounds)
        found = np.empty((len(texts), _SUMS), "<u4")
        for size in np.unique(sizes):  # one iteration for each distinct length, at most _LONG // WORD
            rows = np.flatnonzero(sizes == size)
            each = words[bounds[rows][:, None] + np.arange(size)].astype(np.uint64)
            sums = np.einsum("ij,kj->ik", each, self._numbers[:, 1 : size + 1]) + self._numbers[:, 0]
            found[rows] = sums >> np.uint64(32)
        return found.view(np.uint8)

    def _long(self, texts: pa.Array) -> np.ndarray[Any, Any]:
        rows = texts.to_pylist()
        found = b"".join(hashlib.blake2b(row, digest_size=SIZE, key=self._key).digest() for row in rows)
        return np.frombuffer(found, np.uint8).reshape(-1, SIZE)


class EqualRowCounter:
    """Counts equal keys of 64 bits, at 8 bytes for each key.

    The keys are kept in sorted pieces; pieces of similar length are merged, so their number stays small.
    """

    def __init__(self) -> None:
        self._pieces: list[Keys] = []

    def of(self, keys: Keys) -> Keys:
        """Return for each key how often it occurred before, in earlier calls and in this one."""
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        is_first = np.concatenate([np.ones(min(len(keys), 1), bool), ordered[1:] != ordered[:-1]])
        starts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(starts, len(keys)))
        earlier = np.repeat(self._earlier(ordered[starts]), lengths)
        found = np.empty(len(keys), np.int64)
        found[order] = np.arange(len(keys)) - np.repeat(starts, lengths) + earlier
        self._add(ordered)
        return found

    def _earlier(self, keys: Keys) -> Keys:
        """Return how often each of these distinct, sorted keys occurred in earlier calls."""
        found = np.zeros(len(keys), np.int64)
        for piece in self._pieces:
            tasks = np.searchsorted(piece, keys)
            hits = np.flatnonzero(piece[np.minimum(tasks, len(piece) - 1)] == keys)
            found[hits] += np.searchsorted(piece, keys[hits], "right") - tasks[hits]
        return found

    def _add(self, keys: Keys) -> None:
        while self._pieces and len(self._pieces[-1]) <= 2 * len(keys):
            keys = np.concatenate([self._pieces.pop(), keys])
            keys.sort(kind="stable")
        if len(keys):
            self._pieces.append(keys)


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
        rows = records if topics is None else records.append_column("topic", topics)
        own = records.column("headers") if "headers" in records.schema.names else None
        headers = _appended(own, self._ids(rows), self._task)
        others = [name for name in records.schema.names if name != "headers"]
        return pa.RecordBatch.from_arrays(
            [*(records.column(name) for name in others), headers], names=[*others, "headers"]
        )

    def _ids(self, rows: pa.RecordBatch) -> pa.Array:
        hashes = self._hashes.of(rows)
        counts = pa.array(self._equal_rows.of(hashes.view("<u8")[:, 0])).cast(pa.string()).cast(pa.binary())
        return pc.binary_join_element_wise(_hexadecimal(hashes), counts, b"-")


def _hexadecimal(hashes: np.ndarray[Any, Any]) -> pa.Array:
    pairs = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
    count, size = hashes.shape
    digits = pa.py_buffer(pairs[hashes])
    return pa.Array.from_buffers(pa.binary(2 * size), count, [None, digits]).cast(pa.binary())


def _appended(own: pa.Array | None, ids: pa.Array, task: TaskIdentity) -> pa.Array:
    """Return the headers of each row with the four headers of its task and id appended.

    Arrow stores the headers of all rows concatenated, with the end of each row.
    """
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
    if own is None:
        return pa.array([], pa.string()), pa.array([], pa.binary()), np.zeros(count, np.int64)
    lengths = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = own.flatten()  # removes entries hidden by null lists
    return flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary()), lengths


def _with_four(own: pa.Array, added: pa.Array, which: Sequence[int | Numbers], ends: Numbers) -> pa.Array:
    """Return the entries of each row followed by four of `added`; the entries of a row end at `ends`."""
    order = np.empty(len(own) + _HEADERS * len(ends), np.int64)
    is_own = np.ones(len(order), bool)
    for back, entry in zip(range(_HEADERS, 0, -1), which, strict=True):
        order[ends - back] = len(own) + entry
        is_own[ends - back] = False
    order[is_own] = np.arange(len(own))
    return pa.concat_arrays([own, added]).take(pa.array(order))
