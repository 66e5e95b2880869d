"""Topics for browsers: the real Starlette, FastAPI and uvicorn, and a broker of one thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from websockets.asyncio.client import connect

from ottla.broker.testing import BrokerThread
from ottla.consumer import Consumer, ConsumerRecord
from ottla.consumer.web import Broadcast, Sent, Subscription, as_json, lifespan
from ottla.producer import Producer

BOUND_S = 60


@dataclass
class Order:
    drink: str
    price: float


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("web")) as running:
        yield running


class Server(uvicorn.Server):
    """A server whose start can be awaited."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
        self.is_up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an application by uvicorn, on a free port; give its address."""
    server = Server(app)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve())
        await server.is_up.wait()
        try:
            yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True


def to(at: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{at}")


def shop(broker: BrokerThread, topic: str, **settings: Any) -> FastAPI:
    """Return an application that writes orders to a topic, and shows them to browsers."""
    servers = broker.bootstrap_servers

    def consumer() -> Consumer[bytes, Order]:
        return Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest", value_type=Order)

    live = Broadcast(consumer, **settings)
    app = FastAPI(
        lifespan=lifespan(producer=lambda: Producer(servers, value_type=Order, linger_ms=0), live=live)
    )

    @app.post("/orders")
    async def order(order: Order, request: Request) -> int:
        written = await request.state.producer.send_and_wait(topic, order, key=b"josef", partition=0)
        return int(written.offset)

    @app.get("/events")
    async def events(request: Request) -> Response:
        return live.events(request.headers.get("last-event-id"))

    @app.websocket("/ws")
    async def websocket(websocket: WebSocket) -> None:
        await live.serve(websocket)

    app.state.live = live
    return app


async def lines_of(response: httpx.Response, count: int) -> list[str]:
    found: list[str] = []
    async for line in response.aiter_lines():
        if line and not line.startswith(":"):
            found.append(line)
        if len(found) == count:
            break
    return found


async def test_browsers_get_each_order_by_events_and_by_websocket(broker: BrokerThread) -> None:
    app = shop(broker, "live-orders", recent=10)
    async with serving(app) as at, to(at) as client:
        async with connect(f"ws://{at}/ws") as websocket, client.stream("GET", "/events") as events:
            assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
            for number in range(2):
                assert (await client.post("/orders", json={"drink": "čaj", "price": number})).json() == number
            first, second = [json.loads(await websocket.recv()) for _ in range(2)]
            lines = await lines_of(events, 4)
        assert first["value"] == {"drink": "čaj", "price": 0.0}
        assert (second["topic"], second["offset"], second["key"]) == ("live-orders", 1, "josef")
        assert [line.split(": ", 1)[0] for line in lines] == ["id", "data", "id", "data"]
        assert lines[2] == "id: live-orders:0:1"
        assert json.loads(lines[3].removeprefix("data: ")) == second

        async with client.stream("GET", "/events", headers={"Last-Event-ID": "live-orders:0:0"}) as again:
            assert (await lines_of(again, 2))[0] == "id: live-orders:0:1"


async def test_a_record_that_cannot_be_read_is_skipped(broker: BrokerThread) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        for value in (b"no order", b'{"drink":"tea","price":1}'):
            await producer.send_and_wait("poisoned-orders", value, partition=0)
    app = shop(broker, "poisoned-orders", recent=10)
    async with serving(app) as at, to(at) as client:
        async with client.stream("GET", "/events") as events:
            assert (await lines_of(events, 2))[0] == "id: poisoned-orders:0:1"


async def test_more_browsers_than_allowed_are_refused(broker: BrokerThread) -> None:
    app = shop(broker, "crowded-orders", max_browsers=1)
    async with serving(app) as at, to(at) as client:
        async with client.stream("GET", "/events"):
            assert (await client.get("/events")).status_code == 503
            async with connect(f"ws://{at}/ws") as websocket:
                await websocket.wait_closed()
                assert websocket.close_code == 1013


def record_of(offset: int, value: Any = b"x") -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 5, None, value)


class Silent:
    """A consumer of a topic without records."""

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def getone(self) -> Any:
        await never()


async def never(*_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


def silent(**settings: Any) -> Broadcast[Any, Any]:
    make: Any = Silent
    return Broadcast(make, **settings)


async def test_a_slow_browser_misses_the_oldest_records_and_is_told_how_many() -> None:
    sent: list[str] = []
    full, reads, last = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b"").decode())
        if len(sent) == 2:  # the server's buffer is full
            full.set()
            await reads.wait()
        if "data: 9" in sent[-1]:
            last.set()

    async with asyncio.timeout(BOUND_S), silent(max_waiting=3) as live, asyncio.TaskGroup() as tasks:
        response: Any = live.events()
        browser = tasks.create_task(response({}, never, send))
        await full.wait()
        for offset in range(10):
            live._put(Sent(f"0:{offset}", str(offset)))
        reads.set()
        await last.wait()
        browser.cancel()

    assert sent[2:] == [
        "event: missed\ndata: 7\n\n", "id: 0:7\ndata: 7\n\n", "id: 0:8\ndata: 8\n\n", "id: 0:9\ndata: 9\n\n"
    ]  # fmt: skip


async def test_a_browser_that_takes_nothing_is_disconnected() -> None:
    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never()

    async with asyncio.timeout(BOUND_S), silent(stall_s=0.01) as live:
        response: Any = live.events()
        live._put(Sent("0:0", "x"))
        assert live.browsers == 1
        await response({}, never, send)
        assert live.browsers == 0


async def test_a_browser_that_leaves_is_forgotten() -> None:
    async def left() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    async with asyncio.timeout(BOUND_S), silent() as live:
        response: Any = live.events()
        await response({}, left, send)
        assert live.browsers == 0


async def test_browsers_are_disconnected_when_the_application_ends() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(BOUND_S), silent() as live:
        response: Any = live.events()
    async with asyncio.timeout(BOUND_S):
        await response({}, never, send)

    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_time_without_records_has_comments_that_keep_the_connection() -> None:
    subscription = Subscription(10)

    async for nothing in subscription.records(0.001):
        assert nothing is None
        break


def test_records_are_json_whatever_their_values_are() -> None:
    assert json.loads(as_json(record_of(7, Order("tea", 1.0)))) == {
        "topic": "t", "partition": 0, "offset": 7, "timestamp_ms": 5, "key": None,
        "value": {"drink": "tea", "price": 1.0},
    }  # fmt: skip
    assert json.loads(as_json(record_of(7, b"\xff")))["value"] == "\N{REPLACEMENT CHARACTER}"
    for value, shown in (
        (float("nan"), None),
        ([1.5, float("inf")], [1.5, None]),
        ({b"k": 1, (1, 2): Order("tea", float("nan"))}, {"k": 1, "(1, 2)": {"drink": "tea", "price": None}}),
        ({1: float("nan"), None: b"x"}, {"1": None, "null": "x"}),
        ("\ud800 half", "\ud800 half"),
    ):
        text = as_json(record_of(7, value)).encode().decode()
        assert json.loads(text, parse_constant=pytest.fail)["value"] == shown


async def test_an_event_has_the_lines_of_its_text_and_no_others() -> None:
    """Browsers divide lines at CR and LF only, and put LF between the lines of an event."""
    value = "a\u2028b\u2029c\x85d\x0be\x1cf"
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async with asyncio.timeout(BOUND_S), silent(recent=2) as live:
        for text in (as_json(record_of(7, value)), "two\r\nlines\rand three\n"):
            live._put(Sent("0:7", text))
        response: Any = live.events()
    async with asyncio.timeout(BOUND_S):
        await response({}, never, send)

    events = b"".join(sent).decode().split("\n\n")[1:3]
    shown = [event.split("\n", 1)[1].replace("\ndata: ", "\n").removeprefix("data: ") for event in events]
    assert json.loads(shown[0])["value"] == value
    assert shown[1] == "two\nlines\nand three\n"


async def test_a_record_that_cannot_be_encoded_is_skipped(broker: BrokerThread) -> None:
    def encode(record: ConsumerRecord[Any, Any]) -> str:
        return str(int(record.value))  # ValueError for text

    async with asyncio.timeout(BOUND_S), Producer(broker.bootstrap_servers) as producer:
        for value in ("no number", "7"):
            await producer.send_and_wait("odd", value, partition=0)
        live = Broadcast(
            lambda: Consumer("odd", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"),
            encode=encode,
        )
        async with live:
            subscription = live._subscribe(None)
            assert subscription is not None
            async for sent in subscription.records(None):
                assert sent == Sent("odd:0:1", "7")
                break


class Client:
    """A client whose opening and closing are seen."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def __aenter__(self) -> str:
        self.seen.append(f"{self.name} opened")
        return self.name

    async def __aexit__(self, *_: object) -> None:
        self.seen.append(f"{self.name} closed")


async def test_clients_open_with_the_application_and_close_in_reverse() -> None:
    seen: list[str] = []

    async def hello(request: Request) -> Response:
        return PlainTextResponse(f"{request.state.first} {request.state.second}")

    opened = lifespan(first=lambda: Client("a", seen), second=Client("b", seen))
    app = Starlette(routes=[Route("/", hello)], lifespan=opened)
    for _ in range(2):
        async with serving(app) as at, httpx.AsyncClient(base_url=f"http://{at}") as client:
            assert (await client.get("/")).text == "a b"

    assert seen == ["a opened", "b opened", "b closed", "a closed"] * 2


def test_events_beyond_the_bound_raise_503() -> None:
    with pytest.raises(HTTPException, match="too many browsers"):
        silent(max_browsers=0).events()
