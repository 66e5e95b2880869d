"""Pages over HTTP, and clients that are slow or many."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from ottla.client.page_server import (
    CONNECTIONS,
    Page,
    PageAccess,
    PageServer,
    PagesRefused,
    page_access,
)
from peers.certificates import Authority, missing_openssl

BOUND_S = 30
LARGE = bytes(16 << 20)
"""More than a socket takes when nothing is read from it."""


@asynccontextmanager
async def served(
    answer: Callable[[str], Page] = lambda path: Page(path.encode()), client_timeout_s: float = 3600
) -> AsyncIterator[PageServer]:
    server = PageServer("127.0.0.1", 0, answer, "pages", client_timeout_s=client_timeout_s)
    server.start()
    try:
        async with asyncio.timeout(BOUND_S):
            yield server
    finally:
        await asyncio.to_thread(server.stop)


async def asked(server: PageServer, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    return reader, writer


async def get(server: PageServer, path: str = "/page", fields: str = "") -> tuple[str, bytes]:
    """Return the first line and the body of an answer."""
    reader, writer = await asked(server, f"GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.decode().partition("\r\n")[0], body


async def test_a_page_is_served_by_its_path_and_compressed_for_those_that_accept_it() -> None:
    async with served() as server:
        assert await get(server, "/a?b") == ("HTTP/1.0 200 OK", b"/a")
        _, body = await get(server, "/a", "Accept-Encoding: deflate, gzip\r\n")

    assert gzip.decompress(body) == b"/a"


async def test_an_answer_has_the_status_of_its_page() -> None:
    def answer(path: str) -> Page:
        if path == "/fails":
            raise ValueError("secret")
        return Page(b"no", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async with served(answer) as server:
        assert (await get(server))[0] == "HTTP/1.0 503 Service Unavailable"
        failed, body = await get(server, "/fails")

    assert failed == "HTTP/1.0 500 Internal Server Error"
    assert b"secret" not in body


async def test_clients_that_do_not_read_their_pages_delay_no_other() -> None:
    async with served(lambda path: Page(LARGE if path == "/large" else b"small")) as server:
        unread = [await asked(server, b"GET /large HTTP/1.1\r\n\r\n") for _ in range(30)]

        assert (await get(server))[1] == b"small"
        for _, writer in unread:
            writer.transport.abort()


async def test_clients_that_do_not_ask_delay_no_other() -> None:
    async with served() as server:
        silent = [await asked(server, b"GET /slow HT") for _ in range(30)]

        assert (await get(server))[1] == b"/page"
        for _, writer in silent:
            writer.transport.abort()


async def test_a_client_that_takes_too_long_is_closed() -> None:
    async with served(lambda _: Page(LARGE), client_timeout_s=0.2) as server:
        unread, first = await asked(server, b"GET /large HTTP/1.1\r\n\r\n")
        received = len(await unread.readexactly(1))
        silent, second = await asked(server, b"GET /slow HT")

        assert await silent.read() == b""
        with suppress(ConnectionError):
            while data := await unread.read(1 << 20):
                received += len(data)
        assert received < len(LARGE)
        for writer in (first, second):
            writer.transport.abort()


async def test_one_connection_too_many_takes_the_place_of_the_oldest() -> None:
    async with served() as server:
        silent = [await asked(server, b"GET") for _ in range(CONNECTIONS)]

        try:
            assert (await get(server))[1] == b"/page"
            with suppress(ConnectionResetError):  # the server had not read its bytes yet
                assert await silent[0][0].read() == b""
        finally:
            for _, writer in silent:
                writer.transport.abort()


# ---- TLS and a token


TOKEN = "t0ken-of-letters-and-digits"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if missing := missing_openssl():
        pytest.skip(missing)
    return Authority(tmp_path_factory.mktemp("authority"))


def pem_of(authority: Authority, name: str) -> Path:
    certificate, key = authority.sign(name)
    pem = certificate.with_suffix(".pem")
    pem.write_text(certificate.read_text() + key.read_text())
    return pem


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(f"{text}\n")
    path.chmod(mode)
    return path


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("fields", "is_admitted"),
    [
        ([f"Authorization: Bearer {TOKEN}"], True),
        ([f"authorization:bearer {TOKEN} "], True),
        ([f"Authorization: {basic(f'anyone:{TOKEN}')}"], True),
        ([f"Authorization: {basic(f':{TOKEN}')}"], True),
        ([f"Authorization: {basic(TOKEN)}"], False),
        ([f"Authorization: {basic('anyone:guessed')}"], False),
        (["Authorization: Basic !!!"], False),
        (["Authorization: Basic 4pyT4pyT"], False),
        (["Authorization: Bearer "], False),
        (["Authorization: Bearer é"], False),
        (["Authorization:"], False),
        ([f"Authorization: {TOKEN}"], False),
        ([f"Authorization: Bearer {TOKEN}", "Authorization: Bearer x"], False),
        ([f"X-Authorization: Bearer {TOKEN}"], False),
        ([], False),
    ],
)
def test_only_the_token_admits_to_pages(fields: list[str], is_admitted: bool) -> None:
    assert PageAccess(token=TOKEN).admits(fields) is is_admitted
    assert PageAccess().admits(fields)


async def test_pages_are_served_by_tls_to_those_with_the_token(authority: Authority, tmp_path: Path) -> None:
    access = page_access(
        "0.0.0.0", certificate=str(pem_of(authority, "pages")), token_file=str(token_file(tmp_path))
    )
    server = PageServer("127.0.0.1", 0, lambda path: Page(path.encode()), "pages", access=access)
    trusting = ssl.create_default_context(cafile=str(authority.cafile))
    server.start()

    async def ask(fields: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
        writer.write(f"GET /p HTTP/1.1\r\n{fields}\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    try:
        async with asyncio.timeout(BOUND_S):
            assert (await ask(f"Authorization: Bearer {TOKEN}\r\n")).endswith(b"\r\n\r\n/p")
            refused = await ask("Authorization: Bearer guessed\r\n")
            with suppress(ConnectionError):
                status, _ = await get(server)
                assert status == ""
            assert server.scheme == "https"
    finally:
        await asyncio.to_thread(server.stop)
    assert refused.startswith(b"HTTP/1.0 401 Unauthorized\r\n")
    assert b"WWW-Authenticate: Basic" in refused
    assert TOKEN not in repr(access)


async def test_handshakes_that_stop_half_way_keep_nobody_out(authority: Authority, tmp_path: Path) -> None:
    access = PageAccess(pem_of(authority, "busy"))
    server = PageServer(
        "127.0.0.1", 0, lambda _: Page(b"page"), "pages", client_timeout_s=3600, access=access
    )
    trusting = ssl.create_default_context(cafile=str(authority.cafile))
    server.start()
    try:
        async with asyncio.timeout(BOUND_S):
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * CONNECTIONS)]
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
            writer.write(b"GET /p HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"page")
            with suppress(ConnectionError):
                assert await silent[0][0].read() == b""  # it made room
            for _, other in silent:
                other.close()
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_new_certificate_is_taken_and_a_broken_one_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    pem = tmp_path / "pages.pem"
    pem.write_bytes(pem_of(authority, "first").read_bytes())
    server = PageServer("127.0.0.1", 0, lambda _: Page(b"page"), "pages", access=PageAccess(pem))
    trusting = ssl.create_default_context(cafile=str(authority.cafile))
    server.start()

    async def name_of_server() -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
        subject = writer.get_extra_info("peercert")["subject"]
        writer.close()
        return str(subject[0][0][1])

    try:
        async with asyncio.timeout(BOUND_S):
            names = [await name_of_server()]
            pem.write_bytes(pem_of(authority, "second").read_bytes())
            names.append(await name_of_server())
            pem.write_text("-----BEGIN nonsense")
            names.append(await name_of_server())
    finally:
        await asyncio.to_thread(server.stop)
    assert names == ["first", "second", "second"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_pages_for_other_machines_want_both(host: str, authority: Authority, tmp_path: Path) -> None:
    pem, token = str(pem_of(authority, "both")), str(token_file(tmp_path))
    for only_pem, only_token in ((None, None), (pem, None), (None, token)):
        with pytest.raises(PagesRefused, match="can be read from other machines"):
            page_access(host, certificate=only_pem, token_file=only_token)
    assert page_access(host, certificate=pem, token_file=token).token == TOKEN
    assert page_access(host, is_open=True).token is None
    assert page_access("::1").token is None


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (TOKEN, 0o644, "mode 0644"),
        ("short", 0o600, "16 letters"),
        ("two words in a line", 0o600, "without spaces"),
    ],
)
def test_tokens_that_others_may_know_are_refused(tmp_path: Path, text: str, mode: int, reason: str) -> None:
    with pytest.raises(PagesRefused, match=reason) as refused:
        page_access("127.0.0.1", token_file=str(token_file(tmp_path, text, mode)))
    assert text not in str(refused.value)


def test_files_that_are_missing_or_broken_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PagesRefused, match="No such file"):
        page_access("127.0.0.1", token_file=str(tmp_path / "no"))
    with pytest.raises(PagesRefused, match="does not hold a certificate"):
        page_access("127.0.0.1", certificate=str(token_file(tmp_path)))
