"""The operations of a session, written once over the transport that carries them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, cast

from ottla.zookeeper._session_state import SessionStateMachine
from ottla.zookeeper.errors import IllegalName, NodeExists, NoNode, ValueTooLarge
from ottla.zookeeper.paths import parent_of, why_illegal_path
from ottla.zookeeper.session import (
    MAX_VALUE_BYTES,
    NULL,
    Create,
    Delete,
    Operation,
    Operations,
    SessionState,
    SetData,
    Stat,
    StateChange,
    Watch,
)
from ottla.zookeeper.watches import WatchKind


class Read(Enum):
    """The reads of ZooKeeper."""

    GET = "get"
    EXISTS = "exists"
    CHILDREN = "children"

    @property
    def watch_kind(self) -> WatchKind:
        """The kind of watch that this read arms."""
        return WatchKind.CHILDREN if self is Read.CHILDREN else WatchKind.DATA


class Transport(Protocol):
    """Sends a checked request to ZooKeeper and returns the response."""

    async def read(self, what: Read, path: str, watch: Watch | None, session_number: int | None) -> object:
        """Return `(data, stat)`, `stat | None` or the sorted children."""

    async def write(
        self, operations: Sequence[Operation], session_number: int | None
    ) -> list[str | Stat | None]:
        """Apply all operations or none."""

    async def flush(self, path: str, session_number: int | None) -> None:
        """Wait until the server has applied all earlier writes."""


class CheckedOperations:
    """`Operations` over a transport, bound to a session number, or to none (None)."""

    def __init__(self, transport: Transport, session_number: int | None = None) -> None:
        self._transport = transport
        self._bound_to = session_number

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        """Return data and stat; see `Operations`."""
        answer = await self._transport.read(Read.GET, _checked(path), watch, self._bound_to)
        return cast("tuple[bytes, Stat]", answer)

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Return the stat or None; see `Operations`."""
        answer = await self._transport.read(Read.EXISTS, _checked(path), watch, self._bound_to)
        return cast("Stat | None", answer)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Return the children's names, sorted; see `Operations`."""
        answer = await self._transport.read(Read.CHILDREN, _checked(path), watch, self._bound_to)
        return cast("list[str]", answer)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode and return its path; see `Operations`."""
        operation = Create(path, data, ephemeral, sequential)
        try:
            return await self._create(operation)
        except NoNode:
            if not make_parents:
                raise
        await self._make(parent_of(path))
        return await self._create(operation)

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Replace the data; see `Operations`."""
        return cast("Stat", (await self._write([SetData(path, data, version)]))[0])

    async def delete(self, path: str, version: int = -1) -> None:
        """Delete a znode; see `Operations`."""
        await self._write([Delete(path, version)])

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Apply all operations or none; see `Operations`."""
        return await self._write(operations) if operations else []

    async def sync(self, path: str = "/") -> None:
        """Make later reads see all earlier commits; see `Operations`."""
        await self._transport.flush(_checked(path), self._bound_to)

    async def _create(self, operation: Create) -> str:
        return cast("str", (await self._write([operation]))[0])

    async def _make(self, path: str) -> None:
        try:
            await self.create(path, NULL, make_parents=True)
        except NodeExists:
            return  # another client made it meanwhile

    async def _write(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        _check_operations(operations)
        return await self._transport.write(operations, self._bound_to)


class SessionOperations(CheckedOperations):
    """The part of `Session` that all implementations share."""

    def __init__(self, transport: Transport, session_state: SessionStateMachine, timeout_ms: int) -> None:
        super().__init__(transport)
        self._session_state = session_state
        self._timeout_ms = timeout_ms

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the session, 0 before the first."""
        return self._session_state.session_id

    @property
    def session_number(self) -> int:
        """Rises whenever the session is lost or presumed lost."""
        return self._session_state.session_number

    @property
    def connected(self) -> bool:
        """Whether operations can be sent now."""
        return self._session_state.connected

    @property
    def state(self) -> SessionState:
        """The session's state."""
        return self._session_state.state

    @property
    def timeout_ms(self) -> int:
        """How long the session outlives its connection."""
        return self._timeout_ms

    @property
    def armed_watches(self) -> int:
        """The number of armed watches."""
        return len(self._session_state.watches)

    def bound(self, session_number: int | None = None) -> Operations:
        """Return the operations bound to a session number, by default the current one."""
        return CheckedOperations(
            self._transport, self._session_state.session_number if session_number is None else session_number
        )

    def listen(self, listener: Callable[[StateChange], None]) -> Callable[[], None]:
        """Call `listener` at every state change; return a function that removes it."""
        return self._session_state.listen(listener)

    async def wait_connected(self, timeout_ms: int | None = None) -> None:
        """Return once connected; raises ConnectionLoss after `timeout_ms`."""
        await self._session_state.wait_connected(self._timeout_ms if timeout_ms is None else timeout_ms)


def _checked(path: str, *, sequential: bool = False) -> str:
    reason = why_illegal_path(path + "0" if sequential else path)
    if reason is not None:
        raise IllegalName(path, reason)
    return path


def _check_operations(operations: Sequence[Operation]) -> None:
    size = 0
    for operation in operations:
        _checked(operation.path, sequential=isinstance(operation, Create) and operation.sequential)
        if isinstance(operation, Create | SetData):
            size += len(operation.data)
    if size > MAX_VALUE_BYTES:
        raise ValueTooLarge(operations[0].path, f"{size} bytes, at most {MAX_VALUE_BYTES}")
