"""A fake file system in memory that loses power: unsynced writes may be lost, torn, or garbage afterwards.

A file's content reaches the disk with `sync`, a directory's names with `sync_dir`; nothing else is promised.
`crash` returns one of the states of the disk after a loss of power now. `fail_after` loses power in the
middle of an operation.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import Final

from ottla.broker.log.files.file_system import Buffer, Lock, Mapping

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096


class PowerLoss(BaseException):
    """The machine stops in the middle of an operation."""


class Loss(Enum):
    """The fate of writes that were not synced."""

    DROPPED = auto()
    """None of them reached the disk."""
    KEPT = auto()
    """All of them did: only the process died."""
    PREFIX = auto()
    """The first writes did, up to some sector."""
    REORDERED = auto()
    """Some blocks did and others did not."""
    ZEROED = auto()
    """The file has its size, the blocks at its end hold zeros."""
    GARBAGE = auto()
    """The file has its size, the blocks at its end hold earlier content of the disk."""


class _Node:
    __slots__ = ("content", "durable", "modified_ms")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytes(content)
        self.modified_ms = 0


@dataclass(slots=True)
class _Directory:
    names: dict[str, _Node | _Directory] = field(default_factory=dict)
    durable: dict[str, _Node | _Directory] = field(default_factory=dict)
    pending: list[tuple[str | None, str, _Node | _Directory | None]] = field(default_factory=list)
    """(name before, name, node) since the last sync: a rename is one change, a removal has no node."""


class MemoryFile:
    """An open file of `MemoryFiles`."""

    __slots__ = ("_files", "_node", "path")

    def __init__(self, files: MemoryFiles, path: Path, node: _Node) -> None:
        self._files = files
        self._node = node
        self.path = path

    def fileno(self) -> int:
        raise NotImplementedError("there is no descriptor in memory")

    def size(self) -> int:
        return len(self._node.content)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._files.step(self._node, bytes(data), position)
        room = self._files.take(max(0, position + len(data) - len(self._node.content)))
        written = len(data) - room
        self._write(bytes(data)[:written], position)
        if written < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def _write(self, data: bytes, position: int) -> None:
        content = self._node.content
        if len(content) < position:
            content += bytes(position - len(content))
        content[position : position + len(data)] = data

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self._node.content[position : position + size])

    def truncate(self, size: int) -> None:
        self._files.step()
        content = self._node.content
        if size < len(content):
            self._files.give(len(content) - size)
            del content[size:]
        else:
            content += bytes(size - len(content))

    def reserve(self, position: int, size: int) -> None:
        self._files.step()
        missing = position + size - len(self._node.content)
        if missing > 0:
            if self._files.take(missing):
                raise OSError(errno.ENOSPC, "No space left on device")
            self._node.content += bytes(missing)

    def sync(self) -> None:
        self._files.step()
        if self._files.sync_error is not None:
            raise self._files.sync_error
        self._node.durable = bytes(self._node.content)

    def map(self, size: int, *, writable: bool) -> Mapping:
        view = memoryview(self._node.content)[:size]
        return view if writable else view.toreadonly()


class _MemoryLock:
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """A file system in memory; one volume for everything."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._root = _Directory()
        self._free = capacity_bytes
        self._steps_left: int | None = None
        self._chance = Random(0)
        self.steps = 0
        """Changing operations so far."""
        self.sync_error: OSError | None = None
        """Raised by every `sync` while it is set."""
        self.is_full = False
        """Whether nothing finds room, however much was free before."""
        self._locked: set[Path] = set()

    # ---- space and power

    def take(self, size: int) -> int:
        """Use up space; returns the bytes that found none."""
        if self.is_full:
            return size
        if self._free is None:
            return 0
        missing = max(0, size - self._free)
        self._free -= size - missing
        return missing

    def give(self, size: int) -> None:
        """Give space back."""
        if self._free is not None:
            self._free += size

    def fail_after(self, steps: int, chance: Random) -> None:
        """Lose power after so many further changing operations, the last of them possibly half done."""
        self._steps_left, self._chance = steps, chance

    def step(self, node: _Node | None = None, data: bytes = b"", position: int = 0) -> None:
        """Count a changing operation. Raises PowerLoss when the power is lost in it."""
        self.steps += 1
        if self._steps_left is None:
            return
        if self._steps_left == 0:
            if node is not None and len(node.content) >= position:
                node.content[position : position + len(data)] = data[: self._chance.randrange(len(data) + 1)]
            raise PowerLoss
        self._steps_left -= 1

    def crash(self, chance: Random, loss: Loss | None = None) -> MemoryFiles:
        """A possible state of the disk after a loss of power now. This one stays unchanged."""
        after = MemoryFiles()
        loss = loss or chance.choice(list(Loss))
        copies: dict[int, _Node] = {}
        after._root = _crashed_directory(self._root, loss, chance, copies)
        return after

    # ---- finding

    def _find(self, path: Path) -> _Node | _Directory | None:
        node: _Node | _Directory | None = self._root
        for name in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.names.get(name)
        return node

    def _directory(self, path: Path) -> _Directory:
        found = self._find(path)
        if not isinstance(found, _Directory):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found

    def _node(self, path: Path) -> _Node:
        found = self._find(path)
        if not isinstance(found, _Node):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return found

    def _change(self, directory: _Directory, name: str, node: _Node | _Directory | None) -> None:
        directory.pending.append((None, name, node))
        if node is None:
            del directory.names[name]
        else:
            directory.names[name] = node

    # ---- Files

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        found = self._find(path)
        if found is None and create:
            self.step()
            found = _Node()
            self._change(self._directory(path.parent), path.name, found)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        return MemoryFile(self, path, found if found is not None else self._node(path))

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: Path) -> bool:
        return isinstance(self._find(path), _Directory)

    def size(self, path: Path) -> int:
        return len(self._node(path).content)

    def modified_ms(self, path: Path) -> int:
        return self._node(path).modified_ms

    def set_modified_ms(self, path: Path, time_ms: int) -> None:
        self._node(path).modified_ms = time_ms

    def list(self, path: Path) -> list[str]:
        return sorted(self._directory(path).names)

    def make_dirs(self, path: Path) -> bool:
        is_new = self._find(path) is None
        for parent in [*reversed(path.parents), path][1:]:
            if self._find(parent) is None:
                self.step()
                self._change(self._directory(parent.parent), parent.name, _Directory())
        return is_new

    def read(self, path: Path) -> bytes:
        return bytes(self._node(path).content)

    def rename(self, source: Path, target: Path) -> None:
        moved = self._find(source)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
        if source.parent != target.parent:
            raise NotImplementedError("only within a directory")
        self.step()
        directory = self._directory(source.parent)
        directory.pending.append((source.name, target.name, moved))
        del directory.names[source.name]
        directory.names[target.name] = moved

    def unlink(self, path: Path) -> None:
        if isinstance(self._find(path), _Node):
            self.step()
            self.give(self.size(path))
            self._change(self._directory(path.parent), path.name, None)

    def remove_tree(self, path: Path) -> None:
        self._directory(path)
        self.step()
        self._change(self._directory(path.parent), path.name, None)

    def sync_dir(self, path: Path) -> None:
        self.step()
        directory = self._directory(path)
        directory.durable = dict(directory.names)
        directory.pending.clear()

    def space(self, path: Path) -> tuple[int, int]:
        free = 1 << 40 if self._free is None else self._free
        return (1 << 40, 0 if self.is_full else free)

    def lock(self, path: Path) -> Lock | None:
        if path in self._locked:
            return None
        self._locked.add(path)
        return _MemoryLock(self._locked, path)


def _crashed_directory(
    directory: _Directory, loss: Loss, chance: Random, copies: dict[int, _Node]
) -> _Directory:
    names = dict(directory.durable)
    for before, name, node in _surviving(directory.pending, loss, chance):
        names.pop(name, None)
        if before is not None:
            names.pop(before, None)
        if node is not None:
            names[name] = node
    found: dict[str, _Node | _Directory] = {}
    for name, node in names.items():
        if isinstance(node, _Directory):
            found[name] = _crashed_directory(node, loss, chance, copies)
        else:
            if id(node) not in copies:
                copies[id(node)] = _crashed_file(node, loss, chance)
            found[name] = copies[id(node)]
    return _Directory(dict(found), dict(found))


_Change = tuple[str | None, str, "_Node | _Directory | None"]


def _surviving(pending: list[_Change], loss: Loss, chance: Random) -> list[_Change]:
    """The changes of a directory that reached the disk; each one independently if they are reordered."""
    match loss:
        case Loss.DROPPED:
            return []
        case Loss.KEPT:
            return pending
        case Loss.REORDERED:
            return [change for change in pending if chance.random() < 0.5]
        case _:
            return pending[: chance.randrange(len(pending) + 1)]


def _crashed_file(node: _Node, loss: Loss, chance: Random) -> _Node:
    old, new = node.durable, bytes(node.content)
    if old == new:
        return _Node(new)
    match loss:
        case Loss.DROPPED:
            return _Node(old)
        case Loss.KEPT:
            return _Node(new)
        case Loss.PREFIX:
            return _Node(_torn(old, new, chance))
        case Loss.REORDERED:
            return _Node(_reordered(old, new, chance))
        case _:
            return _Node(_bad_tail(old, new, loss, chance))


def _first_difference(old: bytes, new: bytes) -> int:
    for at, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            return at
    return min(len(old), len(new))


def _torn(old: bytes, new: bytes, chance: Random) -> bytes:
    """New up to some point, mostly the end of a sector, old behind it."""
    start = _first_difference(old, new)
    cut = chance.randrange(start, max(len(new), start) + 1)
    if chance.random() < 0.7:
        cut = max(start, cut // SECTOR_BYTES * SECTOR_BYTES)
    return new[:cut] + old[cut:]


def _reordered(old: bytes, new: bytes, chance: Random) -> bytes:
    """Each block is new or old independently of the others; zeros where the old file has none."""
    block = chance.choice((SECTOR_BYTES, PAGE_BYTES))
    size = chance.choice((len(old), len(new), max(len(old), len(new))))
    pieces = []
    for start in range(0, size, block):
        source = new if chance.random() < 0.5 else old
        piece = source[start : min(start + block, size)]
        pieces.append(piece + bytes(min(block, size - start) - len(piece)))
    return b"".join(pieces)


def _bad_tail(old: bytes, new: bytes, loss: Loss, chance: Random) -> bytes:
    """The new size, and from somewhere in the unsynced part on zeros or garbage."""
    start = _first_difference(old, new)
    if start >= len(new):
        return new
    cut = chance.randrange(start, len(new))
    size = len(new) - cut
    return new[:cut] + (bytes(size) if loss is Loss.ZEROED else chance.randbytes(size))
