"""The console as a process: one socket, uvicorn, and an end within a bounded time."""

from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn

from ottla.client.environment import monotonic_s
from ottla.client.log_formats import FactsFormatter
from ottla.console.app import application
from ottla.console.logins.authenticator import state_of
from ottla.console.settings import ConsoleRefused, ConsoleSettings
from ottla.registry.server.connections import BoundedConnection

_log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 4_096
BACKLOG: Final = 1_024
SEND_BUFFER_BYTES: Final = 256 << 10
"""The bytes of answers that the system keeps for each connection, instead of up to 4 MiB."""
STOP_S: Final = 3
"""How long requests may go on after the end of the console was asked for."""
_OLDEST: Final = 2
LONG_COLLECTION_S: Final = 0.0025
ALL_COLLECTED_S: Final = 3_600.0
_SWITCH_S: Final = 0.001
"""How long the loop waits for a thread that computes, at each return from a socket; Python has 5 ms."""
LOOK_EVERY_S: Final = 5.0
"""How often the files of the certificate and its key are looked at for changes."""
_BESIDE_NICE: Final = 5
"""How much a console beside a broker yields the processor to it."""


def log_to_stderr() -> None:
    """Write warnings of this process to standard error, with their facts."""
    handler = logging.StreamHandler()
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def serve(settings: ConsoleSettings, started: Callable[[str], None], *, beside: bool = False) -> None:
    """Serve until SIGINT or SIGTERM; `started` gets the address once it listens. Raises ConsoleRefused.

    With `beside` another program started it, and holds its standard input: it ends with that program too,
    however that ends, and yields the processor to it.
    """
    log_to_stderr()
    certificates = None if settings.certificate is None else Certificates(settings)
    with _listening(settings) as listening:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        scheme = "http" if certificates is None else "https"
        started(f"{scheme}://{host}:{listening.getsockname()[1]}{settings.base_path}/")
        config = uvicorn.Config(
            application(settings), log_level="warning", access_log=False, server_header=False,
            limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=STOP_S, lifespan="on",
            backlog=BACKLOG, log_config=None, proxy_headers=False,
            ssl_context_factory=None if certificates is None else lambda *_: certificates.context,
            http=BoundedConnection,
        )  # fmt: skip
        server = uvicorn.Server(config)
        ShortCollections(monotonic_s).begin()
        sys.setswitchinterval(_SWITCH_S)
        if beside:
            os.nice(_BESIDE_NICE)
            threading.Thread(target=_end_with_input, args=(server,), name="input", daemon=True).start()
        ended = threading.Event()
        if certificates is not None:
            watch = (certificates, ended)
            threading.Thread(target=_look_at_files, args=watch, name="certificates", daemon=True).start()
        try:
            server.run([listening])
        finally:
            ended.set()


def _look_at_files(certificates: Certificates, ended: threading.Event) -> None:
    while not ended.wait(LOOK_EVERY_S):
        certificates.look()


class ShortCollections:
    """Keeps collections of garbage short, which hold up the loop; it is one of `gc.callbacks`.

    A full collection looks at all objects that it does not know to stay, and with 10,000 topics these are
    100,000. So it comes early, after some thousand new objects, and one that took long sets its survivors
    aside: they go by their references. Once in an hour all are looked at for cycles.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        self._now_s = now_s
        self._freeze, self._unfreeze = freeze, unfreeze
        self._begun_s = self._looked_at_all_s = now_s()

    def begin(self) -> None:
        """Collect so from here on; the objects that the start has made stay, and are set aside."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(2_000, 4, 1)
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Take note of a collection that begins or ends."""
        if info["generation"] != _OLDEST:
            return
        now_s = self._now_s()
        if phase == "start":
            self._begun_s = now_s
        elif now_s - self._begun_s > LONG_COLLECTION_S:
            self._freeze()
            if now_s - self._looked_at_all_s >= ALL_COLLECTED_S:
                self._looked_at_all_s = now_s
                self._unfreeze()  # the next full collection looks at everything


def _end_with_input(server: uvicorn.Server) -> None:
    """End a server once standard input has an end; it waits in a thread, for any kind of file."""
    with suppress(OSError):
        while os.read(0, 4_096):
            pass
    server.should_exit = True


class Certificates:
    """The certificate of the console and its key, read again when their files change.

    Connections take `context` for as long as the console serves; each handshake uses the files read last. A
    pair that cannot be used, as while only one file is written yet, keeps the one before.
    """

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises ConsoleRefused."""
        self._settings = settings
        self._known = self._state()
        self.context = self._current = tls_context(settings)
        self.context.sni_callback = self._choose

    def look(self) -> None:
        """Read the files again if they have changed; it blocks."""
        if (state := self._state()) == self._known:
            return
        self._known = state
        try:
            self._current = tls_context(self._settings)
        except ConsoleRefused as error:
            _log.error(
                "the certificate cannot be read again, the earlier one stays", extra={"reason": str(error)}
            )
        else:
            _log.warning("the certificate was read again", extra={"path": str(self._settings.certificate)})

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = self._current

    def _state(self) -> list[tuple[int, int, int] | None]:
        files = (self._settings.certificate, self._settings.key)
        return [state_of(file) for file in files if file is not None]


def tls_context(settings: ConsoleSettings) -> ssl.SSLContext:
    """Return the context of TLS of the certificate and its key. Raises ConsoleRefused."""
    assert settings.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except OSError as error:  # ssl.SSLError is one
        where = settings.certificate if settings.key is None else f"{settings.certificate} and {settings.key}"
        why = error.strerror or error
        raise ConsoleRefused(f"{where} must hold a certificate and its key in PEM, in clear: {why}") from None
    return context


def _listening(settings: ConsoleSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)  # a browser that comes before the application is ready waits
    except OSError as error:
        listening.close()
        where = f"{settings.host}:{settings.port}"
        raise ConsoleRefused(f"{where} cannot be served: {error.strerror}; --listen names another") from None
    return listening
