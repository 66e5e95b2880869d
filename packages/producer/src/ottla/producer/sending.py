"""Records into batches: the compiled part of the producer, under the names the rest uses."""

from collections.abc import Iterable, Mapping

from ottla.producer._sending import (
    Acknowledgement,
    Acknowledgements,
    Batch,
    BatchBuilder,
    BatchedRecord,
    Gathering,
    Queue,
    Route,
    RowSending,
    Sending,
    all_placed,
    arrow_rows,
    packed_headers,
    place,
    placeholder,
    waiting_acknowledgement,
    whole_ms,
)

Headers = Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]
"""Names and values of a record's headers, in order; a mapping where names do not repeat."""

__all__ = [
    "Acknowledgement",
    "Acknowledgements",
    "Batch",
    "BatchBuilder",
    "BatchedRecord",
    "Gathering",
    "Headers",
    "Queue",
    "Route",
    "RowSending",
    "Sending",
    "all_placed",
    "arrow_rows",
    "packed_headers",
    "place",
    "placeholder",
    "waiting_acknowledgement",
    "whole_ms",
]
