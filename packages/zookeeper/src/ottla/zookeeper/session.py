"""What the broker and the consumer ask of a ZooKeeper session, whoever provides it.

`KazooSession` provides it against a server, `testing.MemorySession` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

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

__all__ = [
    "MAX_VALUE_BYTES",
    "OPEN_ACL",
    "Acl",
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
    """Who may do what: permission bits, scheme and identity."""

    permissions: int
    scheme: str
    identity: str


ALL_PERMISSIONS = 31
READ_PERMISSION = 1
OPEN_ACL: tuple[Acl, ...] = (Acl(ALL_PERMISSIONS, "world", "anyone"),)


class EventType(IntEnum):
    """What a watch saw; NONE means that the connection was lost in between and anything may have happened."""

    NONE = -1
    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class WatchEvent(NamedTuple):
    """A hint that something at `path` moved: re-read, never take it for the news itself."""

    type: EventType
    path: str
    session_number: int


Watch = Callable[[WatchEvent], None]
"""Called once, on the event loop. Must not block or raise. Use one stable callable per path."""


class SessionState(Enum):
    """Where a session stands.

    CONNECTING: not connected yet. CONNECTED: operations work. SUSPENDED: the connection is
    gone, the session may live on. LOST: the session expired, or this side has to assume so;
    every operation decided before it fails. CLOSED: closed by its owner.
    """

    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


class StateChange(NamedTuple):
    """A session came into `state`. CONNECTED with an unchanged `session_id` is the same session again."""

    state: SessionState
    session_number: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. `acl` None means the session's default."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[Acl, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace the data if the version matches; -1 matches any."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode without children if the version matches; -1 matches any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Let a multi fail unless the znode has this version; -1 asks only that it is there."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


class Operations(Protocol):
    """The verbs. Each raises a `ZooKeeperError`: most often NoNode, NodeExists, BadVersion, NotEmpty,
    SessionExpired, ConnectionLoss or OperationTimeout. None waits longer than the session's
    operation timeout; without a connection they fail at once with ConnectionLoss.
    """

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and stat; `watch` is armed for the next change or deletion."""

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the stat, None for a missing znode; `watch` is armed either way."""

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
        """Do all or nothing. Return the path of each Create, the stat of each SetData, None for the others.

        Raises the error of the operation that failed, with its `operation_index`.
        """

    async def sync(self, path: str = "/") -> None:
        """Make later reads see everything that was committed before this call."""


class Session(Operations, Protocol):
    """One client's session, and the ones that follow when it expires.

    Watches are one-shot. They survive a lost connection in this sense: on reconnect every
    armed watch fires once with type NONE and has to be armed again by re-reading.
    """

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the current session, what `Stat.ephemeral_owner` shows; 0 before the first."""

    @property
    def session_number(self) -> int:
        """Rises every time the session is lost or has to be presumed lost."""

    @property
    def connected(self) -> bool:
        """Whether operations can be sent now."""

    @property
    def state(self) -> SessionState:
        """Where the session stands."""

    @property
    def timeout_ms(self) -> int:
        """How long the session outlives its connection."""

    def bound(self, session_number: int | None = None) -> Operations:
        """Return the verbs bound to one session number, the current one by default.

        Once the number moved every verb raises SessionExpired, without sending anything, so
        that a decision made in one session is never carried out in the next.
        """

    def listen(self, listener: Callable[[StateChange], None]) -> Callable[[], None]:
        """Call `listener` on the loop at every state change, in order; return how to stop it."""

    async def wait_connected(self, timeout_ms: int | None = None) -> None:
        """Return once connected; raises ConnectionLoss after `timeout_ms` (default: the session timeout)."""
