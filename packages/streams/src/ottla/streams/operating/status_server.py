"""An HTTP server for health, metrics and status, with a bound on threads and on the time a client takes.

It runs on threads, and asks the event loop for each page. So a slow client costs the loop nothing, and a loop
that is blocked differs from a process that is gone: `/health` says so after `ANSWER_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from ottla.client.page_server import Page, PageAccess, PageServer
from ottla.streams.errors import StreamsError

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S: Final = 2.0
DEFAULT_PORT: Final = 9465


Pages = Mapping[str, Callable[[], Page]]


def json_page(value: object, status: HTTPStatus = HTTPStatus.OK) -> Page:
    """Return a page of JSON."""
    return Page(json.dumps(value, indent=2, default=str).encode() + b"\n", status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLogin:
    """The login and the encryption of a status page; an address that other machines reach needs both."""

    certificate: str | None = None
    """A PEM file with a certificate and its key."""
    key_password: str | None = field(default=None, repr=False)
    """The password of that key."""
    token_file: str | None = None
    """A file with the token that a reader has to show."""
    is_open: bool = False
    """Whether the page may be read without them, by all that reach it."""


class StatusNotServed(StreamsError):
    """The address of the status page is in use, or is none of this machine."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(
            f"the status page cannot be served at {host}:{port}: {cause.strerror}; give another address, by "
            "--status or status=, or port 0 for a free one"
        )


class StatusServer:
    """Serves pages by path, within `async with`; the functions are called on the event loop."""

    def __init__(self, host: str, port: int, pages: Pages, access: PageAccess | None = None) -> None:
        """Port 0 takes a free one. Entering raises StatusNotServed."""
        self._address = (host, port)
        self._pages = pages
        self._access = access
        self._server: PageServer | None = None

    @property
    def url(self) -> str:
        """Its address for clients."""
        assert self._server is not None, "the server is not running"
        host = self._server.host
        return f"{self._server.scheme}://{f'[{host}]' if ':' in host else host}:{self._server.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            server = PageServer(
                *self._address, lambda path: self._answer(path, loop), "streams-status", access=self._access
            )
        except OSError as error:
            raise StatusNotServed(*self._address, error) from error
        self._server = server
        server.start()
        log.info("status is served", extra={"url": self.url})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await asyncio.to_thread(self._server.stop)

    def _answer(self, path: str, loop: asyncio.AbstractEventLoop) -> Page:
        """Return the page of a path, made on the loop, or name the paths there are."""
        make = self._pages.get(path.rstrip("/") or "/status")
        if make is None:
            known = ", ".join(sorted(self._pages))
            return json_page({"error": f"no such page; there are {known}"}, HTTPStatus.NOT_FOUND)
        asked = asyncio.run_coroutine_threadsafe(_made(make), loop)
        try:
            return asked.result(ANSWER_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            return _blocked()
        except Exception as error:
            log.warning(
                "a page of status could not be made", extra={"path": path[:200], "reason": str(error)}
            )
            return json_page({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)


async def _made(make: Callable[[], Page]) -> Page:
    return make()


def _blocked() -> Page:
    reason = f"the event loop did not answer within {ANSWER_TIMEOUT_S:g} s: a handler blocks it"
    return json_page({"healthy": False, "reasons": [reason]}, HTTPStatus.SERVICE_UNAVAILABLE)
