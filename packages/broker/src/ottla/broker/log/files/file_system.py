"""The file system as the log uses it: one interface, so that tests can lose power.

`DiskFiles` is the operating system's. `fake_files.MemoryFiles` keeps everything in memory,
knows which writes were not synced, and makes the states that a crash may leave.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from ottla.broker.log.segments._index_mapping import IndexMapping

Buffer: TypeAlias = bytes | bytearray | memoryview
Mapping: TypeAlias = IndexMapping | memoryview
"""A mapped file: read with `struct.unpack_from`, written with `struct.pack_into`."""

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""Data is for the broker's own account. A directory that is there already keeps its mode."""

RUN_OUT: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors that say that room, descriptors or memory ran out. The operation is undone, the directory stays in
use.

From `sync` they are as final as any other error: the kernel forgets the pages that it did not write.
"""

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Those of them that say that the volume is full."""


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None:
        """Release it."""
        ...


class File(Protocol):
    """An open file. It is closed with the last reference to it, so a reader never loses it during a read."""

    @property
    def path(self) -> Path:
        """Its path when it was opened."""
        ...

    def fileno(self) -> int:
        """The descriptor, for sendfile and preadv."""
        ...

    def size(self) -> int:
        """Bytes in the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`, or raise OSError: any part of it may be written then."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Read at most `size` bytes, fewer only at the end."""
        ...

    def truncate(self, size: int) -> None:
        """Shorten the file, or lengthen it by a hole."""
        ...

    def reserve(self, position: int, size: int) -> None:
        """Allocate blocks for a region, or raise OSError.

        Mapped regions are reserved before they are written: a full disk under a mapping ends the process.
        """
        ...

    def sync(self) -> None:
        """Force content and size to the disk, mapped pages included. Blocks."""
        ...

    def map(self, size: int, *, writable: bool) -> Mapping:
        """Map the first `size` bytes, at least one. The mapping outlives the file object."""
        ...


class Files(Protocol):
    """A file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError unless `create`."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory exists."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Whether a directory exists."""
        ...

    def size(self, path: Path) -> int:
        """Bytes in a file."""
        ...

    def modified_ms(self, path: Path) -> int:
        """When a file was last written."""
        ...

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        """Set when a file was last written."""
        ...

    def list(self, path: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_dirs(self, path: Path) -> bool:
        """Create a directory and its parents, unless they exist; return whether it is new, and so empty."""
        ...

    def read(self, path: Path) -> bytes:
        """Read a small file."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target, or a directory."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything in it."""
        ...

    def sync_dir(self, path: Path) -> None:
        """Force a directory's names to the disk. Blocks."""
        ...

    def space(self, path: Path) -> tuple[int, int]:
        """Total and usable bytes of the volume."""
        ...

    def lock(self, path: Path) -> Lock | None:
        """Create and lock a file; None when another process holds the lock."""
        ...


class DiskFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def pwrite(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        if written != len(data):
            self._write_rest(memoryview(data)[written:], position + written)

    def _write_rest(self, rest: memoryview, position: int) -> None:
        # A full disk shows as a short write first; the next write raises.
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            rest, position = rest[written:], position + written

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, position + got)):
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, position: int, size: int) -> None:
        os.posix_fallocate(self._descriptor, position, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def map(self, size: int, *, writable: bool) -> Mapping:
        return IndexMapping(self._descriptor, size, is_writable=writable)


class _FileLock:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


class DiskFiles:
    """The operating system's file systems."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(path, os.open(path, flags, FILE_MODE))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: Path) -> bool:
        return os.path.isdir(path)

    def size(self, path: Path) -> int:
        return os.path.getsize(path)

    def modified_ms(self, path: Path) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def list(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: Path) -> bool:
        try:
            path.mkdir(DIRECTORY_MODE, parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise
            return False
        return True

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        import shutil  # with its compression formats 2 ms of a start that needs none of it

        shutil.rmtree(path)

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self, path: Path) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def lock(self, path: Path) -> Lock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return _FileLock(descriptor)


def unmap(mapping: Mapping) -> None:
    """End a mapping; needed before its file is shortened."""
    if isinstance(mapping, memoryview):
        mapping.release()
    else:
        mapping.close()


def is_lost(mapping: object) -> bool:
    """Whether another program has cut a mapped file: bytes read or written there are not in the file."""
    return isinstance(mapping, IndexMapping) and mapping.is_lost


def write_atomically(files: Files, path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a small file: write a `.tmp` file, sync it, rename it, sync the directory.

    Without `sync` a crash may leave the file old, new, or damaged: only for files that recovery can rebuild.
    """
    beside = path.with_name(path.name + ".tmp")
    file = files.open(beside, create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    if sync:
        file.sync()
    files.rename(beside, path)
    if sync:
        files.sync_dir(path.parent)
