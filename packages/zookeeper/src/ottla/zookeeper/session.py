"""The protocol `Session` that the broker and the consumer use, and its types.

`KazooSession` implements it with a server, `testing.MemorySession` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.zookeeper.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationTimeout,
    SessionExpired,
    ZooKeeperError,
)
from ottla.zookeeper.frozen_classes import frozen

__all__ = [
    "MAX_VALUE_BYTES",
    "NULL",
    "OPEN_ACL",
    "Acl",
    "AclOperations",
    "BadVersion",
    "Check",
    "ConnectionLoss",
    "Create",
    "Delete",
    "EventType",
    "NoNode",
    "NodeExists",
    "NotEmpty",
    "Operation",
    "OperationTimeout",
    "Operations",
    "Session",
    "SessionExpired",
    "SessionState",
    "SetData",
    "Stat",
    "StateChange",
    "Watch",
    "WatchEvent",
    "ZooKeeperError",
]

MAX_VALUE_BYTES = 900_000
"""Largest value, or sum of the values of a multi, that is sent; servers drop the connection near 1 MiB."""


class _Null(bytes):
    """The type of `NULL` alone."""

    __slots__ = ()


NULL: Final[bytes] = _Null()
"""A znode's data that is null: equal to `b""`, but written as null, Apache Kafka's "no data"."""


class Stat(NamedTuple):
    """The bookkeeping of a znode, in ZooKeeper's wire order. Times are milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Acl(NamedTuple):
    """An ACL entry: permission bits, scheme and identity."""

    permissions: int
    scheme: str
    identity: str


ALL_PERMISSIONS = 31
READ_PERMISSION = 1
OPEN_ACL: tuple[Acl, ...] = (Acl(ALL_PERMISSIONS, "world", "anyone"),)


class EventType(IntEnum):
    """The kind of a watch event; NONE: the connection was lost, and any change may have been missed."""

    NONE = -1
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchEvent(NamedTuple):
    """A hint that `path` changed: read it again, the event does not carry the new state."""

    type: EventType
    path: str
    session_number: int


Watch = Callable[[WatchEvent], None]
"""Called once, on the event loop. Must not block or raise. Use one stable callable per path."""


class SessionState(Enum):
    """The state of a session.

    CONNECTING: not connected yet. CONNECTED: operations work. SUSPENDED: the connection is lost, the
    session may still exist. LOST: the session expired, or the client must presume so; every operation
    decided before fails. CLOSED: closed by its owner.
    """

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class StateChange(NamedTuple):
    """A session entered `state`. CONNECTED with an unchanged `session_id` is the same session again."""

    state: SessionState
    session_number: int
    session_id: int


@frozen
class Create:
    """Create a znode. `acl` None means the session's default."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[Acl, ...] | None = None


@frozen
class SetData:
    """Replace the data if the version matches; -1 matches any."""

    path: str
    data: bytes
    version: int = -1


@frozen
class Delete:
    """Delete a znode without children if the version matches; -1 matches any."""

    path: str
    version: int = -1


@frozen
class Check:
    """Fail the multi unless the znode has this version; -1 requires only that it exists."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class Operations(Protocol):
    """The operations of ZooKeeper.

    Each raises a `ZooKeeperError`: most often NoNode, NodeExists, BadVersion, NotEmpty, SessionExpired,
    ConnectionLoss or OperationTimeout. None waits longer than the session's operation timeout; without a
    connection they fail at once with ConnectionLoss.
    """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and stat; `watch` is armed for the next change or deletion."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the stat, None for a missing znode; `watch` is armed in both cases."""

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the names of the children, sorted; `watch` is armed for the next change of the list."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode and return its path, which for a sequential one ends in ten digits."""

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Replace the data and return the new stat."""

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode that has no children."""

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Apply all operations or none. Return each Create's path, each SetData's stat, None for others.

        Raises the error of the operation that failed, with its `operation_index`.
        """

    async def sync(self, path: str = "/") -> None:
        """Make later reads see every write that was committed before this call."""


class AclOperations(Operations, Protocol):
    """Operations with the reading and writing of ACLs, for tools; brokers give an ACL as they create."""

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        """Return the ACL and the stat of a znode."""

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> None:
        """Replace the ACL, if `version` is the stat's `aversion`; -1 matches any."""


class Session(Operations, Protocol):
    """A client's session, and its successors after it expires.

    Watches are one-shot. After a reconnect every armed watch fires once with type NONE; reading again arms
    it again.
    """

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the current session, equal to `Stat.ephemeral_owner`; 0 before the first."""

    @property
    def session_number(self) -> int:
        """Rises whenever the session is lost or must be presumed lost."""

    @property
    def connected(self) -> bool:
        """Whether operations can be sent now."""

    @property
    def state(self) -> SessionState:
        """The session's state."""

    @property
    def timeout_ms(self) -> int:
        """How long the session outlives its connection."""

    def bound(self, session_number: int | None = None) -> Operations:
        """Return the operations bound to a session number, by default the current one.

        Once the number has changed, every operation raises SessionExpired and sends nothing, so that a
        decision made in one session is never executed in the next.
        """

    def listen(self, listener: Callable[[StateChange], None]) -> Callable[[], None]:
        """Call `listener` on the loop at every state change, in order; return a function that removes it."""

    async def wait_connected(self, timeout_ms: int | None = None) -> None:
        """Return once connected; raises ConnectionLoss after `timeout_ms` (default: the session timeout)."""
