"""Records of a topic for browsers, by server-sent events or WebSockets. Needs Starlette, which FastAPI has.

One consumer serves all browsers. Each has a queue of its own that is bounded: a browser that reads slowly
misses the oldest records of it, and is told how many. One that takes nothing for long is disconnected.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ottla.client.field_types import K_co, V_co
from ottla.client.web import lifespan
from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import RecordDeserializationFailed
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition

__all__ = ["Broadcast", "as_json", "lifespan"]

KEEP_ALIVE_S = 15.0
"""After so long without a record a comment is sent, or proxies would close the connection."""
STALL_S = 60.0
GOING_AWAY = 1001
TRY_AGAIN_LATER = 1013
_LINE_END = re.compile(r"\r\n|\r|\n")

log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """A record as browsers get it."""

    id: str
    text: str


def as_json(record: ConsumerRecord[Any, Any]) -> str:
    """Return a record as JSON: topic, partition, offset, timestamp_ms, key and value.

    Bytes are text, and numbers that JSON does not have, such as NaN, are null.
    """
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
    }
    try:
        text = json.dumps(shown, default=_plain, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # keys that are no text, or NaN
        text = json.dumps(_with_text_keys(shown), default=_plain, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _with_text_keys(value: Any) -> Any:
    """Return a value in which keys are text and all numbers are such of JSON; others are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {
            key if key is None or isinstance(key, str | int) else str(_plain(key)): _with_text_keys(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_text_keys(inner) for inner in value]
    is_plain = value is None or isinstance(value, str | int)
    return value if is_plain else _with_text_keys(_plain(value))


def _plain(value: Any) -> Any:
    """Return a value that JSON has: of bytes the text, of a class with fields those."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return str(value)


class Broadcast(Generic[K_co, V_co]):
    """Sends the records of one consumer to any number of browsers; it reads inside `async with`.

        live = Broadcast(lambda: Consumer("orders", bootstrap_servers="127.0.0.1:9092"))
        app = FastAPI(lifespan=lifespan(live=live))

        @app.get("/events")
        async def events(request: Request):
            return live.events(request.headers.get("last-event-id"))

        @app.websocket("/ws")
        async def websocket(websocket: WebSocket):
            await live.serve(websocket)

    `encode` makes the text of a record. `max_waiting` records wait for one browser at most, `recent` are kept
    for those that come later, and `max_browsers` are served at once: others are refused with 503. A record
    that cannot be deserialized, or not be encoded, is skipped.
    """

    def __init__(
        self,
        consumer: Callable[[], Consumer[K_co, V_co]],
        *,
        encode: Callable[[ConsumerRecord[K_co, V_co]], str] = as_json,
        max_waiting: int = 1_000,
        recent: int = 0,
        max_browsers: int = 1_000,
        keep_alive_s: float = KEEP_ALIVE_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._make = consumer
        self._encode = encode
        self._max_waiting = max_waiting
        self._recent: deque[Sent] = deque(maxlen=recent)
        self._max_browsers = max_browsers
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s
        self._subscriptions: set[Subscription] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def browsers(self) -> int:
        """The number of browsers that are served."""
        return len(self._subscriptions)

    async def __aenter__(self) -> Self:
        self._tasks = tasks = asyncio.TaskGroup()
        await tasks.__aenter__()
        self._reader = tasks.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        assert self._reader is not None
        self._reader.cancel()
        for subscription in self._subscriptions:
            subscription.close()
        tasks, self._tasks = self._tasks, None
        try:
            await tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise

    def events(self, last_event_id: str | None = None) -> Response:
        """Return the response with server-sent events: one per record, its id `topic:partition:offset`.

        A browser that reconnects sends the last id that it had, and gets the recent records behind it. Raises
        HTTPException (503) beyond `max_browsers`.
        """
        subscription = self._subscribe(last_event_id)
        if subscription is None:
            raise HTTPException(503, "too many browsers are connected; try again later")
        return _Events(self, subscription, self._keep_alive_s, self._stall_s)

    async def serve(self, websocket: WebSocket) -> None:
        """Send each record as a text message of a WebSocket, until it is closed; what it sends is ignored.

        Missed records are the message `{"missed": count}`.
        """
        subscription = self._subscribe(None)
        await websocket.accept()
        if subscription is None:
            await websocket.close(TRY_AGAIN_LATER, "too many browsers are connected")
            return
        try:
            await _until_first(
                partial(self._send_all, websocket, subscription), partial(_disconnected, websocket)
            )
        finally:
            self.unsubscribe(subscription)

    async def _send_all(self, websocket: WebSocket, subscription: Subscription) -> None:
        async for sent in subscription.records(None):
            if sent is None:
                continue
            text = json.dumps({"missed": sent}) if isinstance(sent, int) else sent.text
            try:
                async with asyncio.timeout(self._stall_s):
                    await websocket.send_text(text)
            except (TimeoutError, WebSocketDisconnect):
                return
        await websocket.close(GOING_AWAY)

    def _subscribe(self, last_event_id: str | None) -> Subscription | None:
        if len(self._subscriptions) >= self._max_browsers:
            return None
        subscription = Subscription(self._max_waiting)
        for sent in self._after(last_event_id):
            subscription.put(sent)
        self._subscriptions.add(subscription)
        if self._tasks is None:
            subscription.close()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Put no more records into a browser's queue."""
        self._subscriptions.discard(subscription)

    def _after(self, last_event_id: str | None) -> list[Sent]:
        recent = list(self._recent)
        known = [number for number, sent in enumerate(recent) if sent.id == last_event_id]
        return recent[known[-1] + 1 :] if known else recent

    async def _read(self) -> None:
        async with self._make() as consumer:
            while True:
                try:
                    record = await consumer.getone()
                except RecordDeserializationFailed as error:
                    _log_skipped(error.partition, error.offset, error.cause)
                    consumer.seek(error.partition, error.offset + 1)
                    continue
                try:
                    text = self._encode(record)
                except (TypeError, ValueError, RecursionError) as error:
                    _log_skipped(TopicPartition(record.topic, record.partition), record.offset, error)
                    continue
                self._put(Sent(f"{record.topic}:{record.partition}:{record.offset}", text))

    def _put(self, sent: Sent) -> None:
        self._recent.append(sent)
        for subscription in self._subscriptions:
            subscription.put(sent)


def _log_skipped(partition: TopicPartition, offset: int, cause: BaseException) -> None:
    facts = {"partition": str(partition), "offset": offset, "error": str(cause)}
    log.warning("a record cannot be shown, it is skipped", extra=facts)


class Subscription:
    """The records that wait for one browser, at most `max_waiting` of them."""

    def __init__(self, max_waiting: int) -> None:
        self._waiting: deque[Sent] = deque(maxlen=max_waiting)
        self._missed = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, sent: Sent) -> None:
        """Add a record, in place of the oldest one if the queue is full."""
        self._missed += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(sent)
        self._changed.set()

    def close(self) -> None:
        """End the iteration, behind the records that wait."""
        self._is_closed = True
        self._changed.set()

    async def records(self, keep_alive_s: float | None) -> AsyncIterator[Sent | int | None]:
        """Iterate over records; an int is the number of missed ones, None stands for a time without any."""
        while True:
            while self._missed or self._waiting:
                missed, self._missed = self._missed, 0
                yield missed or self._waiting.popleft()
            if self._is_closed:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(keep_alive_s):
                    await self._changed.wait()
            except TimeoutError:
                yield None


class _Events(Response):
    """The response of server-sent events."""

    def __init__(
        self, broadcast: Broadcast[Any, Any], subscription: Subscription, keep_alive_s: float, stall_s: float
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._broadcast = broadcast
        self._subscription = subscription
        self._keep_alive_s = keep_alive_s
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _until_first(partial(self._send_all, send), partial(_gone, receive))
        finally:
            self._broadcast.unsubscribe(self._subscription)

    async def _send_all(self, send: Send) -> None:
        await self._send(send, ": connected\n\n")
        async for sent in self._subscription.records(self._keep_alive_s):
            if not await self._send(send, _event(sent)):
                return
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, text: str) -> bool:
        """Send a part, and return whether the browser took it in time."""
        message: Message = {"type": "http.response.body", "body": text.encode(), "more_body": True}
        try:
            async with asyncio.timeout(self._stall_s):
                await send(message)
        except TimeoutError:
            return False
        return True


def _event(sent: Sent | int | None) -> str:
    if sent is None:
        return ": keep-alive\n\n"
    if isinstance(sent, int):
        return f"event: missed\ndata: {sent}\n\n"
    # Not `splitlines`, which divides at letters that are part of a line for browsers.
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(sent.text))
    return f"id: {sent.id}\n{lines}\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _disconnected(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _until_first(*calls: Callable[[], Awaitable[None]]) -> None:
    """Await several calls until the first one ends; cancel the others."""

    async def run(call: Callable[[], Awaitable[None]]) -> None:
        await call()
        for task in tasks:
            task.cancel()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(call)) for call in calls]
