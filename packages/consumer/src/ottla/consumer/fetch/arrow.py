"""Fetched bytes into Arrow columns: which pieces of them, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.errors import ClientError
from ottla.consumer.fetch.fetcher import RawPiece
from ottla.protocol.errors import KafkaError
from ottla.protocol.records.arrow import ArrowColumns, ColumnBuilder

if TYPE_CHECKING:
    import pyarrow

USUAL_BYTES = 8 * 1024 * 1024
"""About how many fetched bytes become one batch of columns, where nothing else was said."""

# From so many bytes on reading takes milliseconds, and is done on a thread: it needs no interpreter lock.
_SLOW_BYTES = 1024 * 1024
_CODEC_MASK = 7
_ATTRIBUTES_LOW_BYTE = 22

GiveBack = Callable[[RawPiece, int], None]


class ArrowMissing(ClientError):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__("Arrow batches need pyarrow: pip install 'ottla-consumer[arrow]'")


def pyarrow_module() -> Any:
    """Return pyarrow, which is imported only by those who want columns. Raises ArrowMissing."""
    try:
        import pyarrow
    except ImportError as error:
        raise ArrowMissing from error
    return pyarrow


def record_batch(columns: ArrowColumns) -> pyarrow.RecordBatch:
    """Return columns as pyarrow's, without a copy."""
    return pyarrow_module().record_batch(columns)


async def read_columns(
    pieces: Sequence[RawPiece], builder: ColumnBuilder, limit: int | None, give_back: GiveBack
) -> None:
    """Add the records of pieces to a builder, up to `limit` of them; what is not used is given back.

    Where a piece cannot be read, what came before it stays; raises only when that is nothing.
    """
    read_to = [piece.since_offset for piece in pieces]
    try:
        for index, piece in enumerate(pieces):
            read_to[index] = await _add(builder, piece, limit)
            if limit is not None and len(builder) >= limit:
                break
    except (ClientError, KafkaError):
        if not len(builder):
            raise
    finally:
        # Also when the wait for a thread is cancelled: then nothing of that piece counts as read. The last
        # goes back first, as two may be of one partition.
        for piece, following in reversed(list(zip(pieces, read_to, strict=True))):
            give_back(piece, following)


async def _add(builder: ColumnBuilder, piece: RawPiece, limit: int | None) -> int:
    topic, partition = piece.partition
    aborted = None
    if piece.aborted:
        aborted = [(each.first_offset, each.producer_id) for each in piece.aborted]

    def add() -> int:
        return builder.add(topic, partition, piece.data, piece.since_offset, aborted, limit=limit)

    if len(piece.data) >= _SLOW_BYTES or _is_compressed(piece.data):
        return await asyncio.to_thread(add)
    return add()


def _is_compressed(data: memoryview) -> bool:
    return len(data) > _ATTRIBUTES_LOW_BYTE and bool(data[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK)
