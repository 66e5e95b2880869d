"""The offsets and times that a filter leaves, by Arrow's own simplification of expressions.

DuckDB gives a scan its filter as an expression of Arrow, which Python cannot take apart. Arrow itself proves
that a filter is false for all rows of a fragment whose `partition_expression` it knows: that is how it skips
files. A bisection over such proofs finds the bounds of any where, and is right by construction: a range is
left out only when Arrow has proved that it has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

Expression = Any
"""A `pyarrow.compute.Expression`."""
Refuted = Callable[[list[Expression]], list[bool]]
"""Says for each guarantee whether no row under it passes the filter."""

TIMESTAMP: Final = pa.timestamp("us", "UTC")
BOUNDED: Final = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", TIMESTAMP)],
)
_FORMAT: Final = ds.IpcFileFormat()
_NO_TIME_US: Final = -1_000
_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999."""


def refuted_by(where: Expression, guarantees: list[Expression], schema: pa.Schema) -> list[bool]:
    """Return for each guarantee whether Arrow proves that no row under it passes the filter."""
    files = LocalFileSystem()
    fragments = [
        _FORMAT.make_fragment(str(at), files, partition_expression=guarantee)
        for at, guarantee in enumerate(guarantees)
    ]
    possible = ds.FileSystemDataset(fragments, schema, _FORMAT, files).get_fragments(where)
    left = {fragment.path for fragment in possible}
    return [str(at) not in left for at in range(len(guarantees))]


def wanted_offsets(
    where: Expression | None, available: Mapping[int, range], schema: pa.Schema
) -> dict[int, range]:
    """Return the offsets that may pass a filter, by partition; partitions without any are left out."""
    if where is None:
        return {partition: offsets for partition, offsets in available.items() if offsets}
    refuted = partial(refuted_by, where, schema=schema)
    there = [partition for partition, offsets in available.items() if offsets]
    out = refuted([ds.field("partition") == partition for partition in there])
    kept = {
        partition: available[partition] for partition, is_out in zip(there, out, strict=True) if not is_out
    }
    if "offset" not in str(where):
        return kept
    firsts = _bisect(kept, _below, refuted)
    flipped = {partition: range(-offsets.stop, -offsets.start) for partition, offsets in kept.items()}
    lasts = _bisect(flipped, _from_minus, refuted)
    ranges = {partition: range(firsts[partition], -lasts[partition]) for partition in kept}
    return {partition: offsets for partition, offsets in ranges.items() if offsets}


def earliest_ms(where: Expression | None, schema: pa.Schema) -> int | None:
    """Return the time in ms before which no record passes a filter; None if it has no such bound."""
    if where is None or "timestamp" not in str(where):
        return None
    span = {0: range(_NO_TIME_US, _LAST_US)}

    def before(_: int, at_us: int) -> Expression:
        return ds.field("timestamp") <= pa.scalar(at_us - 1, TIMESTAMP)

    found_us = _bisect(span, before, partial(refuted_by, where, schema=schema))[0]
    return None if found_us <= 0 else found_us // 1_000


def _bisect(
    spans: Mapping[int, range], below: Callable[[int, int], Expression], refuted: Refuted
) -> dict[int, int]:
    """Return for each span the largest bound for which everything below is refuted, all in step."""
    low = {partition: span.start for partition, span in spans.items()}
    high = {partition: span.stop for partition, span in spans.items()}
    while undecided := [partition for partition in spans if low[partition] < high[partition]]:
        middle = {partition: (low[partition] + high[partition] + 1) // 2 for partition in undecided}
        answers = refuted([below(partition, at) for partition, at in middle.items()])
        for partition, is_refuted in zip(undecided, answers, strict=True):
            if is_refuted:
                low[partition] = middle[partition]
            else:
                high[partition] = middle[partition] - 1
    return low


def _below(partition: int, bound: int) -> Expression:
    # Not `< bound`: Arrow does not know that there is no offset between two.
    return (ds.field("partition") == partition) & (ds.field("offset") <= bound - 1)


def _from_minus(partition: int, bound: int) -> Expression:
    return (ds.field("partition") == partition) & (ds.field("offset") >= -bound)


def beyond(ends: Mapping[int, int]) -> pa.Array:
    """Return ends as an array that is indexed by partition, for `pyarrow.compute.take`."""
    return pa.array([ends.get(partition, 0) for partition in range(max(ends, default=-1) + 1)], pa.int64())


def names_in(where: Expression | None, names: Iterable[str]) -> list[str]:
    """Return the columns that a filter may use: those whose name its text has."""
    text = "" if where is None else str(where)
    return [name for name in names if name in text]
