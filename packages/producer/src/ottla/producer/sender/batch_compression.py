"""Compression of batches: at once where it is quick, on a thread where it takes milliseconds."""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.producer.accumulator import Batch
from ottla.producer.config import ProducerConfig
from ottla.protocol.records import Codec

# From about these sizes on compression takes some milliseconds.
_SLOW_BYTES: Final = {Codec.GZIP: 128 * 1024}
_SLOW_BYTES_OTHERWISE: Final = 512 * 1024
# zstd takes a hundred times as long at level 19 as at level 3, and lz4 thirty times.
_QUICK_LEVEL: Final = 3
_SLOW_BYTES_ABOVE_QUICK_LEVEL: Final = 8 * 1024


class BatchCompression:
    """Compresses batches with the codec of their topic."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config

    def is_slow(self, batch: Batch) -> bool:
        """Whether a batch is to be compressed on a thread."""
        codec = self._config.codec_for(batch.partition.topic)
        return bool(codec) and batch.data is None and batch.size_in_bytes > self._slow_bytes(codec)

    def compress(self, batch: Batch) -> None:
        """Compress a batch, unless it is compressed."""
        batch.pack(self._config.codec_for(batch.partition.topic), self._config.compression_level)

    async def compress_on_thread(self, batch: Batch) -> None:
        """Compress a closed batch on a thread. Raises MemoryError."""
        codec = self._config.codec_for(batch.partition.topic)
        await asyncio.to_thread(batch.pack, codec, self._config.compression_level)

    def _slow_bytes(self, codec: Codec) -> int:
        if codec not in _SLOW_BYTES and (self._config.compression_level or 0) > _QUICK_LEVEL:
            return _SLOW_BYTES_ABOVE_QUICK_LEVEL
        return _SLOW_BYTES.get(codec, _SLOW_BYTES_OTHERWISE)
