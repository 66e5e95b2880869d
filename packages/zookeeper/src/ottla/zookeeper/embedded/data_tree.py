"""The data tree of a ZooKeeper, pure state: znodes and sessions, changed only by transactions.

`plan` checks a write against the state, changes nothing, and returns a transaction that cannot fail; `apply`
executes it. The same transactions in the same order always give the same state, so the journal stores
transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.zookeeper.errors import (
    BadArguments,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    ZooKeeperError,
)
from ottla.zookeeper.paths import name_of, parent_of, why_illegal_path
from ottla.zookeeper.session import (
    OPEN_ACL,
    Acl,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    SetData,
    Stat,
)
from ottla.zookeeper.watches import TreeEvent

SYSTEM_PATHS = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")


# -- transactions


class NodeCreated(NamedTuple):
    """A znode was created; `owner` is the session of an ephemeral znode, else 0."""

    path: str
    data: bytes
    acl: tuple[Acl, ...]
    owner: int


class NodeDeleted(NamedTuple):
    """A znode was deleted."""

    path: str


class DataSet(NamedTuple):
    """A znode has new data."""

    path: str
    data: bytes


class AclSet(NamedTuple):
    """A znode has a new ACL."""

    path: str
    acl: tuple[Acl, ...]


class SessionOpened(NamedTuple):
    """A session was opened."""

    session_id: int
    password: bytes
    timeout_ms: int


class SessionClosed(NamedTuple):
    """A session was closed, and its ephemerals deleted."""

    session_id: int


class Checked(NamedTuple):
    """A version matched; changes nothing."""

    path: str


Change = NodeCreated | NodeDeleted | DataSet | AclSet | SessionOpened | SessionClosed | Checked


class Transaction(NamedTuple):
    """Changes that are applied together."""

    zxid: int
    time_ms: int
    changes: tuple[Change, ...]


class Applied(NamedTuple):
    """The results of a transaction: per change the created path and its stat, the new stat, or None."""

    results: list[tuple[str, Stat | None]]
    events: list[TreeEvent]


# -- state


@dataclass(slots=True)
class Node:
    """One znode."""

    data: bytes
    acl: tuple[Acl, ...]
    owner: int = 0
    czxid: int = 0
    mzxid: int = 0
    pzxid: int = 0
    ctime_ms: int = 0
    mtime_ms: int = 0
    version: int = 0
    cversion: int = 0
    aversion: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        """Return its bookkeeping."""
        # Only creations are counted; deletions follow from the number of children left.
        shown_cversion = 2 * self.cversion - len(self.children)
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime_ms,
            self.mtime_ms,
            self.version,
            shown_cversion,
            self.aversion,
            self.owner,
            len(self.data),
            len(self.children),
            self.pzxid,
        )


@dataclass(slots=True)
class SessionRecord:
    """One session."""

    session_id: int
    password: bytes
    timeout_ms: int
    ephemerals: set[str] = field(default_factory=set)


class Tree:
    """All znodes and sessions."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Node] = {"/": Node(b"", OPEN_ACL)}
        self.sessions: dict[int, SessionRecord] = {}
        for path in SYSTEM_PATHS:
            self.nodes[path] = Node(b"", OPEN_ACL)
            self.nodes[parent_of(path)].children.add(name_of(path))
            self.nodes[parent_of(path)].cversion += 1
        self.nodes["/"].cversion = 0  # as a fresh ZooKeeper shows it

    # -- reading

    def node(self, path: str) -> Node:
        """Return a znode; raises NoNode."""
        node = self.nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    # -- planning

    def plan(self, operations: Sequence[Operation], session_id: int, time_ms: int) -> Transaction:
        """Return the transaction of `operations`, changing nothing.

        Raises the error of the first operation that is not possible, with its `operation_index`.
        """
        if session_id not in self.sessions:
            raise SessionExpired()
        draft = _Draft(self, session_id)
        changes: list[Change] = []
        for index, operation in enumerate(operations):
            try:
                changes.append(draft.add(operation))
            except ZooKeeperError as error:
                error.operation_index = index
                raise
        return Transaction(self.zxid + 1, time_ms, tuple(changes))

    def plan_acl(self, path: str, acl: tuple[Acl, ...], aversion: int, time_ms: int) -> Transaction:
        """Return the transaction that replaces an ACL."""
        _check_version(path, self.node(checked_path(path)).aversion, aversion)
        return Transaction(self.zxid + 1, time_ms, (AclSet(path, acl),))

    def plan_session(self, session_id: int, password: bytes, timeout_ms: int, time_ms: int) -> Transaction:
        """Return the transaction that opens a session."""
        return Transaction(self.zxid + 1, time_ms, (SessionOpened(session_id, password, timeout_ms),))

    def plan_close(self, session_id: int, time_ms: int) -> Transaction:
        """Return the transaction that closes a session and deletes its ephemerals."""
        return Transaction(self.zxid + 1, time_ms, (SessionClosed(session_id),))

    # -- applying

    def apply(self, transaction: Transaction) -> Applied:
        """Execute a transaction that was planned on exactly this state."""
        self.zxid = transaction.zxid
        applied = Applied([], [])
        for change in transaction.changes:
            applied.results.append(self._apply(change, transaction, applied.events))
        return applied

    def _apply(
        self, change: Change, transaction: Transaction, events: list[TreeEvent]
    ) -> tuple[str, Stat | None]:
        match change:
            case NodeCreated():
                return change.path, self._create(change, transaction, events).stat()
            case NodeDeleted(path):
                self._delete(path, transaction.zxid, events)
                return path, None
            case DataSet(path, data):
                node = self.nodes[path]
                node.data, node.version = data, node.version + 1
                node.mzxid, node.mtime_ms = transaction.zxid, transaction.time_ms
                events.append(TreeEvent(EventType.CHANGED, path))
                return path, node.stat()
            case AclSet(path, acl):
                node = self.nodes[path]
                node.acl, node.aversion = acl, node.aversion + 1
                return path, node.stat()
            case SessionOpened(session_id, password, timeout_ms):
                self.sessions[session_id] = SessionRecord(session_id, password, timeout_ms)
            case SessionClosed(session_id):
                self._close(session_id, transaction.zxid, events)
            case Checked():
                pass
        return "", None

    def _create(self, change: NodeCreated, transaction: Transaction, events: list[TreeEvent]) -> Node:
        path, zxid, time_ms = change.path, transaction.zxid, transaction.time_ms
        node = Node(change.data, change.acl, change.owner, zxid, zxid, zxid, time_ms, time_ms)
        self.nodes[path] = node
        parent = self.nodes[parent_of(path)]
        parent.children.add(name_of(path))
        parent.cversion += 1
        parent.pzxid = zxid
        if change.owner in self.sessions:
            self.sessions[change.owner].ephemerals.add(path)
        events.append(TreeEvent(EventType.CREATED, path))
        events.append(TreeEvent(EventType.CHILD, parent_of(path)))
        return node

    def _delete(self, path: str, zxid: int, events: list[TreeEvent]) -> None:
        node = self.nodes.pop(path)
        parent = self.nodes[parent_of(path)]
        parent.children.discard(name_of(path))
        parent.pzxid = zxid
        if node.owner in self.sessions:
            self.sessions[node.owner].ephemerals.discard(path)
        events.append(TreeEvent(EventType.DELETED, path))
        events.append(TreeEvent(EventType.CHILD, parent_of(path)))

    def _close(self, session_id: int, zxid: int, events: list[TreeEvent]) -> None:
        record = self.sessions.get(session_id)
        if record is None:
            return
        for path in sorted(record.ephemerals):
            self._delete(path, zxid, events)
        del self.sessions[session_id]


def checked_path(path: str) -> str:
    """Return `path` if it is legal; raises BadArguments."""
    reason = why_illegal_path(path)
    if reason is not None:
        raise BadArguments(path, reason)
    return path


def _check_version(path: str, version: int, expected: int) -> None:
    if expected not in (-1, version):
        raise BadVersion(path, f"version is {version}, not {expected}")


@dataclass(slots=True)
class _Facts:
    """The facts of one znode that planning needs, as of the operations planned so far."""

    version: int
    cversion: int
    num_children: int
    owner: int


class _Draft:
    """The state as a multi's later operations see it after its earlier ones."""

    def __init__(self, tree: Tree, session_id: int) -> None:
        self._tree = tree
        self._session_id = session_id
        self._seen: dict[str, _Facts | None] = {}

    def add(self, operation: Operation) -> Change:
        """Check one operation, record its effect, return the change."""
        match operation:
            case Create():
                return self._create(operation)
            case SetData(path, data, version):
                facts = self._existing(checked_path(path))
                _check_version(path, facts.version, version)
                facts.version += 1
                return DataSet(path, data)
            case Delete(path, version):
                return self._delete(path, version)
            case Check(path, version):
                _check_version(path, self._existing(checked_path(path)).version, version)
                return Checked(path)

    def _create(self, operation: Create) -> Change:
        # A sequential name may consist of its number: "/a/" becomes "/a/0000000000".
        checked_path(operation.path + "0" if operation.sequential else operation.path)
        parent = self._look(parent_of(operation.path))
        if parent is None:
            raise NoNode(operation.path)
        path = operation.path
        if operation.sequential:
            path = f"{path}{parent.cversion:010d}"
        if self._look(path) is not None:
            raise NodeExists(path)
        if parent.owner:
            raise NoChildrenForEphemerals(path)
        owner = self._session_id if operation.ephemeral else 0
        parent.cversion += 1
        parent.num_children += 1
        self._seen[path] = _Facts(0, 0, 0, owner)
        return NodeCreated(path, operation.data, operation.acl or OPEN_ACL, owner)

    def _delete(self, path: str, version: int) -> Change:
        if path == "/" or not path.startswith("/"):
            raise BadArguments(path, "cannot be deleted")
        facts = self._existing(path)
        _check_version(path, facts.version, version)
        if facts.num_children:
            raise NotEmpty(path)
        parent = self._existing(parent_of(path))
        parent.num_children -= 1
        self._seen[path] = None
        return NodeDeleted(path)

    def _existing(self, path: str) -> _Facts:
        facts = self._look(path)
        if facts is None:
            raise NoNode(path)
        return facts

    def _look(self, path: str) -> _Facts | None:
        if path not in self._seen:
            node = self._tree.nodes.get(path)
            self._seen[path] = (
                None if node is None else _Facts(node.version, node.cversion, len(node.children), node.owner)
            )
        return self._seen[path]
