"""Webhooks that answer slowly, wrongly or with a redirect; their addresses are secrets."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ottla.console.watch.alerts import Event
from ottla.console.watch.sending import NotSent, Outbox, Webhook

LAGS = Event(0, "raised", "behind", "local", "billing", "billing lags")


async def test_a_webhook_that_does_not_speak_http_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    requests = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"what?\r\n\r\n" if requests == 1 else b"HTTP/1.1 204 Yes\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        port = server.sockets[0].getsockname()[1]
        webhook = Outbox(Webhook(f"http://127.0.0.1:{port}/"), first_pause_s=0)
        running = tasks.create_task(webhook.run())
        webhook.put(Event(0, "raised", "behind", "local", "billing", "billing lags"))
        while not webhook.sent:  # noqa: ASYNC110 - an outbox has no event for it
            await asyncio.sleep(0.01)
        running.cancel()

    assert (requests, webhook.sent, webhook.given_up, webhook.failure) == (2, 1, 0, "")
    assert [(record.__dict__["attempt"], record.__dict__["reason"]) for record in caplog.records] == [
        (1, "RemoteProtocolError")
    ]


async def test_a_webhook_that_answers_drop_by_drop_keeps_no_thread() -> None:
    arrived: asyncio.Queue[None] = asyncio.Queue()
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nx: a")
        arrived.put_nowait(None)
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.2)
        await closed(writer)
        ended.put_nowait(None)

    threads = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(threads)
    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        hook = Webhook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for _ in range(3):
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(hook.send(LAGS))
                await arrived.get()
                sending.cancel()
            await ended.get()
        await asyncio.to_thread(int)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nlocation: /s3cret\r\n\r\n", "it answered 302"),
        (b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", "it answered 404"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n", ""),
        (b"HTTP/9.9\r\n\r\n", "RemoteProtocolError"),
    ],
)
async def test_the_address_of_a_webhook_stands_in_no_log_and_in_no_error(
    caplog: pytest.LogCaptureFixture, answer: bytes, reason: str
) -> None:
    caplog.set_level(logging.INFO)
    failures = [await reason_of(f"http://127.0.0.1:{port}/s3cret", answer) for port in (0, 1)]
    failures += [
        await reason_of(address, answer) for address in ("s3cret", "http://[s3cret/", "ftp://s3cret/")
    ]

    assert failures[0] == reason
    assert all(failures[1:])
    assert "s3cret" not in " ".join([*failures, caplog.text])


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def reason_of(url: str, answer: bytes) -> str:
    """Return why a webhook is not sent; port 0 is that of a server with an answer."""
    ended = asyncio.Event()

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await closed(writer)
        ended.set()

    server = await asyncio.start_server(give, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        try:
            await Webhook(url.replace(":0/", f":{server.sockets[0].getsockname()[1]}/")).send(LAGS)
            reason = ""
        except NotSent as error:
            reason = str(error)
        if ":0/" in url:
            await ended.wait()
    return reason
