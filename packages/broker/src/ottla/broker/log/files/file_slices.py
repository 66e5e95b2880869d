"""Regions of segment files for `sendfile`, and bringing cold ones into the page cache."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Final

from ottla.broker.log.segments._offset_lookup import Slice

__all__ = ["Slice", "bring_into_memory", "warm"]

_CHUNK_BYTES: Final = 256 * 1024


async def warm(slices: Iterable[Slice]) -> None:
    """Bring cold slices into the page cache, on a thread; returns at once when none is cold."""
    cold = [region for region in slices if not region.is_hot()]
    if cold:
        await asyncio.to_thread(_warm_all, cold)


def _warm_all(cold: list[Slice]) -> None:
    for region in cold:
        bring_into_memory(region)


def bring_into_memory(region: Slice) -> None:
    """Read a slice once, so that the page cache holds it. Blocks: for a thread."""
    position, end = region.position, region.position + region.length
    descriptor = region.fileno()
    os.posix_fadvise(descriptor, position, region.length, os.POSIX_FADV_WILLNEED)
    scratch = bytearray(min(_CHUNK_BYTES, max(1, region.length)))
    while position < end:
        count = os.preadv(descriptor, [scratch], position)
        if not count:
            return
        position += count
