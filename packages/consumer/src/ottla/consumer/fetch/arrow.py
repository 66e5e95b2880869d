"""Read fetched bytes into Arrow columns, and give back what a batch did not use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.errors import ClientError
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.decoding import abortions, raise_unreadable
from ottla.consumer.fetch.record_delivery import RawFetchedData, RecordDelivery
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.arrow import ArrowColumns, ColumnBuilder

if TYPE_CHECKING:
    import pyarrow

DEFAULT_BYTES = 8 * 1024 * 1024
"""The fetched bytes that become one batch of columns unless the caller sets a bound, approximately."""

# Reading so many bytes takes milliseconds, and runs on a thread: it needs no interpreter lock.
_SLOW_BYTES = 1024 * 1024
_CODEC_MASK = 7
_ATTRIBUTES_LOW_BYTE = 22


class ArrowMissing(ClientError):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__("Arrow batches need pyarrow: pip install 'ottla-consumer[arrow]'")


def pyarrow_module() -> Any:
    """Import pyarrow, which only readers of columns need, and return it. Raises ArrowMissing."""
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def record_batch(columns: ArrowColumns) -> pyarrow.RecordBatch:
    """Return columns as a pyarrow.RecordBatch, without a copy."""
    return pyarrow_module().record_batch(columns)


async def read_columns(
    taken: Sequence[RawFetchedData],
    builder: ColumnBuilder,
    limit: int | None,
    delivery: RecordDelivery,
    config: ConsumerConfig,
) -> None:
    """Add up to `limit` records to a builder, and give back what was not used.

    At a batch that cannot be read, records before it stay in the builder; raises UnreadableBatch only if
    there are none.
    """
    read_to = [raw.since_offset for raw in taken]
    unreadable: RawFetchedData | None = None
    try:
        for index, raw in enumerate(taken):
            try:
                read_to[index] = await _add(builder, raw, limit)
            except KafkaError as error:
                if len(builder):
                    break  # the next call raises it
                unreadable = raw
                raise_unreadable(raw.partition, raw.data, raw.since_offset, raw.aborted, error, config)
            if limit is not None and len(builder) >= limit:
                break
    finally:
        # Also when the wait for a thread is cancelled: nothing of that data counts as read then. The last is
        # given back first, as two may belong to one partition.
        for raw, following in reversed(list(zip(taken, read_to, strict=True))):
            delivery.give_back(raw, following)
        if unreadable is not None:
            delivery.refetch(unreadable.partition)


async def _add(builder: ColumnBuilder, raw: RawFetchedData, limit: int | None) -> int:
    topic, partition = raw.partition
    aborted = abortions(raw.aborted)

    def add() -> int:
        return builder.add(topic, partition, raw.data, raw.since_offset, aborted, limit=limit)

    if len(raw.data) >= _SLOW_BYTES or _is_compressed(raw.data):
        return await asyncio.to_thread(add)
    return add()


def _is_compressed(data: memoryview) -> bool:
    return len(data) > _ATTRIBUTES_LOW_BYTE and bool(data[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK)
