"""Logins a second by each mechanism, beside Apache Kafka, and what a storm of them holds up.

Run `python benchmarks/logins.py`; `--contenders ottla` leaves Apache Kafka out. 500 clients log in at once,
again and again, over SASL_PLAINTEXT, so that nothing but the login is measured. They hash their password once
for each salt. A process of its own asks for API versions every 20 ms meanwhile; its slowest answer is how
long the storm holds up others, the load of the machine included. The longest stall is what Ottla's metrics
say of its event loop; the longest turn is the same in CPU time, of a broker in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import hashlib
import hmac
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

from contenders import Contender, kafka_is_here, quiet, show
from groups_together import loop_stall_ms
from ottla.broker.security.sasl.testing import Wire
from ottla.broker.testing import BrokerProcess, BrokerThread, free_port
from ottla.protocol.api import RequestHeader, encode_request
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from ottla.protocol.schema import Message
from peers.apache_kafka import ApacheKafka, Listener, listener_settings
from peers.kraft_kafka import KraftKafka

PASSWORD: Final = "a secret"
_MODULES: Final = "org.apache.kafka.common.security"
_LISTENER, _PROTOCOL = "LOGIN", "SASL_PLAINTEXT"
_OTTLA: Final = {"max.connections.before.login.per.ip": "1000"}
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CASES: Final = (
    ("PLAIN", "PLAIN", 0),
    ("SCRAM-SHA-256, 4,096 iterations", "SCRAM-SHA-256", 4_096),
    ("SCRAM-SHA-512, 4,096 iterations", "SCRAM-SHA-512", 4_096),
    ("SCRAM-SHA-512, 8,192 iterations", "SCRAM-SHA-512", 8_192),
)
_BOUND_S: Final = 120.0


def user_of(iterations: int) -> str:
    return f"user-{iterations}"


# ---- a client's login


@lru_cache(maxsize=100)
def _salted(algorithm: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(algorithm, PASSWORD.encode(), salt, iterations)


class Client:
    """One connection that logs in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: Message, version: int) -> bytes:
        frame = encode_request(RequestHeader(request.API_KEY, version, 7, "storm"), request)
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def log_in(self, mechanism: str, user: str) -> None:
        await self.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
        if mechanism == "PLAIN":
            await self._token(f"\0{user}\0{PASSWORD}".encode())
            return
        first = f"n={user},r=nonce"
        challenge = (await self._token(f"n,,{first}".encode())).decode()
        await self._token(proof(_HASHES[mechanism], first, challenge))

    async def _token(self, token: bytes) -> bytes:
        answer = await self.ask(SaslAuthenticateRequest(auth_bytes=token), 1)
        decoded = SaslAuthenticateResponse.decode(answer[4:], 1)
        if decoded.error_code:
            raise RuntimeError(f"the login was refused: {decoded.error_message}")
        return bytes(decoded.auth_bytes)


def proof(algorithm: str, first: str, challenge: str) -> bytes:
    """Return the final message of a SCRAM client (RFC 5802)."""
    fields = dict(part.partition("=")[::2] for part in challenge.split(","))
    salted = _salted(algorithm, base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", algorithm)
    unproved = f"c=biws,r={fields['r']}"
    stored = hashlib.new(algorithm, key).digest()
    signature = hmac.digest(stored, f"{first},{challenge},{unproved}".encode(), algorithm)
    proved = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proved).decode()}".encode()


async def storm(port: int, mechanism: str, user: str, at_once: int, count: int) -> float:
    """Log in `count` times, `at_once` clients at a time; return the seconds."""
    left = iter(range(count))

    async def one_after_another() -> None:
        for _ in left:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await Client(reader, writer).log_in(mechanism, user)
            writer.close()

    begun = time.perf_counter()
    async with asyncio.timeout(_BOUND_S), asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(one_after_another())
    return time.perf_counter() - begun


# ---- the contenders


def sasl_settings() -> dict[str, str]:
    prefix = f"listener.name.{_LISTENER.lower()}"
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    return {
        f"{prefix}.sasl.enabled.mechanisms": ",".join(("PLAIN", *_HASHES)),
        f"{prefix}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required "
        f'user_{user_of(0)}="{PASSWORD}";',
        **{f"{prefix}.{name.lower()}.sasl.jaas.config": scram for name in _HASHES},
    }


@contextmanager
def contender(name: str, folder: Path) -> Iterator[tuple[Contender, int, Callable[[], float] | None]]:
    """Run a broker; yield it, the port for logins, and what reads its longest stall."""
    listeners = {_LISTENER: Listener(_PROTOCOL, free_port())}
    port, settings = listeners[_LISTENER].port, sasl_settings()
    if name == "ottla":
        metrics_port = free_port()
        both = listener_settings({"PLAINTEXT": Listener("PLAINTEXT", free_port()), **listeners})
        own = {"metrics.port": str(metrics_port), **_OTTLA}
        with BrokerProcess(folder, {**settings, **both, **own}) as broker:
            yield (
                Contender(name, broker.bootstrap_servers, broker.pid, folder),
                port,
                lambda: loop_stall_ms(metrics_port),
            )
        return
    kafka = ApacheKafka if name == "kafka-3.9" else KraftKafka
    with kafka(folder, settings, heap="1g", listeners=listeners) as apache:
        yield Contender(name, apache.bootstrap_servers, apache.pid, folder), port, None


def give_passwords(port: int) -> None:
    for iterations in sorted({iterations for _, _, iterations in _CASES if iterations}):
        with Wire(port) as wire:
            wire.set_password(user_of(iterations), PASSWORD, iterations)


@contextmanager
def probing(port: int, into: list[float]) -> Iterator[None]:
    """Note the slowest answer in milliseconds to a client that asks all the time."""
    script = Path(__file__).with_name("groups_together.py")
    command = [sys.executable, str(script), "--probe", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        try:
            yield
        finally:
            said, _ = probe.communicate("", timeout=30)
    into.append(float(said))


def measure(
    contenders: Mapping[str, tuple[Contender, int]], rounds: int, at_once: int, count: int
) -> list[tuple[str, ...]]:
    rows = []
    for what, mechanism, iterations in _CASES:
        rates, cpu, slowest = ({name: [] for name in contenders} for _ in range(3))  # type: ignore[var-annotated]
        for number in range(rounds + 1):
            for name, (broker, port) in contenders.items():
                quiet(broker, 3)
                before, answers = broker.cpu_seconds(), list[float]()
                with probing(broker.port, answers):
                    took_s = asyncio.run(storm(port, mechanism, user_of(iterations), at_once, count))
                if number:  # the first warms compilers up
                    rates[name].append(count / took_s)
                    cpu[name].append((broker.cpu_seconds() - before) / count * 1e6)
                    slowest[name].append(answers[0])
        cells = []
        for name in contenders:
            cells += [spread(rates[name]), spread(cpu[name]), f"{statistics.median(slowest[name]):.0f}"]
        rows.append((what, *cells))
        print("  " + "  ".join(rows[-1]), flush=True)
    return rows


class Turns:
    """The longest turn of a running loop by the CPU time of its thread: other programs do not count."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before_s = time.thread_time()
        self.longest_s = 0.0

    def look(self) -> None:
        """Look at each turn from now on."""
        now_s = time.thread_time()
        self.longest_s, self._before_s = max(self.longest_s, now_s - self._before_s), now_s
        self._loop.call_soon(self.look)


def longest_turns(folder: Path, at_once: int, count: int) -> list[tuple[str, str]]:
    """Return how long a storm of each mechanism holds a turn of Ottla's event loop, at most."""
    listeners = {"PLAINTEXT": Listener("PLAINTEXT", free_port()), _LISTENER: Listener(_PROTOCOL, free_port())}
    settings = {**sasl_settings(), **listener_settings(listeners), **_OTTLA}
    rows = []
    with BrokerThread(folder, settings) as broker:
        give_passwords(listeners["PLAINTEXT"].port)

        async def watched() -> Turns:
            turns = Turns()
            turns.look()
            return turns

        turns = broker.call(watched())
        gc.disable()  # it looks at the clients' objects, too; a broker's process has a policy of its own
        for what, mechanism, iterations in _CASES:
            for number in range(2):  # the first time modules are imported
                if number:
                    turns.longest_s = 0.0
                asyncio.run(storm(listeners[_LISTENER].port, mechanism, user_of(iterations), at_once, count))
            rows.append((what, f"{turns.longest_s * 1000:.1f}"))
    return rows


def spread(figures: list[float]) -> str:
    return f"{statistics.median(figures):,.0f} ({min(figures):,.0f}-{max(figures):,.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=500, help="at once")
    parser.add_argument("--logins", type=int, default=2_000, help="of each round")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--only-turns", action="store_true", help="only the longest turn of the event loop")
    choices = ["ottla", "kafka-3.9", "kafka-4.4"]
    parser.add_argument("--contenders", nargs="+", choices=choices, default=choices)
    options = parser.parse_args()
    names = [name for name in options.contenders if name == "ottla" or kafka_is_here()]
    with tempfile.TemporaryDirectory(prefix="ottla-logins-") as folder, ExitStack() as stack:
        if "ottla" in names:
            turns = longest_turns(Path(folder, "turns"), options.clients, options.logins)
            show("longest turn of Ottla's event loop, CPU ms", turns, ("", "ms"))
            if options.only_turns:
                return 0
        running, stalls = {}, {}
        for name in names:
            broker, port, stall_ms = stack.enter_context(contender(name, Path(folder, name)))
            give_passwords(broker.port)
            running[name] = broker, port
            if stall_ms is not None:
                stalls[name] = stall_ms
        rows = measure(running, 2 if options.quick else options.rounds, options.clients, options.logins)
        header = ("", *(text for name in names for text in (f"{name} /s", "CPU us", "slowest ms")))
        show(f"logins, {options.clients} clients at once: median (least-most)", rows, header)
        for name, stall_ms in stalls.items():
            print(f"\n  {name}: longest stall of the event loop {stall_ms():.1f} ms")
        print(f"  load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
