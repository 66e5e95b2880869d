"""The newest offset of each key, and what compaction keeps of a batch: native (`_offset_map.pyx`)."""

from __future__ import annotations

from typing import Final

from ottla.broker.log.compaction._offset_map import OffsetMap, retained
from ottla.broker.log.compaction._plain_copy import PlainCopy

__all__ = ["SLOT_BYTES", "OffsetMap", "PlainCopy", "retained", "slots_for"]

SLOT_BYTES: Final = 24
_FEWEST: Final = 64


def slots_for(records: int, memory_bytes: int, load_factor: float) -> int:
    """How many slots a map needs for so many records of different keys, within the memory."""
    needed = int(records / max(min(load_factor, 0.99), 0.01)) + 2
    return max(_FEWEST, min(needed, memory_bytes // SLOT_BYTES))
