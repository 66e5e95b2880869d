from ottla.broker.log.files.file_system import File, Mapping

def find_entry(
    fd: int,
    index: Mapping | bytes,
    count: int,
    relative_offset: int,
    end: int,
    offset: int,
    wait: bool,
) -> tuple[int, int, int, int] | None: ...
def whole_end(
    fd: int,
    index: Mapping | bytes,
    count: int,
    start: int,
    limit: int,
    stop: int,
    at_least_one: bool,
    wait: bool,
) -> tuple[int, int]: ...
def in_memory(fd: int, position: int, length: int) -> bool: ...

class Slice:
    """Whole batches in a segment's file; it keeps the file open even when the segment is deleted."""

    file: File
    position: int
    length: int
    end_offset: int
    """All offsets of the batches are below it; 0 where the read did not say."""

    def __init__(self, file: File, position: int, length: int, end_offset: int = 0) -> None: ...
    def fileno(self) -> int:
        """The file's descriptor, for sendfile and preadv."""

    def read(self) -> bytes:
        """The bytes."""

    def is_hot(self) -> bool:
        """Whether reading it does not wait for the disk; one page in each 64 KiB is probed, and the last.

        True also where the system does not support the probe.
        """
