from collections.abc import Callable
from typing import Any

from ottla.broker.config import LogConfig
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.log.files.file_system import File
from ottla.broker.log.log import Log
from ottla.broker.log.segments.index import OffsetIndex, TimeIndex
from ottla.broker.log.segments.segment import Segment

class LogEnd:
    """The active segment of a log, the position of its end, and the limits for rolling it."""

    leader_epoch: int
    max_plain_bytes: int
    """The largest batch that `append_plain` takes; 0 sends everything to the general path."""

    write: Callable[[Any, int], None]
    """Writes bytes at a position; may be replaced, and lets go of the file then."""

    def __init__(self, segment: Segment, next_offset: int, now_ms: int) -> None: ...
    @property
    def segment(self) -> Segment: ...
    @property
    def offsets(self) -> OffsetIndex: ...
    @property
    def times(self) -> TimeIndex: ...
    @property
    def position(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def file(self) -> File | None:
        """The file that is written; None once `write` was replaced."""
    @property
    def base_offset(self) -> int: ...
    @property
    def max_next_offset(self) -> int:
        """A segment has to be rolled before an append ends above it."""
    @property
    def index_full(self) -> bool: ...
    @property
    def hints(self) -> dict[int, int]:
        """Positions of offsets that readers most likely ask for."""
    @property
    def max_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def roll_above_timestamp(self) -> int: ...
    @property
    def roll_after_ms(self) -> int: ...
    def limit(self, config: LogConfig, jitter_ms: int) -> None:
        """Use the limits of the topic's configuration."""
    def fits(self, size: int, next_offset: int, largest: int, now_ms: int) -> bool:
        """Whether an append of `size` bytes stays in this segment; else the log has to roll first."""
    def append_plain(
        self,
        batches: bytes | bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        log: Log,
    ) -> int:
        """Append a client's v2 batches if they are plain and sound; return their first offset.

        -1 leaves them to the general path, and nothing was changed: a batch is not plain, fails its checksum
        or is too large, an epoch or a segment begins, or a producer's sequence does not simply go on. Of
        `log`, which this is the end of, the producers' states are used. Raises `KafkaStorageError`, and the
        log has undone then what was written (`Log.append_failed`).
        """
    def append(
        self,
        data: bytes | bytearray | memoryview,
        next_offset: int,
        largest: int,
        largest_at: int,
        now_ms: int,
    ) -> None:
        """Write at the end, and index it. After an OSError `undo` has to be called."""
    def read_now(self, offset: int, max_bytes: int, up_to: int) -> Slice | None:
        """Return what `Log.read` does for an `offset` in this segment and below `up_to`, without waiting.

        None leaves it to `Log.read`. Raises CorruptStorage at bytes that are no entry, and BlockingIOError
        where it would have to wait for the disk.
        """
    def undo(self) -> None:
        """Truncate the files to what they held before a failed append."""
    def seal(self) -> None:
        """Trim the segment and its indexes: the log rolls, or is closed."""
