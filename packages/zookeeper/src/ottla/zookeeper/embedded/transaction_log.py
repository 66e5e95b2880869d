"""The transaction log of a tree, in the file `journal`, and its snapshot.

`journal` is a header with the zxid it starts after, then one record per write to the disk: length, CRC-32,
and the transactions that were written together. `snapshot` is one record of the whole tree with a CRC. Both
are replaced by rename, and a record is written after the one before it is synced, so only the last record of
the journal can be torn. Recovery drops it, and returns the state after a prefix of the transactions that
contains every synced one. A bad record with a valid one behind it was damaged later: recovery refuses,
because acknowledged transactions are lost.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final

from ottla.zookeeper.embedded import wire
from ottla.zookeeper.embedded.data_tree import (
    AclSet,
    Change,
    Checked,
    DataSet,
    Node,
    NodeCreated,
    NodeDeleted,
    SessionClosed,
    SessionOpened,
    SessionRecord,
    Transaction,
    Tree,
)
from ottla.zookeeper.errors import Marshalling, ZooKeeperError
from ottla.zookeeper.paths import name_of, parent_of
from ottla.zookeeper.session import Acl

log = logging.getLogger(__name__)

JOURNAL_MAGIC = b"OTTLAZJ1"
SNAPSHOT_MAGIC = b"OTTLAZS1"
JOURNAL_FILE: Final = "journal"
SNAPSHOT_FILE: Final = "snapshot"
_RECORD = struct.Struct("!II")
HEADER_BYTES = len(JOURNAL_MAGIC) + wire.LONG.size
_NODE = struct.Struct("!qqqqqqiii")
_SMALLEST_TRANSACTION_BYTES: Final = 2 * wire.LONG.size + wire.INT.size
_PROBE_BYTES: Final = 1 << 20

RUN_OUT: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""Errors of a write that succeeds later, when there is room again."""


class Fsync(Enum):
    """When the journal is synced: ALWAYS before a dependent response, or NEVER, left to the kernel."""

    ALWAYS = "always"
    NEVER = "never"


class DamagedJournal(ZooKeeperError):
    """The files contradict each other; starting would lose acknowledged writes."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.detail}: restore the directory from a copy, or make its topics anew from "
            "the log directories with `ottla zookeeper rebuild`"
        )


class DirectoryInUse(ZooKeeperError):
    """Another coordinator uses the directory."""


# -- transactions as bytes


def encode_transaction(transaction: Transaction) -> bytes:
    """Return the payload of a record."""
    head = wire.LONG.pack(transaction.zxid) + wire.LONG.pack(transaction.time_ms)
    return head + wire.INT.pack(len(transaction.changes)) + b"".join(map(_encode_change, transaction.changes))


def _encode_change(change: Change) -> bytes:
    match change:
        case NodeCreated(path, data, acl, owner):
            return b"c" + wire.text(path) + wire.buffer(data) + wire.acl(acl) + wire.LONG.pack(owner)
        case NodeDeleted(path):
            return b"d" + wire.text(path)
        case DataSet(path, data):
            return b"s" + wire.text(path) + wire.buffer(data)
        case AclSet(path, acl):
            return b"a" + wire.text(path) + wire.acl(acl)
        case SessionOpened(session_id, password, timeout_ms):
            return b"o" + wire.LONG.pack(session_id) + wire.buffer(password) + wire.INT.pack(timeout_ms)
        case SessionClosed(session_id):
            return b"x" + wire.LONG.pack(session_id)
        case Checked(path):
            return b"v" + wire.text(path)


def decode_transactions(payload: bytes) -> Iterator[Transaction]:
    """Read the payload of a record; raises Marshalling."""
    reader = _KindReader(payload)
    while not reader.at_end:
        zxid, time_ms = reader.long(), reader.long()
        count = reader.integer()
        yield Transaction(zxid, time_ms, tuple(_decode_change(reader) for _ in range(count)))


class _KindReader(wire.Reader):
    @property
    def at_end(self) -> bool:
        return self._position >= len(self._frame)

    def kind(self) -> bytes:
        self._position += 1
        return self._frame[self._position - 1 : self._position]


def _decode_change(reader: _KindReader) -> Change:
    match reader.kind():
        case b"c":
            return NodeCreated(reader.text(), reader.data(), reader.acl(), reader.long())
        case b"d":
            return NodeDeleted(reader.text())
        case b"s":
            return DataSet(reader.text(), reader.data())
        case b"a":
            return AclSet(reader.text(), reader.acl())
        case b"o":
            return SessionOpened(reader.long(), reader.buffer(), reader.integer())
        case b"x":
            return SessionClosed(reader.long())
        case b"v":
            return Checked(reader.text())
    raise Marshalling("", "unknown change")


def record(payload: bytes) -> bytes:
    """Prefix a payload with length and CRC."""
    return _RECORD.pack(len(payload), zlib.crc32(payload)) + payload


def records(data: bytes, position: int) -> Iterator[tuple[bytes, int]]:
    """Yield each payload and its end, up to the first that is torn or damaged."""
    while (payload := record_at(data, position)) is not None:
        position += record_bytes(payload)
        yield payload, position


def record_bytes(payload: bytes) -> int:
    """Return the size of a payload's record."""
    return _RECORD.size + len(payload)


def record_at(data: bytes, position: int) -> bytes | None:
    """Return the payload of the record at `position`; None where there is none, or a torn or damaged one."""
    if position + _RECORD.size > len(data):
        return None
    length, crc = _RECORD.unpack_from(data, position)
    end = position + _RECORD.size + length
    # Zeros at the end would pass as an empty record with a correct CRC.
    if length == 0 or end > len(data):
        return None
    payload = data[position + _RECORD.size : end]
    return payload if zlib.crc32(payload) == crc else None


def next_record(data: bytes, position: int, zxid: int) -> int | None:
    """Return where the first valid record at or behind `position` begins; None without one.

    `zxid` is the last one before `position`. A payload begins with its first zxid, so only places that hold
    one that may follow are looked at.
    """
    end = len(data.rstrip(b"\0"))
    last = zxid + (len(data) - position) // _SMALLEST_TRANSACTION_BYTES + 1
    found = [
        where
        for high in range(zxid >> 16, (last >> 16) + 1)
        if (where := _record_with_zxid(data, position, end, high)) is not None
    ]
    return min(found, default=None)


def _record_with_zxid(data: bytes, position: int, end: int, high: int) -> int | None:
    """Return where the first valid record begins whose zxid begins with the six bytes of `high`."""
    prefix = wire.LONG.pack(high << 16)[:6]
    at = data.find(prefix, position + _RECORD.size, end)
    while at >= 0:
        if record_at(data, at - _RECORD.size) is not None:
            return at - _RECORD.size
        at = data.find(prefix, at + 1, end)
    return None


# -- snapshots as bytes


def encode_snapshot(tree: Tree) -> bytes:
    """Encode a whole tree as a snapshot file."""
    parts = [wire.LONG.pack(tree.zxid), wire.INT.pack(len(tree.sessions))]
    parts.extend(_encode_session(session) for session in tree.sessions.values())
    parts.append(wire.INT.pack(len(tree.nodes)))
    parts.extend(_encode_node(path, node) for path, node in tree.nodes.items())
    return SNAPSHOT_MAGIC + record(b"".join(parts))


def _encode_session(session: SessionRecord) -> bytes:
    return _encode_change(SessionOpened(session.session_id, session.password, session.timeout_ms))


def _encode_node(path: str, node: Node) -> bytes:
    numbers = _NODE.pack(
        node.owner,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime_ms,
        node.mtime_ms,
        node.version,
        node.cversion,
        node.aversion,
    )
    return wire.text(path) + wire.buffer(node.data) + wire.acl(node.acl) + numbers


def decode_snapshot(data: bytes) -> Tree:
    """Decode a snapshot file; raises DamagedJournal."""
    whole = list(records(data, len(SNAPSHOT_MAGIC)))
    if not data.startswith(SNAPSHOT_MAGIC) or len(whole) != 1:
        raise DamagedJournal("", "the snapshot is damaged")
    reader = _KindReader(whole[0][0])
    tree = Tree()
    tree.zxid = reader.long()
    for _ in range(reader.integer()):
        change = _decode_change(reader)
        assert isinstance(change, SessionOpened)
        tree.sessions[change.session_id] = SessionRecord(*change)
    tree.nodes = dict(_decode_node(reader) for _ in range(reader.integer()))
    _link(tree)
    return tree


def _decode_node(reader: wire.Reader) -> tuple[str, Node]:
    path, data, acl = reader.text(), reader.data(), reader.acl()
    owner, czxid, mzxid, pzxid, ctime, mtime, version, cversion, aversion = reader.unpack(_NODE)
    return path, Node(data, acl, owner, czxid, mzxid, pzxid, ctime, mtime, version, cversion, aversion)


def _link(tree: Tree) -> None:
    shared: dict[tuple[Acl, ...], tuple[Acl, ...]] = {}
    for path, node in tree.nodes.items():
        node.acl = shared.setdefault(node.acl, node.acl)
        if path != "/":
            tree.nodes[parent_of(path)].children.add(name_of(path))
        if node.owner in tree.sessions:
            tree.sessions[node.owner].ephemerals.add(path)


# -- files


class TransactionLog:
    """The files of a coordinator. `append` is for the event loop; what touches the disk blocks.

    `os_write` writes to a descriptor; tests give one that fails.
    """

    def __init__(
        self,
        directory: Path,
        *,
        fsync: Fsync = Fsync.ALWAYS,
        compact_above_bytes: int = 16 << 20,
        os_write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        self._directory = directory
        self._fsync = fsync
        self._compact_above_bytes = compact_above_bytes
        self._os_write = os_write
        self._pending: list[bytes] = []
        self._size = 0
        self._file = -1
        self._lock = -1

    def __enter__(self) -> TransactionLog:
        import fcntl  # not on Windows, where clients import this package for what they share with it

        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise DirectoryInUse(str(self._directory), "another coordinator uses it") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
        os.close(self._lock)

    def recover(self) -> Tree:
        """Recover the tree from the files, ready to append. Raises DamagedJournal."""
        tree = _read_snapshot(self._directory)
        path = self._journal
        if not path.exists():
            self._rename(self._beside(path, _header(tree.zxid)), path)
        data = path.read_bytes()
        end = _replay(tree, path, data)
        if end < len(data):
            log.warning("the journal's end is torn and was dropped", extra={"bytes": len(data) - end})
            self._keep_torn(data[end:])
        self._file = _open_journal(path)
        self._cut(end)
        return tree

    def _keep_torn(self, torn: bytes) -> None:
        """Keep bytes that are cut off for whoever looks for the cause, if there is room."""
        try:
            with open(self._directory / "journal.torn", "wb", opener=_for_the_owner) as file:
                file.write(torn)
        except OSError as error:  # a full disk has torn the record: it may be full still
            log.warning("the journal's torn end is not kept", extra={"reason": str(error.strerror or error)})

    def read_back(self) -> Tree:
        """Give up what was not written: cut its part from the journal, and read the tree on the disk."""
        self._pending.clear()
        self._cut(self._size)
        return read_tree(self._directory)

    @property
    def _journal(self) -> Path:
        return self._directory / JOURNAL_FILE

    def append(self, transaction: Transaction) -> None:
        """Buffer a transaction for the next `write`."""
        self._pending.append(encode_transaction(transaction))

    @property
    def dirty(self) -> bool:
        """Whether transactions wait for `write`."""
        return bool(self._pending)

    def take(self) -> bytes:
        """Remove the buffered transactions and return them as one record, for `write`."""
        pending, self._pending = self._pending, []
        return record(b"".join(pending))

    def write(self, chunk: bytes) -> None:
        """Append a record and sync it. After an OSError `read_back` is due, or nothing may be written."""
        self._write_all(chunk)
        if self._fsync is Fsync.ALWAYS:
            os.fdatasync(self._file)
        self._size += len(chunk)

    def has_room(self) -> bool:
        """Try whether the largest request could be written now. Raises OSError when not for lack of room."""
        try:
            self._write_all(bytes(_PROBE_BYTES))
            os.fdatasync(self._file)
        except OSError as error:
            if error.errno not in RUN_OUT:
                raise
            return False
        finally:
            self._cut(self._size)
        return True

    @property
    def wants_compaction(self) -> bool:
        """Whether the journal is long enough to be replaced by a snapshot."""
        return self._size > self._compact_above_bytes

    def compact(self, zxid: int, snapshot: bytes) -> None:
        """Replace snapshot and journal by `snapshot`, which holds all transactions up to `zxid`.

        All written transactions are among them. Replay skips those that are written afterwards. Without room
        the files stay as they are, and the journal grows by half before the next attempt.
        """
        try:
            new_snapshot = self._beside(self._directory / SNAPSHOT_FILE, snapshot)
            new_journal = self._beside(self._journal, _header(zxid))
        except OSError as error:
            if error.errno not in RUN_OUT:
                raise
            self._compact_above_bytes = self._size + self._size // 2
            log.warning("the journal cannot be shortened now", extra={"reason": str(error)})
            return
        file = _open_journal(new_journal)
        self._rename(new_snapshot, self._directory / SNAPSHOT_FILE)
        # Between the two renames the old journal repeats transactions of the snapshot; replay skips them.
        self._rename(new_journal, self._journal)
        os.close(self._file)
        self._file, self._size = file, HEADER_BYTES

    def _write_all(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._os_write(self._file, view) :]

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fsync(self._file)
        self._size = size

    def _beside(self, path: Path, data: bytes) -> Path:
        """Write `data` durably into a new file beside `path`, and return its path."""
        temporary = path.with_suffix(".new")
        try:
            with open(temporary, "wb", opener=_for_the_owner) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        return temporary

    def _rename(self, temporary: Path, path: Path) -> None:
        os.rename(temporary, path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _open_journal(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def read_tree(directory: Path) -> Tree:
    """Return the tree in the files of a coordinator, and change none. Raises DamagedJournal, OSError."""
    tree = _read_snapshot(directory)
    journal = directory / JOURNAL_FILE
    _replay(tree, journal, journal.read_bytes())
    return tree


def _read_snapshot(directory: Path) -> Tree:
    path = directory / SNAPSHOT_FILE
    try:
        return decode_snapshot(path.read_bytes()) if path.exists() else Tree()
    except DamagedJournal as error:
        raise DamagedJournal(str(path), error.detail) from None


def _replay(tree: Tree, journal: Path, data: bytes) -> int:
    try:
        return replay(tree, data)
    except DamagedJournal as error:
        raise DamagedJournal(str(journal), error.detail) from None


def _header(zxid: int) -> bytes:
    return JOURNAL_MAGIC + wire.LONG.pack(zxid)


def replay(tree: Tree, data: bytes) -> int:
    """Apply the records of a journal to `tree`; return the end of the valid part. Raises DamagedJournal."""
    if len(data) < HEADER_BYTES or not data.startswith(JOURNAL_MAGIC):
        raise DamagedJournal("", "the journal has no header")
    (base,) = wire.LONG.unpack_from(data, len(JOURNAL_MAGIC))
    if base > tree.zxid:
        raise DamagedJournal("", f"the journal starts after {base:#x}, the snapshot ends at {tree.zxid:#x}")
    end = HEADER_BYTES
    last = base
    for payload, after in records(data, HEADER_BYTES):
        for transaction in decode_transactions(payload):
            last = transaction.zxid
            if last > tree.zxid + 1:
                raise DamagedJournal("", f"transactions after {tree.zxid:#x} are missing")
            if last > tree.zxid:
                tree.apply(transaction)
        end = after
    behind = next_record(data, end, last)
    if behind is not None:
        raise DamagedJournal("", f"its bytes {end} to {behind} are damaged, and valid changes follow them")
    return end
