"""Memory of an idle connection: plain, with TLS, and logged in, beside asyncio's own TLS and OpenSSL's floor.

Run `python benchmarks/idle_connections.py`. Each connection has sent one request and got its answer. The
figure is the growth of the server's process, divided by the connections; a first hundred of them, which are
not counted, make what all share. asyncio's is a server of `asyncio.start_server` that echoes. The floor is
OpenSSL between two memory buffers, without a socket: they keep the size of the largest record so far.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection, socket
from typing import Final

from contenders import show
from ottla.broker.security.sasl.testing import Wire
from ottla.broker.server.secure_setup import prepare
from ottla.broker.testing import BrokerProcess, free_port
from ottla.client.authentication import Scram
from ottla.protocol.api import RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from ottla.protocol.schema import Message

_FIRST: Final = 100
_SMALL, _LARGE = 100, 16_384
_GOAL_KIB: Final = 40
USER, PASSWORD, MECHANISM = "anna", "a secret", "SCRAM-SHA-512"
Connect = Callable[[], socket]


def resident_kib(pid: int | str) -> int:
    """Resident memory of a process that holds no file in memory of its own."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError("no RssAnon in /proc")


def settled_kib(pid: int) -> int:
    """Return the memory of a process once it has stopped growing."""
    before = -1
    while (now := resident_kib(pid)) != before:
        before = now
        time.sleep(0.5)
    return now


def per_connection(pid: int, connect: Connect, count: int, stack: ExitStack) -> float:
    """Open connections, and return how many KiB of the server's memory each takes.

    They stay open until the end of `stack`, for later ones would use the memory that these leave.
    """
    for _ in range(_FIRST):
        stack.enter_context(connect())
    before = settled_kib(pid)
    for _ in range(count):
        stack.enter_context(connect())
    return (settled_kib(pid) - before) / count


# ---- clients


def ask(plug: socket, request: Message, version: int) -> bytes:
    """Send a request; return its answer without the header."""
    frame = encode_request(RequestHeader(request.API_KEY, version, 7, "idle"), request)
    plug.sendall(len(frame).to_bytes(4, "big") + frame)
    answer = receive(plug, int.from_bytes(receive(plug, 4), "big"))
    flexible = request.FLEXIBLE_FROM is not None and version >= request.FLEXIBLE_FROM
    return answer[5 if flexible else 4 :]


def receive(plug: socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += (part := plug.recv(size - len(found)))
        if not part:
            raise EOFError
    return found


def encrypted(port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context.wrap_socket(create_connection(("127.0.0.1", port), 30))


def asked(plug: socket | None) -> socket:
    """Make a first request."""
    assert plug is not None, "the login was refused"
    ask(plug, ApiVersionsRequest(), 0)
    return plug


def logged_in(port: int, password: str = PASSWORD) -> ssl.SSLSocket | None:
    """Connect with a login; None if it is refused."""
    plug, client = encrypted(port), Scram(MECHANISM, USER, password, "nonce")
    ask(plug, SaslHandshakeRequest(mechanism=MECHANISM), 1)
    token: bytes | None = client.first()
    while token is not None:
        answer = SaslAuthenticateResponse.decode(ask(plug, SaslAuthenticateRequest(auth_bytes=token), 2), 2)
        if answer.error_code:
            plug.close()
            return None
        token = client.answer(bytes(answer.auth_bytes))
    return plug


def asked_much(plug: socket) -> socket:
    """Make a first request that is as long as a record."""
    header = encode_request(RequestHeader(HeartbeatRequest.API_KEY, 0, 7, "idle"), HeartbeatRequest())
    frame = header + bytes(_LARGE - 4 - len(header))
    plug.sendall(len(frame).to_bytes(4, "big") + frame)
    receive(plug, int.from_bytes(receive(plug, 4), "big"))
    return plug


def echoed(port: int) -> socket:
    plug = encrypted(port)
    plug.sendall(b"x" * 100)
    receive(plug, 100)
    return plug


# ---- servers


@contextmanager
def broker(folder: Path, key_store: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """Run a broker with a plain listener, one with TLS, and one with TLS and logins."""
    ports = {name: free_port() for name in ("PLAINTEXT", "SSL", "SASL_SSL")}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key_store),
        "sasl.enabled.mechanisms": MECHANISM,
    }
    with BrokerProcess(folder, settings) as running:
        with Wire(running.port) as wire:
            wire.set_password(USER, PASSWORD)
        yield running.pid, ports


@contextmanager
def echoing(key_store: Path) -> Iterator[tuple[int, int]]:
    """Run a server of asyncio's streams with its own TLS."""
    command = [sys.executable, __file__, "--echo", str(key_store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.terminate()


async def echo(key_store: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(key_store)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# ---- the floor


def floor(key_store: Path, count: int, *, record_bytes: int) -> float:
    """Return the KiB that OpenSSL takes for the server's end of a connection, in a process of its own."""
    command = [sys.executable, __file__, "--floor", str(key_store), str(count), str(record_bytes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)


def own_kib(key_store: str, count: int, record_bytes: int) -> float:
    from tls import Pair, contexts

    server, client = contexts(Path(key_store))
    kept = []

    def open_some(number: int) -> None:
        for _ in range(number):
            pair = Pair(server, client, None)
            pair.shake()
            pair.client.write(bytes(record_bytes))
            pair.server.read(record_bytes)
            pair.server.write(bytes(record_bytes))
            pair.to_client.read()
            kept.append((pair.server, pair.to_server, pair.to_client))

    open_some(_FIRST)
    before = resident_kib("self")
    open_some(count)
    return (resident_kib("self") - before) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="a fifth of the connections")
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--floor", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo:
        asyncio.run(echo(options.echo))
    if options.floor:
        store, count, record_bytes = options.floor
        print(own_kib(store, int(count), int(record_bytes)))
        return 0
    return measure(options.connections // (5 if options.quick else 1))


def measure(count: int) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ottla-idle-") as name, ExitStack() as stack:
        folder = Path(name)
        key_store = prepare(folder, []).files.certificate
        for size in (_SMALL, _LARGE):
            found[f"OpenSSL alone, records of {size:,} B"] = floor(key_store, count, record_bytes=size)
        pid, port = stack.enter_context(echoing(key_store))
        found["asyncio's TLS"] = per_connection(pid, lambda: echoed(port), count, stack)
        pid, ports = stack.enter_context(broker(folder / "broker", key_store))
        plain, tls, login = ports.values()
        for what, connect in (
            ("plain", lambda: asked(create_connection(("127.0.0.1", plain)))),
            ("TLS", lambda: asked(encrypted(tls))),
            ("TLS and a login", lambda: asked(logged_in(login))),
            (f"TLS, after a request of {_LARGE:,} B", lambda: asked_much(encrypted(tls))),
        ):
            found[f"ottla, {what}"] = per_connection(pid, connect, count, stack)
    rows = [(what, f"{kib:.1f}") for what, kib in found.items()]
    show(f"{count:,} idle connections, KiB for each", rows, ("", "KiB"))
    print(f"\n  the goal is less than {_GOAL_KIB} KiB with TLS and a login")
    return 1 if found["ottla, TLS and a login"] >= _GOAL_KIB else 0


if __name__ == "__main__":
    sys.exit(main())
