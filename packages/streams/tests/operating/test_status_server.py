from __future__ import annotations

import asyncio
import json
import threading
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from ottla.client.page_server import Page
from ottla.client.settings import SettingError
from ottla.streams.app import parse_address
from ottla.streams.operating.status_server import StatusServer, json_page


def read(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


async def get(url: str) -> tuple[int, bytes]:
    return await asyncio.to_thread(read, url)


async def test_pages_are_served_by_path() -> None:
    pages = {"/status": lambda: json_page({"a": 1}), "/health": lambda: json_page({}, HTTPStatus(503))}
    async with StatusServer("127.0.0.1", 0, pages) as server:
        assert await get(f"{server.url}/status?pretty") == (200, b'{\n  "a": 1\n}\n')
        assert await get(server.url) == (200, b'{\n  "a": 1\n}\n')
        assert (await get(f"{server.url}/health"))[0] == 503
        status, body = await get(f"{server.url}/nothing")

    assert (status, json.loads(body)["error"]) == (404, "no such page; there are /health, /status")


async def test_a_page_that_cannot_be_made_is_an_error_and_the_server_goes_on() -> None:
    def fail() -> Page:
        raise RuntimeError("no")

    async with StatusServer("127.0.0.1", 0, {"/status": fail, "/health": lambda: json_page(1)}) as server:
        assert await get(f"{server.url}/status") == (500, b'{\n  "error": "no"\n}\n')
        assert (await get(f"{server.url}/health"))[0] == 200


async def test_a_loop_that_is_blocked_is_told_from_a_process_that_is_gone() -> None:
    async with StatusServer("127.0.0.1", 0, {"/health": lambda: json_page(1)}) as server:
        answers: list[tuple[int, bytes]] = []
        asking = threading.Thread(target=lambda: answers.append(read(f"{server.url}/health")))
        asking.start()
        asking.join(60)  # blocks the loop, as a handler may

    ((status, body),) = answers
    assert status == 503
    assert "the event loop did not answer within 2 s" in json.loads(body)["reasons"][0]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":80", ("127.0.0.1", 80)),
        ("80", ("127.0.0.1", 80)),
        ("host", ("host", 9465)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["host:", "host:http", "host:99999"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="status must be host:port"):
        parse_address(text)
