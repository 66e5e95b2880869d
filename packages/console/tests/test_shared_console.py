"""A console for other people: by TLS, behind a proxy below a path, and against tricks with addresses."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from argon2 import PasswordHasher
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Message, Receive, Scope, Send

from ottla.broker.testing import free_port
from ottla.client.config import ClientConfig
from ottla.console.app import application
from ottla.console.cli import console
from ottla.console.logins.access import Grant, Role
from ottla.console.logins.authenticator import Authenticator
from ottla.console.logins.files import Logins, read_logins
from ottla.console.logins.gate import Gate
from ottla.console.logins.sessions import Person
from ottla.console.records.masking import MaskRule
from ottla.console.server import Certificates
from ottla.console.settings import ClusterSettings, ConsoleRefused, ConsoleSettings, checked
from ottla.console.web.guards import BehindProxy, Guards

PASSWORD = "correct horse"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate for localhost and 127.0.0.1, and a file of logins."""
    folder = tmp_path_factory.mktemp("shared")
    write_certificate(folder)
    logins = folder / "console.toml"
    logins.touch(mode=0o600)
    logins.write_text(f'[[user]]\nname = "root"\npassword = "{CHEAP}"\nrole = "administrator"\n')
    return folder


def write_certificate(folder: Path) -> int:
    """Write a new certificate and its key; return the serial number."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return int(certificate.serial_number)


@contextmanager
def running(folder: Path, *options: str) -> Iterator[str]:
    """Run `ottla console` as a process, and yield the address that it says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.console", "--logins", str(folder / "console.toml"),
         "--history", str(folder / "history.sqlite"), "--allow-changes", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PYTHONUNBUFFERED": "1", "HOME": str(folder), "OTTLA_PROFILES": str(folder / "none.toml")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate(timeout=60)[1]
        yield said.split()[1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def trusting(folder: Path) -> ssl.SSLContext:
    """Return a context that trusts the certificate."""
    return ssl.create_default_context(cafile=str(folder / "certificate.pem"))


async def log_in(client: httpx.AsyncClient, base: str = "") -> httpx.Response:
    shown = await client.get(f"{base}/login")
    token = re.search(r'name="token" value="(\w+)"', shown.text)
    assert token is not None, shown.text
    origin = f"{client.base_url.scheme}://{client.base_url.netloc.decode()}"
    form = {"user": "root", "password": PASSWORD, "token": token[1]}
    return await client.post(f"{base}/login", data=form, headers={"origin": origin})


async def test_by_tls_cookies_are_secure_and_browsers_keep_to_it(folder: Path, address: str) -> None:
    with running(
        folder, "--listen", f"127.0.0.1:{free_port()}", "--bootstrap-server", address,
        "--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"),
    ) as url:  # fmt: skip
        async with httpx.AsyncClient(verify=trusting(folder), base_url=url, timeout=60) as client:
            done = await log_in(client)
            page = await client.get("/c/local/topics")
            form_cookie = (await client.get("/login")).headers.get("set-cookie", "")
        async with httpx.AsyncClient() as plain:
            with pytest.raises(httpx.HTTPError):
                await plain.get(url.replace("https", "http"))

    assert url.startswith("https://127.0.0.1:")
    cookie = done.headers["set-cookie"]
    assert re.fullmatch(r"__Host-ottla_session=\S+; HttpOnly; Path=/; SameSite=lax; Secure", cookie)
    assert form_cookie == ""  # the session names the browser
    assert done.headers["strict-transport-security"] == "max-age=31536000"
    assert (page.status_code, "<b>root</b>" in page.text) == (200, True)


async def test_a_certificate_that_is_replaced_serves_the_next_connection_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = write_certificate(tmp_path)
    certificates = Certificates(
        ConsoleSettings((), certificate=tmp_path / "certificate.pem", key=tmp_path / "key.pem")
    )

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def serial(port: int) -> int:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        return int(x509.load_der_x509_certificate(found).serial_number)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.context)
    async with server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        seen = [await serial(port)]
        certificates.look()
        second = write_certificate(tmp_path)
        certificates.look()
        seen.append(await serial(port))
        (tmp_path / "key.pem").write_text("torn")
        certificates.look()
        certificates.look()
        seen.append(await serial(port))
        (tmp_path / "certificate.pem").unlink()
        certificates.look()
        seen.append(await serial(port))
        third = write_certificate(tmp_path)
        certificates.look()
        seen.append(await serial(port))

    assert seen == [first, second, second, second, third]
    assert [record.getMessage() for record in caplog.records] == [
        "the certificate was read again",
        "the certificate cannot be read again, the earlier one stays",
        "the certificate cannot be read again, the earlier one stays",
        "the certificate was read again",
    ]


# --- behind a proxy


class Proxy:
    """A reverse proxy by TLS: it takes a path off, or leaves it, and adds the headers that proxies add."""

    def __init__(self, port: int, strip: str, forwarded: str = "https") -> None:
        self._port = port
        self._strip = strip
        self._forwarded = forwarded

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its answer back."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            method, path, version = line.split(" ")
            path = path.removeprefix(self._strip) or "/" if self._strip else path
            fields = [field for field in fields if not field.lower().startswith("connection:")]
            fields += ["X-Forwarded-For: 6.6.6.6, 203.0.113.9", "Connection: close"]
            fields += [f"X-Forwarded-Proto: {self._forwarded}"] if self._forwarded else []
            length = next(
                (int(field[15:]) for field in fields if field.lower().startswith("content-length:")), 0
            )
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
            forth.write("\r\n".join([f"{method} {path} {version}", *fields, "", ""]).encode("latin-1"))
            forth.write(await reader.readexactly(length))
            writer.write(await back.read())
            await writer.drain()
            forth.close()
        finally:
            writer.close()


@asynccontextmanager
async def proxied(
    folder: Path, port: int, strip: str, forwarded: str = "https"
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a proxy before a console, and return a client of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    server = await asyncio.start_server(Proxy(port, strip, forwarded).serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(verify=trusting(folder), base_url=url, timeout=60) as client:
        yield client


async def test_every_link_form_and_update_works_below_a_path_behind_a_proxy(
    folder: Path, address: str, admin: Any
) -> None:
    await admin.topics.create("proxied")
    port = free_port()
    with running(
        folder, "--listen", f"127.0.0.1:{port}", "--bootstrap-server", address, "--behind-proxy", "127.0.0.1",
        "--base-path", "/kafka",
    ) as url:  # fmt: skip
        assert url.endswith("/kafka/")
        for strip in ("/kafka", ""):
            async with proxied(folder, port, strip) as client:
                home = await client.get("/kafka", headers={"accept": "text/html"})
                assert urlsplit(home.headers["location"]).path in ("/kafka/", "/kafka/login")
                done = await log_in(client, "/kafka")
                assert done.headers["location"] == "/kafka/"
                assert re.fullmatch(
                    r"__Secure-ottla_session=\S+; HttpOnly; Path=/kafka; SameSite=lax; Secure",
                    done.headers["set-cookie"],
                )
                visited = await crawled(client)
                assert {
                    "/kafka/c/local/", "/kafka/c/local/topics/proxied", "/kafka/alerts",
                    "/kafka/c/local/topics/proxied/records", "/kafka/static/console.css",
                    "/kafka/c/local/change/create-topic",
                } <= visited  # fmt: skip
        for forwarded in ("http", ""):
            async with proxied(folder, port, "/kafka", forwarded) as client:
                refused = await client.get("/kafka/login")
                assert refused.status_code == 403
                assert "X-Forwarded-Proto: https" in refused.text


async def crawled(client: httpx.AsyncClient, most: int = 60) -> set[str]:
    """Return the paths of all pages that links lead to; each must be there, below the path."""
    left, seen = ["/kafka/"], set[str]()
    while left and len(seen) < most:
        path = left.pop(0)
        if (bare := path.partition("?")[0]) in seen:
            continue
        seen.add(bare)
        answer = await client.get(path, headers={"accept": "text/html"})
        if answer.is_redirect:
            left.append(urljoin(path, answer.headers["location"]))
            continue
        assert answer.status_code in (200, 404, 503), (path, answer.status_code)
        assert answer.status_code == 200 or "group" in path or "silence" in path, (path, answer.text)
        for found in re.findall(r'(?:href|src|action|hx-get|data-points)="([^"#]*)"', answer.text):
            target = urljoin(str(client.base_url.join(path)), unescape(found))
            assert urlsplit(target).netloc == urlsplit(str(client.base_url)).netloc, found
            assert urlsplit(target).path.startswith("/kafka/"), (path, found)
            if not urlsplit(target).path.endswith("/logout"):
                left.append(urlsplit(target)._replace(scheme="", netloc="").geturl())
    return seen


async def answered(
    app: Any, path: str, *, client: str = "127.0.0.1", **headers: str
) -> tuple[int, str, Scope]:
    """Send a request with a path that no client would send; return status, location, and the scope behind."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    fields = {"host": "localhost", "accept": "text/html", **headers}
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()],
        "client": (client, 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    found = dict(sent[0]["headers"])
    return sent[0]["status"], found.get(b"location", b"").decode(), scope


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/../../../pyproject.toml", "/static//etc/passwd",
        "/static/%2e%2e/app.py",
        "//evil.example/c/local/topics", "/c/local/../../etc/passwd", "/c/local/topics/../settings", "/c/\0/",
        "/static/\0", "/c//topics", "/login/../c/local/", "/C/local/", "/c/local/;/", "/\\evil.example/",
    ],
)  # fmt: skip
@pytest.mark.parametrize("base", ["", "/kafka"])
async def test_tricks_with_paths_lead_to_no_file_no_page_and_no_other_host(
    folder: Path, path: str, base: str
) -> None:
    settings = ConsoleSettings(
        (ClusterSettings("local", "127.0.0.1:1", ClientConfig),), logins=folder / "console.toml",
        base_path=base,
    )  # fmt: skip
    status, location, _ = await answered(application(settings), path)

    assert status in (303, 307, 404, 405), status
    if status in (303, 307):
        assert urlsplit(location).netloc in ("", "localhost")
        assert not location.startswith(("//", "/\\"))
        assert status == 307 or location.startswith(f"{base}/login?next=")


async def test_only_the_proxy_is_believed(folder: Path) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = BehindProxy(Guards(app, ["localhost"], https_only=True), [ip_network("10.0.0.0/24")])
    forwarded = {"x_forwarded_for": "6.6.6.6, 203.0.113.9, 10.0.0.7", "x_forwarded_proto": "https"}

    assert (await answered(guarded, "/", client="192.0.2.1", **forwarded))[0] == 403
    assert (await answered(guarded, "/", client="10.0.0.1"))[0] == 403
    assert seen == []
    assert (await answered(guarded, "/", client="10.0.0.1", **forwarded))[0] == 200
    assert seen[0]["client"][0] == "203.0.113.9"
    assert seen[0]["scheme"] == "https"


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"host": "0.0.0.0"}, "it needs --tls-certificate (or --behind-proxy) and --logins"),
        ({"host": "0.0.0.0", "logins": Path("x")}, "it needs --tls-certificate"),
        ({"host": "0.0.0.0", "certificate": Path("x")}, "and --logins"),
        ({"host": "0.0.0.0", "certificate": Path("x"), "logins": Path("x")}, "--name must give the name"),
        ({"proxies": (ip_network("10.0.0.1"),)}, "it needs --logins"),
        ({"base_path": "/a/"}, "must be a path such as /kafka"),
        ({"base_path": "/.."}, "must be a path such as /kafka"),
    ],
)
def test_a_console_that_others_could_read_is_refused_in_one_line(
    changes: dict[str, Any], advice: str
) -> None:
    with pytest.raises(ConsoleRefused) as raised:
        checked(ConsoleSettings((), **changes))

    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_console_for_others_may_be_served_by_tls_with_logins() -> None:
    settings = ConsoleSettings(
        (), "0.0.0.0", names=("kafka.example.com",), certificate=Path("x"), logins=Path("x"), base_path="/a/b"
    )

    assert checked(settings) is settings


async def test_a_stream_ends_with_the_session_of_its_person(folder: Path) -> None:
    path = folder / "console.toml"
    authenticator = Authenticator(path, read_logins(path))
    secret = authenticator.admit(Person("root", "password", CHEAP), "127.0.0.1", None)
    said, is_streaming = list[str](), asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        is_streaming.set()
        said.append((await receive())["type"])

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def nowhere(_: Message) -> None:
        pass

    scope: Scope = {
        "type": "http", "method": "GET", "scheme": "http",
        "headers": [(b"cookie", f"ottla_session={secret}".encode())],
    }  # fmt: skip
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(Gate(stream, authenticator, look_every_s=0.01)(scope, silent, nowhere))
        await is_streaming.wait()
        await asyncio.sleep(0)
        assert said == []
        assert authenticator.identify(scope).session is not None
        authenticator.log_out(scope["state"]["session"])

    assert said == ["http.disconnect"]


async def test_a_stream_ends_with_the_rights_and_the_masks_that_it_began_with(folder: Path) -> None:
    path = folder / "console.toml"
    before = read_logins(path)
    user = before.users["root"]
    fewer = replace(before, users={"root": replace(user, grants=(Grant(Role.VIEWER, topics=("a*",)),))})
    for after in (fewer, replace(before, masks=(MaskRule(key=True),))):
        authenticator = Authenticator(path, before)
        secret = authenticator.admit(Person("root", "password", CHEAP), "127.0.0.1", None)
        said = list[str]()

        async def stream(
            scope: Scope, receive: Receive, send: Send, at: Authenticator = authenticator,
            now: Logins = after, said: list[str] = said,
        ) -> None:  # fmt: skip
            at.logins = now
            said.append((await receive())["type"])

        async def silent() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def nowhere(_: Message) -> None:
            pass

        scope: Scope = {
            "type": "http", "method": "GET", "scheme": "http",
            "headers": [(b"cookie", f"ottla_session={secret}".encode())],
        }  # fmt: skip
        async with asyncio.timeout(10):
            await Gate(stream, authenticator, look_every_s=0.01)(scope, silent, nowhere)

        assert said == ["http.disconnect"]


def test_commands_add_and_remove_people_and_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "console.toml")

    def run(*words: str, typed: str = "") -> str:
        done = CliRunner().invoke(console, [*words, "--logins", path], input=typed)
        assert done.exit_code in (0, 1, 2)
        assert not isinstance(done.exception, Exception) or isinstance(done.exception, SystemExit)
        return done.output

    assert "Added anna to" in run(
        "user", "add", "anna", "--role", "viewer", typed=f"{PASSWORD}\n{PASSWORD}\n"
    )
    assert "has a user 'anna'" in run("user", "add", "anna", "--role", "viewer")
    assert "from 8 to 1024 letters" in run("user", "add", "bob", "--role", "viewer", typed="short\nshort\n")
    assert "cannot be a name" in run("user", "add", "a b", "--role", "viewer")
    secret = run("token", "add", "prometheus", "--role", "viewer", "--topic", "orders*").strip()
    before = read_logins(Path(path)).users["anna"].password
    assert "Changed the password" in run("user", "password", "anna", typed="another one\nanother one\n")
    listed = run("user", "list")
    found = read_logins(Path(path))

    assert found.users["anna"].password != before
    assert found.tokens[0].sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert re.search(r"token +prometheus +viewer +\* +orders\*", listed)
    assert "Removed anna" in run("user", "remove", "anna")
    assert "has no user 'anna'" in run("user", "remove", "anna")
    assert "Removed prometheus" in run("token", "remove", "prometheus")
    assert read_logins(Path(path)) == Logins()
