"""kazoo's client with its defects worked around: the part of `KazooSession` on kazoo's threads.

All code in here runs on kazoo's threads or takes a lock against them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.exceptions import ZookeeperError as KazooZookeeperError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol import serialization
from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry, RetryFailedError
from kazoo.security import ACL, Id

from ottla.zookeeper import environment
from ottla.zookeeper.client_security import ClientSecurity, SecuritySettingError, TlsSettings
from ottla.zookeeper.errors import ConnectionLoss, SessionExpired, ZooKeeperError, error_for
from ottla.zookeeper.session import NULL, Acl, Check, Create, Delete, Operation, SetData, Stat

log = logging.getLogger(__name__)
_kazoo_log = logging.getLogger("ottla.zookeeper.kazoo")

__all__ = [
    "DetachedThread",
    "GuardedClient",
    "KazooState",
    "KeeperState",
    "to_zookeeper_error",
    "transaction_of",
]

_FIRST_PAUSE_S = 0.1
_PAUSE_GROWTH = 1.5
_LAST_PAUSE_S = 1.0
_PAUSES_OF_A_SESSION = 20
_MOST_GROWTHS = 16

_DEAD_STATES = (KeeperState.CLOSED, KeeperState.AUTH_FAILED, KeeperState.EXPIRED_SESSION)


_REPEAT_AFTER_S = 10.0


class _RepeatFilter(logging.Filter):
    """Passes a repeated message once per `_REPEAT_AFTER_S`: kazoo logs the same ones at every attempt."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # Bounded: the keys are kazoo's message templates.
        last = self._last.get(str(record.msg))
        if last is not None and record.created - last < _REPEAT_AFTER_S:
            return False
        self._last[str(record.msg)] = record.created
        return True


def _has_no_secret(record: logging.LogRecord) -> bool:
    """Hold back a request for authentication: kazoo would log it with the secret in it."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(argument, Auth | SASL) for argument in arguments)


_kazoo_log.addFilter(_has_no_secret)
_kazoo_log.addFilter(_RepeatFilter())


# A server that accepts connections and does not respond must not use up the whole session timeout, as it does
# in kazoo, which waits a session timeout for the connection and another one for the first response.
_HANDSHAKE_SHARE = 3


# Of servers since 3.6 that ask for a login; kazoo ends its thread at a number that it does not know.
EXCEPTIONS[-124] = AuthFailedError


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs kazoo's threads, makes its connections, and logs the error that ends a thread.

    kazoo would print that error. `trouble` is the reason of the last connection that could not be made.
    """

    def __init__(self, handshake_timeout_s: float, tls: TlsSettings | None) -> None:
        super().__init__()
        self._handshake_timeout_s = handshake_timeout_s
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self.trouble = ""

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        timeout_s = min(kwargs.get("timeout") or self._handshake_timeout_s, self._handshake_timeout_s)
        kwargs["timeout"] = timeout_s
        if self._tls is None:
            return super().create_connection(*args, **kwargs)
        name = str(kwargs["hostname"])
        plain = socket.create_connection(kwargs["address"], timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._present_context(self._tls).wrap_socket(plain, server_hostname=name)
        except BaseException as error:
            plain.close()
            if isinstance(error, OSError):
                self.trouble = f"TLS with {name} failed: {getattr(error, 'verify_message', '') or error}"
            raise
        self.trouble = ""
        return secured

    def _present_context(self, tls: TlsSettings) -> ssl.SSLContext:
        """Return the context of the files as they are; of those before, while they cannot be used."""
        try:
            self._context = tls.context()
        except SecuritySettingError as error:
            if self._context is None:
                raise OSError(str(error)) from error
            log.warning(
                "files of TLS to ZooKeeper cannot be used, the earlier ones stay",
                extra={"reason": str(error)},
            )
        return self._context

    def select(self, rlist: Any, wlist: Any, xlist: Any, timeout: float | None = None) -> Any:
        # Bytes that TLS has decrypted already lie in no socket: kazoo would wait for the next packet.
        ready = [plug for plug in rlist if isinstance(plug, ssl.SSLSocket) and plug.pending()]
        return (ready, [], []) if ready else super().select(rlist, wlist, xlist, timeout)

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except Exception as error:
                log.info("a connection thread of kazoo ended", extra={"reason": repr(error)})

        thread = threading.Thread(target=run, daemon=True, name="ottla-zookeeper")
        thread.start()
        return thread


def pause_s(attempts: int, away_s: float, timeout_s: float, share: float) -> float:
    """Return the pause before the next attempt to connect, of which `attempts` have failed since `away_s`.

    It grows to a second, and to a twentieth of the session timeout while the session may still be kept.
    `share`, from 0 to 1, is the jitter: at least half of the pause stays.
    """
    last_s = timeout_s / _PAUSES_OF_A_SESSION if away_s < timeout_s else _LAST_PAUSE_S
    grown_s = _FIRST_PAUSE_S * _PAUSE_GROWTH ** min(attempts - 1, _MOST_GROWTHS)
    return max(_FIRST_PAUSE_S, min(grown_s, last_s)) * (1 + share) / 2


class Reconnecting(KazooRetry):  # type: ignore[misc]
    """Tries to connect until it succeeds, with the pauses of `pause_s`.

    kazoo's own pauses are each a product of all jitters before: without growth they shrink by 3 % each time
    on average, until an outage of minutes keeps a processor busy; with it they grow up to an hour, and lose
    sessions that a short outage should have kept.
    """

    def __init__(
        self,
        timeout_s: float,
        wait: Callable[[float], bool],
        *,
        monotonic_s: Callable[[], float] = environment.monotonic_s,
        share: Callable[[], float] = environment.share,
    ) -> None:
        """`wait` waits for so many seconds, and returns at once, true, when the client is stopped."""
        super().__init__(max_tries=-1, ignore_expire=False)
        self._timeout_s = timeout_s
        self._wait = wait
        self._monotonic_s = monotonic_s
        self._share = share
        self._failures = 0
        self._since_s = 0.0

    def copy(self) -> Reconnecting:
        """Return another one of the same pauses, as each thread of kazoo has its own."""
        return Reconnecting(self._timeout_s, self._wait, monotonic_s=self._monotonic_s, share=self._share)

    def reset(self) -> None:
        """Begin with short pauses: kazoo is connected."""
        super().reset()
        self._failures = 0

    def __call__(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function until it does not fail. Raises RetryFailedError for a client that is stopped."""
        self.reset()
        while True:
            try:
                return func(*args, **kwargs)
            except ConnectionClosedError:
                raise
            except self.retry_exceptions:
                if self._wait(self._next_pause_s()):
                    raise RetryFailedError("the client is stopped") from None

    def _next_pause_s(self) -> float:
        now_s = self._monotonic_s()
        if self._failures == 0:
            self._since_s = now_s
        self._failures += 1
        return pause_s(self._failures, now_s - self._since_s, self._timeout_s, self._share())


class GuardedClient(KazooClient):  # type: ignore[misc]
    """A client that never sends a request in a later session than the one it was decided in.

    `era` counts the sessions that ended. The owner sets `decided_in` to the era it knows of; a request
    fails while the two differ. That closes the gap between the end of a session on kazoo's thread and the
    callback that informs the owner.
    """

    def __init__(self, hosts: str, timeout_s: float, security: ClientSecurity) -> None:
        self._guard = threading.Lock()
        self.era = 0
        self.decided_in = 0
        super().__init__(
            hosts=hosts,
            timeout=timeout_s,
            handler=_Handler(timeout_s / _HANDSHAKE_SHARE, security.tls),
            auth_data=list(security.digests),
            connection_retry={"max_tries": -1, "ignore_expire": False},
            command_retry={"max_tries": 0, "ignore_expire": False},
            logger=_kazoo_log,
        )
        self._connection.retry_sleeper = Reconnecting(timeout_s, self._stopped.wait)
        _bound_handshake(self._connection, timeout_s / _HANDSHAKE_SHARE)
        if security.login is not None:
            _log_in_by_digest_md5(self._connection, security.login.username, security.login.password)

    def _session_callback(self, state: Any) -> None:
        if state in _DEAD_STATES:
            with self._guard:
                self.era += 1
        super()._session_callback(state)

    def _call(self, request: Any, async_object: Any) -> Any:
        with self._guard:
            if self.decided_in != self.era:
                async_object.set_exception(SessionExpiredError())
                return False
            return super()._call(request, async_object)

    def session_id_now(self) -> int:
        """The id of the current session, 0 without one."""
        return int(self._session_id or 0)

    @property
    def trouble(self) -> str:
        """The reason of the last connection that could not be made, empty for none that is known."""
        return str(self.handler.trouble)

    def cut(self) -> None:
        """Shut down the connection's socket, so that its thread wakes up and ends."""
        try:
            self._connection._socket.shutdown(2)
        except (OSError, AttributeError):
            return

    def shut_down(self) -> None:
        """Stop and close; blocks until kazoo's threads end."""
        try:
            self.stop()
        finally:
            self.close()


def _bound_handshake(connection: Any, timeout_s: float) -> None:
    """Limit the wait of the requests that open a connection, and only of those, to `timeout_s`."""
    invoke = connection._invoke

    def bounded(timeout: float, request: Any, xid: int | None = None) -> Any:
        return invoke(min(timeout, timeout_s), request, xid)

    connection._invoke = bounded


def _log_in_by_digest_md5(connection: Any, username: str, password: str) -> None:
    """Log in at the start of each connection, without the library that kazoo would do it with.

    A connection that breaks meanwhile is one more to try; kazoo would take it for a refusal, and end.
    """

    from ottla.zookeeper.digest_md5 import DigestMd5Client, RefusedLogin  # for such a login only

    def authenticate(host: str, timeout: float) -> None:
        login, token, xid = DigestMd5Client(username, password), b"", 0
        while True:
            try:
                answer = login.step(token)
            except RefusedLogin as error:
                raise AuthFailedError(str(error)) from error
            if login.is_complete:
                return
            xid += 1
            connection._submit(SASL(answer), timeout, xid)
            header, buffer, offset = connection._read_header(timeout)
            if header.err:
                raise AuthFailedError("the server refuses user and password")
            if header.xid != xid:
                raise ConnectionDropped("an answer to another request in a login")
            token = SASL.deserialize(buffer, offset)[0] or b""

    connection.sasl_options = {}
    connection._authenticate_with_sasl = authenticate


class DetachedThread:
    """Runs one function on a daemon thread that may be abandoned; logs its error.

    The loop's executor would not do: a thread that hangs there keeps the process from ending.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._done = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, daemon=True, name="ottla-zookeeper-lifecycle").start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:
            log.info("a call of kazoo failed", extra={"reason": repr(error)})
        finally:
            post(self._loop, self._done.set)

    async def done_within(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it ended in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._done.wait()
        except TimeoutError:
            return False
        return True


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """Run `callback` on the loop; do nothing when the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        return


def to_zookeeper_error(error: BaseException, path: str) -> ZooKeeperError:
    """Return this package's error for one of kazoo's."""
    if isinstance(error, ZooKeeperError):
        return error
    if isinstance(error, SessionExpiredError):
        return SessionExpired(path)
    if isinstance(error, KazooZookeeperError):
        return error_for(int(getattr(error, "code", None) or 0), path)
    # A malformed reply, or the reply to another request: the outcome is unknown.
    return ConnectionLoss(path, repr(error))


def transaction_of(client: GuardedClient, operations: Sequence[Operation]) -> Any:
    """Return kazoo's transaction of operations with full paths and ACLs."""
    transaction = client.transaction()
    transaction.operations.extend(_kazoo_operation(operation) for operation in operations)
    return transaction


def _kazoo_operation(operation: Operation) -> Any:
    match operation:
        case Create(path, data, ephemeral, sequential, acl):
            flags = int(ephemeral) | int(sequential) << 1
            return serialization.Create(path, _kazoo_data(data), kazoo_acl(acl or ()), flags)
        case SetData(path, data, version):
            return serialization.SetData(path, _kazoo_data(data), version)
        case Delete(path, version):
            return serialization.Delete(path, version)
        case Check(path, version):
            return serialization.CheckVersion(path, version)


def _kazoo_data(data: bytes) -> bytes | None:
    return None if data is NULL else data


def kazoo_acl(entries: Sequence[Acl]) -> list[Any]:
    """Return kazoo's form of an ACL."""
    return [ACL(entry.permissions, Id(entry.scheme, entry.identity)) for entry in entries]


def multi_results(operations: Sequence[Operation], answers: Sequence[Any]) -> list[Any]:
    """Return the results of a transaction; raise the error that kazoo only returns."""
    for index, answer in enumerate(answers):
        if isinstance(answer, Exception) and not isinstance(answer, RolledBackError | RuntimeInconsistency):
            error = to_zookeeper_error(answer, operations[index].path)
            error.operation_index = index
            raise error
    if any(isinstance(answer, Exception) for answer in answers):
        raise ConnectionLoss(operations[0].path, "a transaction failed without a reason")
    return [_result(operation, answer) for operation, answer in zip(operations, answers, strict=True)]


def _result(operation: Operation, answer: Any) -> Any:
    match operation:
        case Create():
            return str(answer)
        case SetData():
            return Stat(*answer)
    return None
