"""A `Session` with a ZooKeeper ensemble: kazoo on its threads, `KazooSession` on the event loop.

It adds to kazoo, each point tested with a real ensemble: a lease of its own, because kazoo never reports LOST
while it is disconnected; a deadline for every operation, because kazoo waits for ever; watches that fire
after a reconnect, because kazoo forgets them; a new client after a connection thread dies, because kazoo
stays closed; and operations bound to the session they were decided in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from ottla.zookeeper._kazoo_client import (
    DetachedThread,
    GuardedClient,
    KazooState,
    KeeperState,
    kazoo_acl,
    multi_results,
    post,
    to_zookeeper_error,
    transaction_of,
)
from ottla.zookeeper._operations import Read, SessionOperations
from ottla.zookeeper._session_state import SessionStateMachine
from ottla.zookeeper.client_security import NO_SECURITY, ClientSecurity
from ottla.zookeeper.errors import AuthFailed, NodeExists, NotConnected, OperationTimeout
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.paths import parent_of
from ottla.zookeeper.session import NULL, OPEN_ACL, Acl, Create, EventType, Operation, Stat, Watch
from ottla.zookeeper.watches import WatchKind

log = logging.getLogger(__name__)

AclPolicy = Callable[[str], tuple[Acl, ...]]
_FIRST_REBUILD_DELAY_S = 0.1
_LAST_REBUILD_DELAY_S = 5.0
_CLOSE_TIMEOUT_S = 3.0


def open_acl(path: str) -> tuple[Acl, ...]:
    """Give everyone all permissions, ZooKeeper's default."""
    return OPEN_ACL


@dataclass(frozen=True)
class _Watcher:
    """The watch given to kazoo: equal for equal paths, so that arming it again adds nothing."""

    kind: WatchKind
    path: str
    session_number: int
    session: KazooSession = field(compare=False, repr=False)

    def __call__(self, event: Any) -> None:
        if event.type != "NONE":  # the session reports lost connections itself
            self.session.post(self.session.watch_fired, event.type, event.path, self.session_number)


class KazooSession(SessionOperations):
    """A ZooKeeper session for asyncio.

        async with KazooSession("zk1:2181,zk2:2181/kafka", session_timeout_ms=18_000) as session:
            data, stat = await session.get("/controller")

    Entering waits until connected and makes the chroot; raises NotConnected after
    `connection_timeout_ms`. `operation_timeout_ms` bounds every operation (default: the session
    timeout). The server may clamp the session timeout: set its minSessionTimeout and maxSessionTimeout
    around `session_timeout_ms`, which the lease uses. Every new connection starts with a sync, so that no
    state older than the last session's is read. Leaving closes the session. `took_ms` is called with the
    duration of each operation, failed ones included.

    `credentials` are pairs of a scheme and what it shows; `security` has those of a configuration, and TLS.
    Entering raises AuthFailed where they are refused. `acl_policy` gives the ACL of each znode that is made,
    by its path below the chroot.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int | None = None,
        operation_timeout_ms: int | None = None,
        max_in_flight: int = 1_000,
        credentials: Sequence[tuple[str, str]] = (),
        security: ClientSecurity = NO_SECURITY,
        acl_policy: AclPolicy = open_acl,
        took_ms: Callable[[float], object] = lambda _: None,
    ) -> None:
        super().__init__(self, SessionStateMachine(), session_timeout_ms)
        self._hosts, _, chroot = hosts.partition("/")
        self._wanted_chroot = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        self._chroot = ""
        self._connection_timeout_s = (connection_timeout_ms or session_timeout_ms) / 1000
        self._operation_timeout_s = (operation_timeout_ms or session_timeout_ms) / 1000
        self._security = replace(security, digests=(*security.digests, *credentials))
        self._refused = asyncio.Event()
        self._acl_policy = acl_policy
        self._took_ms = took_ms
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._generation = 0
        self._connection_number = 0
        self._lease: asyncio.TimerHandle | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._dead = asyncio.Event()
        self._rebuild_delay_s = _FIRST_REBUILD_DELAY_S
        self._supervisor: asyncio.Task[None] | None = None

    async def __aenter__(self) -> KazooSession:
        self._loop = asyncio.get_running_loop()
        self._client = self._new_client()
        self._supervisor = self._loop.create_task(self._supervise(), name="zookeeper-supervisor")
        try:
            async with asyncio.timeout(self._connection_timeout_s):
                await DetachedThread(self._client.start_async).done_within(self._connection_timeout_s)
                await self._connected_first()
                await self._enter_chroot()
        except TimeoutError:
            trouble = self._client.trouble
            await self.close()
            raise NotConnected(self._hosts, self._connection_timeout_s, trouble) from None
        except BaseException:
            await self.close()
            raise
        return self

    async def _connected_first(self) -> None:
        """Return once connected. Raises AuthFailed: later refusals are tried again, a first one is final."""
        async with asyncio.TaskGroup() as tasks:
            connected = tasks.create_task(self._session_state.wait_connected(2**31))
            refused = tasks.create_task(self._refused.wait())
            await asyncio.wait((connected, refused), return_when=asyncio.FIRST_COMPLETED)
            connected.cancel()
            refused.cancel()
        if not self._session_state.connected and self._refused.is_set():
            raise AuthFailed(self._hosts, "ZooKeeper refuses the credentials, or asks for a login")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session; its ephemerals vanish at once if the ensemble can be reached. Bounded."""
        self._session_state.became_closed()
        self._stop_lease()
        self._stop_sync_timer()
        self._generation += 1
        self._connection_number += 1
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self._shut_down(self._client)

    # -- the transport of operations

    async def read(self, what: Read, path: str, watch: Watch | None, session_number: int | None) -> object:
        """Return `(data, stat)`, `stat | None` or the sorted children."""
        full, kind = self._full(path), what.watch_kind

        def ask(client: GuardedClient) -> Any:
            watcher = None if watch is None else _Watcher(kind, full, self.session_number, self)
            match what:
                case Read.GET:
                    return client.get_async(full, watch=watcher)
                case Read.EXISTS:
                    return client.exists_async(full, watch=watcher)
                case Read.CHILDREN:
                    return client.get_children_async(full, watch=watcher)

        if watch is None:
            return _read_result(what, await self._ask(ask, path, session_number))
        # Arm before the request: the event may overtake the response, and must find the watch here.
        fresh = self._session_state.watches.arm(kind, path, watch)
        try:
            answer = await self._ask(ask, path, session_number)
        except BaseException:
            if fresh:
                self._session_state.watches.disarm(kind, path, watch)
            raise
        # Arm again: another read of this path that failed may have removed the watch meanwhile.
        self._session_state.watches.arm(kind, path, watch)
        return _read_result(what, answer)

    async def write(
        self, operations: Sequence[Operation], session_number: int | None
    ) -> list[str | Stat | None]:
        """Apply all operations or none."""
        full = [self._complete(operation) for operation in operations]
        answers = await self._ask(
            lambda client: transaction_of(client, full).commit_async(), operations[0].path, session_number
        )
        results = multi_results(operations, answers)
        return [self._stripped(result) if isinstance(result, str) else result for result in results]

    async def flush(self, path: str, session_number: int | None) -> None:
        """Wait until the connected server has applied all earlier writes."""
        full = self._full(path)
        await self._ask(lambda client: client.sync_async(full), path, session_number)

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        """Return the ACL and the stat of a znode."""
        full = self._full(path)
        entries, stat = await self._ask(lambda client: client.get_acls_async(full), path, None)
        return tuple(Acl(entry.perms, entry.id.scheme, entry.id.id) for entry in entries), Stat(*stat)

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> None:
        """Replace the ACL, if `version` is the stat's `aversion`; -1 matches any."""
        full, entries = self._full(path), kazoo_acl(acl)
        await self._ask(lambda client: client.set_acls_async(full, entries, version), path, None)

    async def _ask(
        self, submit: Callable[[GuardedClient], Any], path: str, session_number: int | None
    ) -> Any:
        self._session_state.check(session_number)
        decided_in, begun_s = self.session_number, self._loop.time()
        try:
            async with asyncio.timeout(self._operation_timeout_s), self._in_flight:
                self._session_state.check(decided_in)  # the wait for the semaphore may have been long
                answer = self._session_state.track(self._loop.create_future())
                submit(self._client).rawlink(partial(self._answered, answer, path))
                return await answer
        except TimeoutError:
            raise OperationTimeout(path, f"no answer within {self._operation_timeout_s:g} s") from None
        finally:
            self._took_ms((self._loop.time() - begun_s) * 1000)

    def _answered(self, answer: asyncio.Future[Any], path: str, result: Any) -> None:
        """Hand the outcome to the loop; called on kazoo's completion thread."""
        self.post(_settle, answer, path, result.value, result.exception)

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Run `callback` on the loop; for kazoo's threads."""
        post(self._loop, callback, *args)

    # -- paths

    def _full(self, path: str) -> str:
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def _stripped(self, path: str) -> str:
        return path[len(self._chroot) :] or "/"

    def _complete(self, operation: Operation) -> Operation:
        path = self._full(operation.path)
        if isinstance(operation, Create):
            acl = operation.acl or self._acl_policy(operation.path)
            return replace(operation, path=path, acl=acl)
        return replace(operation, path=path)

    async def _enter_chroot(self) -> None:
        """Create the chroot before it applies to paths: below itself it could not be created."""
        chroot = self._wanted_chroot
        if chroot and await self.exists(chroot) is None:
            try:
                await self.create(chroot, make_parents=parent_of(chroot) != "/")
            except NodeExists:
                log.debug("another client made the chroot", extra={"chroot": chroot})
        self._chroot = chroot

    # -- callbacks of kazoo

    def _new_client(self) -> GuardedClient:
        self._generation += 1
        client = GuardedClient(self._hosts, self._timeout_ms / 1000, self._security)
        generation = self._generation

        def state_changed(state: Any) -> None:
            # On the connection thread, before pending calls fail: only hand the facts to the loop.
            facts = (state, client.client_state, client.era, client.session_id_now())
            self.post(self._state_changed, generation, *facts)

        client.add_listener(state_changed)
        return client

    def _state_changed(
        self, generation: int, state: Any, keeper_state: Any, era: int, session_id: int
    ) -> None:
        if generation != self._generation:
            return
        self._connection_number += 1
        if state == KazooState.CONNECTED:
            self._client.decided_in = era
            self._synchronise(session_id, self._connection_number)
        elif state == KazooState.SUSPENDED:
            self._start_lease()
            self._session_state.became_suspended()
        else:
            self._stop_lease()
            self._session_state.became_lost(f"kazoo: {keeper_state}")
            if keeper_state != KeeperState.EXPIRED_SESSION:
                # The connection thread ended: a wrong xid, or rejected credentials.
                self._dead.set()
            if keeper_state == KeeperState.AUTH_FAILED:
                self._refused.set()

    def _synchronise(self, session_id: int, connection_number: int) -> None:
        """Start a connection with a sync: the server may be a follower that lags."""
        if connection_number != self._connection_number:
            return
        answered = partial(self._synchronised, session_id, connection_number)
        self._client.sync_async("/").rawlink(lambda result: self.post(answered, result.exception))
        # If the response is lost and the connection is not, sync again.
        self._synchronise_after(self._operation_timeout_s, session_id, connection_number)

    def _synchronise_after(self, delay_s: float, session_id: int, connection_number: int) -> None:
        self._stop_sync_timer()
        self._sync_timer = self._loop.call_later(delay_s, self._synchronise, session_id, connection_number)

    def _stop_sync_timer(self) -> None:
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None

    def _synchronised(self, session_id: int, connection_number: int, error: BaseException | None) -> None:
        if connection_number != self._connection_number:
            return
        if error is not None:
            log.info("the first sync of a connection failed", extra={"reason": repr(error)})
            self._synchronise_after(_FIRST_REBUILD_DELAY_S, session_id, connection_number)
            return
        self._stop_sync_timer()
        self._connection_number += 1  # later callbacks of this sync are stale
        self._stop_lease()
        self._rebuild_delay_s = _FIRST_REBUILD_DELAY_S
        self._session_state.became_connected(session_id)

    def watch_fired(self, kind: str, path: str, session_number: int) -> None:
        """Handle a watch event of kazoo."""
        self._session_state.watch_fired(EventType[kind], self._stripped(path), session_number)

    # -- the lease

    def _start_lease(self) -> None:
        """Start the lease: kazoo learns of an expiry only after it reconnects."""
        if self._lease is None and self._session_state.connected:
            self._lease = self._loop.call_later(self._timeout_ms / 1000, self._lease_ended)

    def _lease_ended(self) -> None:
        self._lease = None
        self._session_state.became_lost("disconnected for a whole session timeout")

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    # -- replacing dead clients

    async def _supervise(self) -> None:
        """Replace a client whose connection thread ended by a new one, with a new session."""
        while True:
            await self._dead.wait()
            self._dead.clear()
            await asyncio.sleep(self._rebuild_delay_s)
            self._rebuild_delay_s = min(2 * self._rebuild_delay_s, _LAST_REBUILD_DELAY_S)
            dead, self._client = self._client, self._new_client()
            log.warning("the ZooKeeper client is replaced", extra={"generation": self._generation})
            await self._shut_down(dead)
            await DetachedThread(self._client.start_async).done_within(self._connection_timeout_s)

    async def _shut_down(self, client: GuardedClient) -> None:
        thread = DetachedThread(client.shut_down)
        if await thread.done_within(_CLOSE_TIMEOUT_S):
            return
        # The server does not respond, so kazoo does not end: shut down its socket.
        client.cut()
        if not await thread.done_within(_CLOSE_TIMEOUT_S):
            log.warning("a ZooKeeper connection did not end in time and was abandoned")


def _settle(answer: asyncio.Future[Any], path: str, value: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # cancelled, or ended with its session or connection
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(to_zookeeper_error(error, path))


def _read_result(what: Read, answer: Any) -> object:
    match what:
        case Read.GET:
            data, stat = answer
            return NULL if data is None else data, Stat(*stat)
        case Read.EXISTS:
            return None if answer is None else Stat(*answer)
        case Read.CHILDREN:
            return sorted(answer)
