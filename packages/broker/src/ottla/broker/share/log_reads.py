"""The log as fetches of share groups read it: from where, how much of it, and what of that was aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.share.terms import EARLIEST, LATEST
from ottla.protocol.records import BatchHeader, read_header, split_batches

if TYPE_CHECKING:
    from ottla.broker.log.files.file_slices import Slice
    from ottla.broker.log.log import Log
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.share.in_flight import Acquired

_READ_BYTES: Final = 64 * 1024
"""As much of the log is read at first: five hundred records of 100 bytes."""


async def first_offset(
    partition: HostedPartition, reset: str, wall_ms: int, record_threads: RecordThreads
) -> int:
    """Return where a group begins that has read nothing. Raises KafkaError.

    `reset` is `earliest`, `latest`, or milliseconds before the present time.
    """
    if reset == EARLIEST:
        return partition.log.log_start_offset
    if reset == LATEST:
        return partition.high_watermark
    search = partition.log.search_timestamp(wall_ms - int(reset))
    try:
        candidate = next(search)
        while True:
            looked = None if candidate is None else await record_threads.run(candidate.look)
            await asyncio.sleep(0)
            candidate = search.send(looked)
    except StopIteration as end:
        found = end.value
    return partition.high_watermark if found is None else min(found.offset, partition.high_watermark)


def read_until(
    partition: HostedPartition, last: int, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool
) -> Slice:
    """Find the batches up to `last`, and few behind it: members allow more bytes than they take."""
    size = min(_READ_BYTES, max_bytes)
    while True:
        found = partition.read(offset, size, up_to=up_to, at_least_one=at_least_one)
        if size == max_bytes or (found.length and found.end_offset > min(last, up_to - 1)):
            return found
        size = min(4 * size, max_bytes)


def headers_of(records: bytes) -> list[tuple[BatchHeader, int]]:
    """Return the headers of batches, with the size of each batch."""
    return [(read_header(batch), len(batch)) for batch in split_batches(records)]


def aborted_ranges(
    log: Log, headers: Sequence[tuple[BatchHeader, int]], end_offset: int
) -> list[tuple[int, int]]:
    """Return the ranges of aborted transactions among batches that end at an offset."""
    if not headers:
        return []
    transactions = log.aborted_transactions(headers[0][0].base_offset, end_offset)
    return [
        (header.base_offset, header.last_offset)
        for header, _ in headers
        if header.is_transactional
        and not header.is_control
        and any(
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in transactions
        )
    ]


def between(
    records: bytes, headers: Sequence[tuple[BatchHeader, int]], acquired: Sequence[Acquired]
) -> bytes:
    """Return the batches of the log from the first acquired record to the last."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    start = end = position = 0
    for header, size in headers:
        if header.base_offset <= first:
            start = position
        if header.base_offset > last:
            break
        position += size
        end = position
    return records[start:end]
