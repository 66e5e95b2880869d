"""The registry as a process: its topic, one socket, uvicorn, and an end within a bounded time."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvicorn

from ottla.client.config import ClientConfig
from ottla.client.config_definition import SettingError
from ottla.registry.server.access import LOOPBACK, Access, users_of
from ottla.registry.server.app import application
from ottla.registry.server.connections import BoundedConnection
from ottla.registry.server.parsing import SchemaParser
from ottla.registry.server.service import RegistryService
from ottla.registry.server.state import Record, RegistryState
from ottla.registry.server.topic import schemas_topic

MOST_CONNECTIONS: Final = 1_024
STOP_S: Final = 3
_BACKLOG: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """How a registry is served."""

    client: ClientConfig = field(default_factory=ClientConfig)
    host: str = "127.0.0.1"
    port: int = 8081
    topic: str = "_schemas"
    replication_factor: int = 3
    """The replicas of a topic that is made, or as many as there are brokers."""
    users: Path | None = None
    """A file with lines NAME:PASSWORD: each request needs a login then."""
    certificate: Path | None = None
    key: Path | None = None
    idle_s: float = 60.0
    """A connection ends when its client asks for nothing, or takes nothing, for longer."""
    in_memory: bool = False
    """Whether schemas are kept by no topic, and end with the process."""
    is_insecure: bool = False
    """Whether others than this machine may be served without TLS or without logins."""

    def check(self) -> None:
        """Refuse to serve strangers by accident. Raises SettingError."""
        if self.host in LOOPBACK or self.is_insecure:
            return
        missing = [
            option
            for option, given in (("--users", self.users), ("--tls-certificate", self.certificate))
            if given is None
        ]
        if missing:
            raise SettingError(
                f"{self.host} is open to other machines, which could change and delete schemas: give "
                f"{' and '.join(missing)}, or --insecure if the network is closed"
            )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of TLS, None without a certificate. Raises SettingError."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:  # ssl.SSLError is one
            raise SettingError(f"the certificate cannot be read: {error.strerror or error}") from None
        return context


@asynccontextmanager
async def opened_registry(settings: RegistrySettings) -> AsyncIterator[RegistryService]:
    """Read the topic of a registry, and serve its questions to this program while the block runs."""
    state = RegistryState()
    topic = schemas_topic(
        settings.topic, settings.client, state.apply, replication_factor=settings.replication_factor
    )
    async with SchemaParser() as parser, topic as opened:
        yield RegistryService(state, opened, parser)


@asynccontextmanager
async def memory_registry(settings: RegistrySettings) -> AsyncIterator[RegistryService]:
    """Serve the questions to a registry that keeps nothing, for tests."""
    state = RegistryState()
    async with SchemaParser() as parser:
        yield RegistryService(state, MemoryStore(settings.topic, state.apply), parser)


class MemoryStore:
    """Applies records without a topic."""

    def __init__(self, name: str, apply: Callable[[bytes, bytes | None], None]) -> None:
        self.name = name
        self._apply = apply

    async def catch_up(self) -> None:
        """Do nothing: there is one registry."""

    async def lead(self) -> None:
        """Do nothing: there is one registry."""

    async def append(self, records: Sequence[Record]) -> None:
        """Apply records."""
        for key, value in records:
            self._apply(key, value)

    def was_written(self, token: str) -> bool:
        """Return False: no write fails."""
        return False


async def serve(
    settings: RegistrySettings,
    started: Callable[[str, uvicorn.Server], None],
    *,
    handles_signals: bool = True,
) -> None:
    """Serve until SIGINT or SIGTERM, or until the server is asked to exit.

    `started` gets the address and the server once it listens. Raises SettingError, Refused, and errors of
    clients.
    """
    settings.check()
    users = None if settings.users is None else users_of(settings.users)
    context = settings.tls_context()
    with _listening(settings.host, settings.port) as listening:
        opened = memory_registry if settings.in_memory else opened_registry
        async with opened(settings) as service:
            only_local = settings.host in LOOPBACK and users is None
            config = uvicorn.Config(
                Access(application(service), users=users, only_local=only_local), log_level="warning",
                access_log=False, server_header=False, limit_concurrency=MOST_CONNECTIONS, backlog=_BACKLOG,
                timeout_graceful_shutdown=STOP_S, lifespan="off", log_config=None, proxy_headers=False,
                http=type("Connection", (BoundedConnection,), {"look_every_s": settings.idle_s}),
                ssl_context_factory=None if context is None else lambda *_: context,
            )  # fmt: skip
            server = _Server(config)
            scheme = "http" if context is None else "https"
            host = f"[{settings.host}]" if ":" in settings.host else settings.host
            started(f"{scheme}://{host}:{listening.getsockname()[1]}", server)
            with _ended_by_signals(server) if handles_signals else nullcontext():
                await server.serve([listening])


class _Server(uvicorn.Server):
    """A server that leaves signals alone: uvicorn's would end the process before the topic is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Ask the server to exit at SIGINT and SIGTERM; only the first thread of a process may."""

    def end(number: int, frame: object) -> None:
        server.should_exit = True

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _listening(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = f"{host}:{port} cannot be served: {error.strerror}; --listen names another"
        raise SettingError(reason) from None
    return listening
