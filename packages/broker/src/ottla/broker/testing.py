"""Real brokers for tests: on a thread of the test's process, in a separate process, or three of a cluster.

The module has over 500 lines because tests of other projects import every kind of broker from this one name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.zookeeper.apache_server import free_port as free_port

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ottla.broker.config import BrokerConfig
    from ottla.broker.server.broker import Broker
    from ottla.zookeeper.embedded import EmbeddedCoordinator
    from ottla.zookeeper.session import Session

LOG_LEVEL_VARIABLE = "TEST_BROKERS_LOG_LEVEL"
"""An environment variable with the log level of `BrokerProcess`."""
METRICS_PORT: Final = "metrics.port"
_NO_METRICS: Final = "the broker has no page of metrics: start it with metrics.port=0"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class BrokerFailed(RuntimeError):
    """The broker did not start or ended unexpectedly; the message holds the end of its log."""


class BrokerThread:
    """A broker in this process, with its own event loop and thread.

    Test code may block or await: the broker does not share its loop. Use it as a context manager; clients
    connect to `bootstrap_servers`.
    """

    def __init__(self, data_dir: Path | str, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.host = "127.0.0.1"
        self.port = 0
        self._settings = dict(settings or {})
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.broker: Broker | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address as clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The page of the broker's metrics, and of those that clients push; `metrics.port=0` serves it.

        Raises BrokerFailed for a broker without that page.
        """
        if self.broker is None or self.broker.config.metrics_port < 0:
            raise BrokerFailed(_NO_METRICS)
        config = self.broker.config
        scheme = "http" if config.metrics_ssl_keystore_location is None else "https"
        return f"{scheme}://{config.metrics_host}:{self.broker.metrics_port}/metrics"

    def start(self) -> Self:
        """Start the broker and return once it serves; a later start uses the same port again."""
        self._forget_last_run()
        self._thread = threading.Thread(target=self._run, name="ottla-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise BrokerFailed(f"the broker was not ready within {START_TIMEOUT_S:g} s")
        if self._failure is not None:
            self._thread.join(STOP_TIMEOUT_S)
            raise BrokerFailed(f"the broker did not start: {self._failure}") from self._failure
        return self

    def _forget_last_run(self) -> None:
        self._ready.clear()
        self._failure = None

    def stop(self) -> None:
        """Stop the broker cleanly and wait for it; raises `BrokerFailed` if it had failed."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None or loop is None or stop is None:
            return
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join(STOP_TIMEOUT_S)
        self._thread = None
        if thread.is_alive():
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S:g} s")
        if self._failure is not None:
            raise BrokerFailed(f"the broker failed: {self._failure}") from self._failure

    def restart(self) -> None:
        """Stop cleanly and start again with the same directory and port."""
        self.stop()
        self.start()

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float = 10.0) -> Any:
        """Run a coroutine on the broker's loop and return its result."""
        assert self._loop is not None, "start the broker first"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from ottla.broker.config import load_broker_config

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        config = load_broker_config(flags=self._configured()).config
        async with self._made(config) as self.broker:
            self.port = self.broker.port
            await self._prepared(self.broker)
            self._ready.set()
            await self._stop.wait()

    def _configured(self) -> dict[str, str]:
        return settings_for_tests(self.data_dir, self.host, self.port, self._settings)

    def _made(self, config: BrokerConfig) -> Broker:
        from ottla.broker.server.broker import Broker

        return Broker(config)

    async def _prepared(self, broker: Broker) -> None:
        """Do what a test relies on, before it begins."""


class SecureBroker(BrokerThread):
    """A broker in this process with TLS, logins by SCRAM, and ACLs; `admin` may do everything.

    `users` are names with passwords. `acls` are rules that allow: `("anna", "READ", "topic", "orders")`; a
    name that ends in `*` stands for all names with this beginning.
    """

    def __init__(
        self,
        data_dir: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        acls: Iterable[tuple[str, str, str, str]] = (),
    ) -> None:
        from ottla.broker.server.secure_setup import prepare

        super().__init__(data_dir, settings)
        self._users = dict(users or {})
        self._acls = list(acls)
        self._setup = prepare(self.data_dir, [])

    @property
    def cafile(self) -> Path:
        """The certificate of the authority to trust."""
        return self._setup.files.authority

    def client_settings(self, user: str = "admin") -> dict[str, Any]:
        """Return the settings of Ottla's clients that log in as a user: `Producer(**settings)`."""
        login = self._setup.client_settings(user, self._users.get(user))
        return {"bootstrap_servers": self.bootstrap_servers, **login}

    def librdkafka_settings(self, user: str = "admin") -> dict[str, str]:
        """Return the settings of librdkafka's clients that log in as a user."""
        renamed = {"ssl.cafile": "ssl.ca.location"}
        dotted = {key.replace("_", "."): value for key, value in self.client_settings(user).items()}
        return {renamed.get(key, key): value for key, value in dotted.items()}

    def _configured(self) -> dict[str, str]:
        listeners = f"SASL_SSL://{self.host}:{self.port}"
        return settings_for_tests(
            self.data_dir, self.host, self.port, {**self._setup.settings(listeners), **self._settings}
        )

    def _made(self, config: BrokerConfig) -> Broker:
        from ottla.broker.server.broker import Broker

        broker = Broker(config)
        broker.write_first = self._write_users
        return broker

    async def _write_users(self, session: Session) -> None:
        from ottla.broker.server.secure_setup import write_user

        await self._setup.write_users(session)
        for user, password in self._users.items():
            await write_user(session, user, password)

    async def _prepared(self, broker: Broker) -> None:
        from ottla.broker.security.acls.bindings import Entry, Pattern, PatternType, PermissionType
        from ottla.broker.security.authorizer import Operation, ResourceType

        rules: dict[Pattern, set[Entry]] = {}
        for user, operation, kind, name in self._acls:
            is_prefix = name.endswith("*") and name != "*"
            pattern_type = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            pattern = Pattern(ResourceType[kind.upper()], pattern_type, name[:-1] if is_prefix else name)
            entry = Entry(f"User:{user}", "*", Operation[operation.upper()], PermissionType.ALLOW)
            rules.setdefault(pattern, set()).add(entry)
        assert broker.services.acls is not None, "a secure broker has an authorizer"
        added = {pattern: partial(frozenset.union, frozenset(some)) for pattern, some in rules.items()}
        for error in await broker.services.acls.alter(added):
            if error is not None:
                raise error


class BrokerProcess:
    """A broker in a separate process, which can be killed, paused and restarted.

    With `listeners` among the settings it is reached at the first of them. `python` may be set to the
    interpreter of another environment: the next start is of the version in it.
    """

    def __init__(self, data_dir: Path | str, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.host = "127.0.0.1"
        self._settings = dict(settings or {})
        first = self._settings.get("listeners", "").partition(",")[0]
        self.port = int(first.rpartition(":")[2] or 0)
        self.python = sys.executable
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address as clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """The page of the broker's metrics, and of those that clients push; `metrics.port=0` serves it.

        Raises BrokerFailed for a broker without that page.
        """
        port = int(self._settings.get(METRICS_PORT, "-1"))
        if port < 0:
            raise BrokerFailed(_NO_METRICS)
        if port == 0:
            raise BrokerFailed("the page of metrics has no port yet: start the broker first")
        scheme = "https" if "metrics.ssl.keystore.location" in self._settings else "http"
        return f"{scheme}://{self._settings.get('metrics.host', self.host)}:{port}/metrics"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self._process is not None, "start the broker first"
        return self._process.pid

    @property
    def is_started(self) -> bool:
        """Whether the test has started the process and has not ended it; it may be paused."""
        return self._process is not None

    @property
    def log_file(self) -> Path:
        """The file with the output of the process."""
        return self.data_dir / "broker.log"

    def start(self) -> Self:
        """Start the process and return once it accepts connections."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(self.host)
        if self._settings.get(METRICS_PORT) == "0":  # another process could not tell which one it took
            self._settings[METRICS_PORT] = str(free_port(self.host))
        settings = settings_for_tests(self.data_dir, self.host, self.port, self._settings)
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        with self.log_file.open("ab") as output:
            self._process = subprocess.Popen(self._command(flags), stdout=output, stderr=output)
        self._wait_until_it_accepts()
        return self

    def _command(self, flags: list[str]) -> list[str]:
        """Return the command of the process, which may be another program with the same flags."""
        level = os.environ.get(LOG_LEVEL_VARIABLE)
        more = [] if level is None else ["--log-level", level]
        return [self.python, "-m", "ottla.broker", "start", *flags, *more]

    def _wait_until_it_accepts(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise BrokerFailed(f"the broker did not start: {self.last_words()}")
            try:
                socket.create_connection((self.host, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        self.kill()
        raise BrokerFailed(f"the broker was not ready within {START_TIMEOUT_S:g} s: {self.last_words()}")

    def check(self) -> None:
        """Raise `BrokerFailed` if the process has ended by itself."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise BrokerFailed(f"the broker has ended with status {status}: {self.last_words()}")

    def last_words(self, lines: int = 5) -> str:
        """Return the end of the output of the process."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.strip().splitlines()[-lines:])

    def kill(self) -> None:
        """Kill the process with SIGKILL; nothing is flushed or closed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process exits and return its exit status."""
        assert self._process is not None, "start the broker first"
        status = self._process.wait(timeout_s)
        self._process = None
        return status

    def pause(self) -> None:
        """Pause the process with SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process cleanly with SIGTERM, and kill it when that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S:g} s") from None
        self._process = None

    def restart(self) -> None:
        """Stop cleanly and start again with the same directory and port."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class BrokerCluster:
    """Brokers in separate processes that share a coordinator, which runs in this process.

    `brokers` has them by id, from 1. The test may kill, pause, stop and restart each of them; a killed one
    leaves the cluster when its session has expired (`zookeeper.session.timeout.ms`, 4 s here). The znodes
    are in memory, reached at `zookeeper_connect`. `of_broker` has settings of single brokers, by id. Use it
    as a context manager: leaving it kills all brokers.
    """

    def __init__(
        self,
        data_dir: Path | str,
        settings: Mapping[str, str] | None = None,
        *,
        size: int = 3,
        of_broker: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.brokers: dict[int, BrokerProcess] = {}
        self.zookeeper_connect = ""
        self._settings = dict(settings or {})
        self._of_broker = of_broker or {}
        self._size = size
        self._stack = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers as clients take them."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    @property
    def metrics_urls(self) -> dict[int, str]:
        """The pages of the brokers' metrics by their ids; `metrics.port=0` serves them.

        Each broker counts its own: a group's meters stand on the page of its coordinator. Raises BrokerFailed
        for brokers without that page.
        """
        return {node: broker.metrics_url for node, broker in self.brokers.items()}

    def __enter__(self) -> Self:
        from ottla.zookeeper.testing import Background

        with ExitStack() as stack:
            coordinator = stack.enter_context(Background(_coordinator_for_tests())).value
            self.zookeeper_connect = coordinator.connect_string
            self.brokers = {node: self._broker(node) for node in range(1, self._size + 1)}
            stack.callback(self._kill_all)
            with ThreadPoolExecutor(self._size) as pool:
                list(pool.map(BrokerProcess.start, self.brokers.values()))
            self.wait_until_complete()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait_until_complete(self) -> None:
        """Return once every broker knows all others and the controller."""
        from ottla.broker.server.readiness import until_complete

        servers = [broker.bootstrap_servers for broker in self.brokers.values()]
        try:
            with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a running loop
                pool.submit(asyncio.run, until_complete(servers, self.brokers, START_TIMEOUT_S)).result()
        except TimeoutError:
            words = " | ".join(broker.last_words(1) for broker in self.brokers.values())
            raise BrokerFailed(f"no cluster of {self._size} within {START_TIMEOUT_S:g} s: {words}") from None

    def restore(self) -> None:
        """Start what a test has killed or stopped, resume what it has paused, and wait until it is complete.

        So the next test may have the same cluster. Raises `BrokerFailed` for a broker that ended by itself.
        """
        for broker in self.brokers.values():
            broker.check()
        with ThreadPoolExecutor(self._size) as pool:
            list(pool.map(_restore, self.brokers.values()))
        self.wait_until_complete()

    def _broker(self, node: int) -> BrokerProcess:
        replicas, own = str(min(self._size, 3)), dict(self._of_broker.get(node, {}))
        common = {
            "broker.id": str(node),
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.session.timeout.ms": "4000",
            "zookeeper.connection.timeout.ms": "30000",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(min(self._size, 2)),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": str(min(self._size, 2)),
            "controlled.shutdown.retry.backoff.ms": "500",
        }
        return BrokerProcess(self.data_dir / f"broker-{node}", common | self._settings | own)

    def _kill_all(self) -> None:
        for broker in self.brokers.values():
            with suppress(OSError):
                broker.kill()


def _restore(broker: BrokerProcess) -> None:
    if broker.is_started:
        broker.resume()
    else:
        broker.start()


def _coordinator_for_tests() -> EmbeddedCoordinator:
    from ottla.zookeeper.embedded import EmbeddedCoordinator, Limits

    return EmbeddedCoordinator(limits=Limits(min_session_timeout_ms=1_000), tick_ms=100)


def settings_for_tests(data_dir: Path, host: str, port: int, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of a small broker for tests, with `settings` applied on top."""
    return {
        "listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": str(data_dir),
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        **settings,
    }
