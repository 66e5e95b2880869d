"""The pure request processor of the embedded coordinator: frames and elapsed time in, frames out.

The shell passes whole frames in and sends `outbox` in order. A transaction passed to `journal` must be
durable before the frames that follow it are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.zookeeper.embedded import wire
from ottla.zookeeper.embedded.access import USER, digest_of, is_same
from ottla.zookeeper.embedded.data_tree import Applied, SessionRecord, Transaction, Tree
from ottla.zookeeper.embedded.wire import OpCode, Reader
from ottla.zookeeper.environment import new_password
from ottla.zookeeper.errors import (
    AuthFailed,
    InvalidAcl,
    Marshalling,
    NoAuth,
    NotStored,
    RuntimeInconsistency,
    Unimplemented,
    ZooKeeperError,
)
from ottla.zookeeper.frozen_classes import frozen, replace
from ottla.zookeeper.paths import digest_identity
from ottla.zookeeper.session import Acl, Create, EventType, Operation
from ottla.zookeeper.watches import WatchKind, WatchTable

if TYPE_CHECKING:
    from ottla.zookeeper.digest_md5 import DigestMd5Server


@dataclass(slots=True, eq=False, repr=False)
class Client:
    """One connection; `session_id` is 0 until it has a session.

    `offered` is the session of a client that has not shown the secret yet: it exists once it has.
    `identities` are those that it has shown, as ACLs name them.
    """

    session_id: int = 0
    closed: bool = False
    knows_secret: bool = False
    offered: SessionRecord | None = None
    login: DigestMd5Server | None = None
    identities: dict[tuple[str, str], None] = field(default_factory=dict)


@frozen
class Limits:
    """Limits of clients. Session timeouts are milliseconds and clamped."""

    min_session_timeout_ms: int = 4_000
    max_session_timeout_ms: int = 60_000


@dataclass(slots=True, eq=False, repr=False)
class _Attendance:
    client: Client | None
    heard_at_ms: float


@dataclass(slots=True, eq=False, repr=False)
class RequestProcessor:
    """Serves all clients of one tree.

    `now_ms` is the wall clock of ctime and mtime. `outbox` holds, in order, clients and frames to send; None
    as a frame means: close the connection after the sent frames. `pongs` holds answers to pings: they need
    not wait for the disk, as those of the outbox do. With a `secret` a client is served once it has
    authenticated with it (`access.credentials`). While not `writable`, every change is refused with
    NotStored, no session is opened, and none expires.
    """

    tree: Tree
    journal: Callable[[Transaction], None]
    now_ms: Callable[[], int]
    limits: Limits = field(default_factory=Limits)
    new_password: Callable[[], bytes] = new_password
    secret: str | None = None
    writable: bool = True
    outbox: list[tuple[Client, bytes | None]] = field(default_factory=list)
    pongs: list[tuple[Client, bytes]] = field(default_factory=list)
    watches: WatchTable[Client] = field(default_factory=WatchTable)
    _attendance: dict[int, _Attendance] = field(default_factory=dict)
    _alive_ms: float = 0.0
    _last_session_id: int = 0

    def __post_init__(self) -> None:
        """Restart the timeouts of recovered sessions, so that their clients can reconnect."""
        for session_id in self.tree.sessions:
            self._attendance[session_id] = _Attendance(None, 0.0)
        self._last_session_id = max(
            (self.now_ms() << 16) & ((1 << 62) - 1), max(self.tree.sessions, default=0)
        )

    # -- connections

    def frame_came(self, client: Client, body: bytes) -> None:
        """Answer one frame."""
        if client.closed:
            return
        try:
            if client.session_id == 0 and client.offered is None:
                self._connect(client, Reader(body))
            else:
                self._request(client, Reader(body))
        except (Marshalling, NotStored):
            # Without a readable header, or for a session that cannot be stored, no response is possible.
            self.close(client)

    def is_served(self, client: Client) -> bool:
        """Whether a connection has a session, and has shown the secret if there is one."""
        return client.session_id != 0 and (self.secret is None or client.knows_secret)

    def client_left(self, client: Client) -> None:
        """Handle a lost connection; the session stays until its timeout."""
        client.closed = True
        self.watches.forget(client)
        attendance = self._attendance.get(client.session_id)
        if attendance is not None and attendance.client is client:
            attendance.client = None
            attendance.heard_at_ms = self._alive_ms

    def close(self, client: Client) -> None:
        """Close a connection after the sent frames."""
        self.client_left(client)
        self.outbox.append((client, None))

    def time_passed(self, elapsed_ms: float) -> None:
        """Advance the clock by time in which clients could be heard; expire silent sessions."""
        self._alive_ms += elapsed_ms
        for session_id, attendance in list(self._attendance.items()):
            silent_ms = self._alive_ms - attendance.heard_at_ms
            # A session's last request is stamped with the clock's last step, so it gets one step more.
            if silent_ms > self.tree.sessions[session_id].timeout_ms + elapsed_ms:
                self.expire(session_id)

    def expire(self, session_id: int) -> None:
        """End a session: delete its ephemerals and close its connection. It stays while not `writable`."""
        if not self.writable:
            return
        attendance = self._attendance.get(session_id)
        if attendance is None:
            return
        if attendance.client is not None:
            self.close(attendance.client)
        self._end_session(session_id)

    def _end_session(self, session_id: int) -> None:
        self._commit(self.tree.plan_close(session_id, self.now_ms()))
        del self._attendance[session_id]

    # -- sessions

    def _connect(self, client: Client, reader: Reader) -> None:
        _, last_zxid, timeout_ms, session_id = reader.unpack(wire.CONNECT_REQUEST)
        password = reader.buffer()
        if session_id:
            self._reconnect(client, session_id, password, last_zxid)
        elif last_zxid > self.tree.zxid:
            self.close(client)  # it has seen a later zxid than this server's
        else:
            offered = self._new_session(timeout_ms)
            if self.secret is None:
                self._open_session(client, offered)
            else:
                client.offered = offered
            self._welcome(client, offered)

    def _new_session(self, timeout_ms: int) -> SessionRecord:
        limits = self.limits
        timeout_ms = min(max(timeout_ms, limits.min_session_timeout_ms), limits.max_session_timeout_ms)
        self._last_session_id += 1
        return SessionRecord(self._last_session_id, self.new_password(), timeout_ms)

    def _open_session(self, client: Client, new: SessionRecord) -> None:
        self._commit(self.tree.plan_session(new.session_id, new.password, new.timeout_ms, self.now_ms()))
        self._attend(client, new.session_id)

    def _reconnect(self, client: Client, session_id: int, password: bytes, last_zxid: int) -> None:
        record = self.tree.sessions.get(session_id)
        if record is None or not is_same(record.password, password):
            self._send(client, wire.frame(wire.CONNECT_REPLY.pack(0, 0, 0) + wire.buffer(bytes(16)) + b"\0"))
            self.close(client)
        elif last_zxid > self.tree.zxid:
            self.close(client)
        else:
            before = self._attendance[session_id].client
            if before is not None:
                self.close(before)
            self._attend(client, session_id)
            self._welcome(client, record)

    def _attend(self, client: Client, session_id: int) -> None:
        client.session_id = session_id
        self._attendance[session_id] = _Attendance(client, self._alive_ms)

    def _welcome(self, client: Client, record: SessionRecord) -> None:
        answer = wire.CONNECT_REPLY.pack(0, record.timeout_ms, record.session_id)
        self._send(client, wire.frame(answer + wire.buffer(record.password) + b"\0"))

    # -- requests

    def _request(self, client: Client, reader: Reader) -> None:
        if client.session_id:
            self._attendance[client.session_id].heard_at_ms = self._alive_ms
        xid, code = reader.unpack(wire.REQUEST_HEADER)
        match code:
            case OpCode.PING:
                # Without the last zxid: it may not be on the disk yet, and a client that has seen it would be
                # refused after a crash.
                self.pongs.append((client, wire.reply(wire.PING_XID, 0, 0)))
            case OpCode.AUTH:
                self._authenticate(client, reader)
            case OpCode.SASL if self.secret is not None:
                self._log_in(client, xid, reader.buffer(), self.secret)
            case OpCode.CLOSE_SESSION:
                if self.is_served(client):
                    self._end_session(client.session_id)
                self._answer(client, xid)
                self.close(client)
            # A sync tells nothing, and clients that connect without the secret learn of it in the request.
            case _ if code != OpCode.SYNC and not self.is_served(client):
                self._answer(client, xid, NoAuth.code)
            case _:
                self._do(client, xid, code, reader)

    def _authenticate(self, client: Client, reader: Reader) -> None:
        """Check the secret. Without one everybody is welcome, as there are no ACL checks."""
        reader.integer()
        scheme, identity = reader.text(), reader.buffer()
        if self.secret is not None:
            if scheme != "digest" or not is_same(identity, digest_of(self.secret)):
                self._answer(client, wire.AUTH_XID, AuthFailed.code)
                self.close(client)
                return
            self._admit(client)
        if scheme == "digest":
            client.identities["digest", digest_identity(identity)] = None
        self._answer(client, wire.AUTH_XID)

    def _log_in(self, client: Client, xid: int, token: bytes, secret: str) -> None:
        """Take one step of a login with DIGEST-MD5, the way of Apache's tools to show the secret."""
        from ottla.zookeeper.digest_md5 import DigestMd5Server, RefusedLogin  # for such a login only

        login = client.login = client.login or DigestMd5Server(USER, secret)
        try:
            answer = login.step(token)
        except RefusedLogin:
            self._answer(client, xid, AuthFailed.code)
            self.close(client)
            return
        if login.is_complete:
            self._admit(client)
            client.identities["sasl", USER] = None
        self._answer(client, xid, 0, wire.buffer(answer))

    def _admit(self, client: Client) -> None:
        """Serve a client that has shown the secret."""
        client.knows_secret = True
        if client.offered is not None:
            self._open_session(client, client.offered)
            client.offered = None

    def _do(self, client: Client, xid: int, code: int, reader: Reader) -> None:
        try:
            body = self._body(client, code, reader)
        except ZooKeeperError as error:
            self._answer(client, xid, error.code)
        else:
            self._answer(client, xid, 0, body)

    def _body(self, client: Client, code: int, reader: Reader) -> bytes:
        match code:
            case OpCode.EXISTS | OpCode.GET_DATA | OpCode.GET_CHILDREN | OpCode.GET_CHILDREN2:
                return self._read(client, OpCode(code), reader)
            case OpCode.CREATE | OpCode.CREATE2 | OpCode.DELETE | OpCode.SET_DATA:
                return self._write(client, wire.read_operation(code, reader))
            case OpCode.MULTI:
                return self._multi(client, wire.read_multi(reader))
            case OpCode.SYNC:
                return wire.text(reader.text())
            case OpCode.GET_ACL:
                node = self.tree.node(reader.text())
                return wire.acl(node.acl) + wire.stat(node.stat())
            case OpCode.SET_ACL:
                path, acl, aversion = reader.text(), reader.acl(), reader.integer()
                if not acl:
                    raise InvalidAcl(path)
                acl = _resolved(client, acl)
                applied = self._commit(self.tree.plan_acl(path, acl, aversion, self.now_ms()))
                return wire.operation_answer(OpCode.SET_DATA, *applied.results[0])
            case OpCode.SET_WATCHES:
                self._set_watches(client, reader)
                return b""
        raise Unimplemented("", f"operation {code}")

    def _read(self, client: Client, code: OpCode, reader: Reader) -> bytes:
        path, watch = reader.text(), reader.flag()
        # exists is the only read that arms a watch on a missing znode.
        node = self.tree.nodes.get(path)
        kind = WatchKind.DATA if code in (OpCode.EXISTS, OpCode.GET_DATA) else WatchKind.CHILDREN
        if watch and (node is not None or code is OpCode.EXISTS):
            self.watches.arm(kind, path, client)
        node = self.tree.node(path)
        if code is OpCode.EXISTS:
            return wire.stat(node.stat())
        if code is OpCode.GET_DATA:
            return wire.buffer(node.data) + wire.stat(node.stat())
        names = wire.texts(node.children)
        return names + wire.stat(node.stat()) if code is OpCode.GET_CHILDREN2 else names

    def _write(self, client: Client, write: wire.WireOperation) -> bytes:
        operations = [_with_acl(client, write.operation)]
        transaction = self.tree.plan(operations, client.session_id, self.now_ms())
        path, stat = self._commit(transaction).results[0]
        return wire.operation_answer(write.code, path, stat)

    def _multi(self, client: Client, writes: list[wire.WireOperation]) -> bytes:
        try:
            operations = [_with_acl(client, write.operation) for write in writes]
            transaction = self.tree.plan(operations, client.session_id, self.now_ms())
        except ZooKeeperError as error:
            if error.operation_index is None:
                raise
            untried = RuntimeInconsistency.code
            return wire.multi_failure(len(writes), error.operation_index, error.code, untried)
        if not transaction.changes:
            return wire.multi_answer([])
        results = self._commit(transaction).results
        return wire.multi_answer(
            (write.code, wire.operation_answer(write.code, path, stat))
            for write, (path, stat) in zip(writes, results, strict=True)
        )

    def _set_watches(self, client: Client, reader: Reader) -> None:
        """Arm the watches of a reconnected client again, or fire those whose event it missed."""
        since = reader.long()
        for path in reader.texts():
            node = self.tree.nodes.get(path)
            missed = EventType.DELETED if node is None else EventType.CHANGED if node.mzxid > since else None
            self._arm_or_tell(client, WatchKind.DATA, path, missed)
        for path in reader.texts():
            self._arm_or_tell(
                client, WatchKind.DATA, path, EventType.CREATED if path in self.tree.nodes else None
            )
        for path in reader.texts():
            node = self.tree.nodes.get(path)
            missed = EventType.DELETED if node is None else EventType.CHILD if node.pzxid > since else None
            self._arm_or_tell(client, WatchKind.CHILDREN, path, missed)

    def _arm_or_tell(self, client: Client, kind: WatchKind, path: str, missed: EventType | None) -> None:
        if missed is None:
            self.watches.arm(kind, path, client)
        else:
            self._send(client, wire.event(missed, path))

    # -- effects

    def _commit(self, transaction: Transaction) -> Applied:
        if not self.writable:
            raise NotStored("", "the server's disk is full")
        applied = self.tree.apply(transaction)
        self.journal(transaction)
        for client, event in self.watches.fire(applied.events):
            self._send(client, wire.event(event.type, event.path))
        return applied

    def _answer(self, client: Client, xid: int, error: int = 0, body: bytes = b"") -> None:
        self._send(client, wire.reply(xid, self.tree.zxid, error, body))

    def _send(self, client: Client, frame: bytes) -> None:
        self.outbox.append((client, frame))


def _with_acl(client: Client, operation: Operation) -> Operation:
    """Return an operation with the ACL that is stored."""
    if not isinstance(operation, Create) or all(entry.scheme != "auth" for entry in operation.acl or ()):
        return operation
    return replace(operation, acl=_resolved(client, operation.acl or ()))


def _resolved(client: Client, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
    """Replace `auth` by the client's identities, as ZooKeeper does. Raises InvalidAcl for one without."""
    if any(entry.scheme == "auth" for entry in acl) and not client.identities:
        raise InvalidAcl("", "the client has shown no identity")
    return tuple(
        Acl(entry.permissions, scheme, identity)
        for entry in acl
        for scheme, identity in (
            client.identities if entry.scheme == "auth" else ((entry.scheme, entry.identity),)
        )
    )
