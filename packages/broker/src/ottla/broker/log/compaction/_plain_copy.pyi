from collections.abc import Iterable

from ottla.broker.log.compaction._offset_map import OffsetMap
from ottla.protocol.records import Buffer

class PlainCopy:
    """Copies the batches that `retained` keeps, if they are plain, many at a time without the GIL.

    `last_offsets` are those of the last batches of all producers. The attributes are the state of the
    indexes of the segment that is written (see `index_building`), set and read by turns.
    """

    def __init__(self, keys: OffsetMap, now_ms: int, last_offsets: Iterable[int]) -> None: ...

    is_changed: bool
    """Whether anything was left out."""
    interval: int
    position: int
    indexed: int
    first: int
    largest: int
    largest_at: int

    def copy(
        self, batches: Buffer, to: bytearray, *, spares_last: bool
    ) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """Copy into `to`, which has room for all of `batches`; `spares_last` ends before their last one.

        Returns the size of the batches that were dealt with, that of the copy, and the index entries it
        needs: position, last offset, largest timestamp so far and its offset. The next batch is as the one
        that `OffsetMap.add_plain` ends before, keeps a tombstone that gets a delete horizon now, or loses all
        records though it is the last one of its producer.
        """
