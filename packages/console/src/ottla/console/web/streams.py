"""Answers that go on, and end with their request: server-sent events, and files of unknown length."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

_log = logging.getLogger(__name__)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
MOST_SEND_S: Final = 120.0
"""How long a browser may take for one part: one that reads nothing must not keep the place of a search."""


class _NotTaken(Exception):
    """A browser does not take a part."""


class StreamedResponse(Response):
    """Sends parts as the browser takes them; when it goes away, the source of the parts is closed at once.

    A source that fails after its first part breaks the connection, so that a part of a file is not taken for
    the whole; before it, `refusals` are answered with their reason and their `status_code`. A browser that
    takes no part for `most_send_s` breaks it, too.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        refusals: tuple[type[Exception], ...] = (),
        *,
        most_send_s: float = MOST_SEND_S,
    ) -> None:
        super().__init__(None, headers=headers, media_type=media_type)
        if "content-length" in self.headers:
            del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"  # a proxy must not wait for the end
        self._parts = parts
        self._refusals = refusals
        self._most_send_s = most_send_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the parts or the browser end."""
        async with aclosing(self._parts) as parts, asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send_while_taken(parts, scope, receive, send))
            leaving = tasks.create_task(_left(receive))
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            leaving.cancel()

    async def _send_while_taken(
        self, parts: AsyncGenerator[bytes, None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self._most_send_s):
                    await send(message)
            except TimeoutError:
                raise _NotTaken from None

        try:
            await self._send_all(parts, scope, receive, send_in_time)
        except _NotTaken:
            _log.warning("a browser does not take a stream", extra={"client": scope.get("client")})

    async def _send_all(
        self, parts: AsyncGenerator[bytes, None], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            first = await anext(parts, b"")
        except self._refusals as error:
            status = getattr(error, "status_code", HTTPStatus.SERVICE_UNAVAILABLE)
            await PlainTextResponse(f"{error}\n", status_code=status)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def while_there(receive: Receive, most_s: float) -> AsyncIterator[None]:
    """Bound a block by time and by the browser: its time is over when that goes. Raises TimeoutError."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        bound = asyncio.timeout(most_s)
        leaving = tasks.create_task(_end_when_left(receive, bound))
        try:
            async with bound:
                yield
        except Exception as error:  # the group would wrap it
            failure = error
        leaving.cancel()
    if failure is not None:
        raise failure


async def _end_when_left(receive: Receive, bound: asyncio.Timeout) -> None:
    await _left(receive)
    bound.reschedule(asyncio.get_running_loop().time())


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def attachment(name: str) -> dict[str, str]:
    """Return the header of a file to keep: its name has letters, digits, dots and strokes only.

    A broker may say that there is a topic of any name, and a quotation mark would end the name of the file.
    """
    return {"content-disposition": f'attachment; filename="{_UNSAFE.sub("_", name)}"'}


def event(kind: str, data: Mapping[str, Any], identity: str = "") -> bytes:
    """Return a server-sent event with data as JSON, which has no line breaks."""
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
