"""TLS 1.3 beside Apache Kafka's: the broker's CPU for each MB in and out, and handshakes a second.

Run `python benchmarks/tls.py`; `--only transfer` or `--only handshakes` for a part, `--case` for some loads.

Every broker has the certificate of `--secure` (ECDSA, P-256) on one listener, and one of RSA 2048 on another.
The same C programs load all of them, with the same cipher suite, in interleaved rounds; the first round warms
up and is left out. A handshake counts once its client has the answer to a first request. The floor is OpenSSL
alone, between two memory buffers: records of 16 KiB, and handshakes without sockets.
"""

from __future__ import annotations

import argparse
import errno
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import broker_network
from broker_network import CASES, NATIVE, Case, compile_native
from contenders import Contender, kafka_is_here, quiet, show
from ottla.broker.server.secure_setup import prepare
from ottla.broker.testing import BrokerProcess, free_port
from peers.apache_kafka import ApacheKafka, Listener, listener_settings
from peers.certificates import Authority
from peers.kraft_kafka import KraftKafka

ECDSA, RSA = "ECDSA P-256", "RSA 2048"
_PROTOCOL_NAMES: Final = {ECDSA: "ENCRYPTED", RSA: "RSA"}
_SETTINGS: Final = {"num.partitions": "1", "log.retention.check.interval.ms": "86400000"}
_RECORD: Final = 16_384
_CONCURRENT: Final = 16
_TCP_ULP: Final = 31


@dataclass(frozen=True)
class Secured:
    """A running broker, and its ports with TLS by the kind of their certificate."""

    broker: Contender
    ports: Mapping[str, int]


@dataclass
class Figures:
    """The figures of one contender in one case, round after round."""

    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def text(self, digits: int) -> str:
        low, high = min(self.rounds), max(self.rounds)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


# ---- the contenders


def stores(folder: Path) -> dict[str, Path]:
    """Make the key stores; return them by the kind of their certificate."""
    files = prepare(folder, []).files
    certificate, key = Authority(folder / "rsa").sign("broker")
    both = folder / "rsa.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return {ECDSA: files.certificate, RSA: both}


def tls_settings(key_stores: Mapping[str, Path]) -> dict[str, str]:
    settings = {"ssl.enabled.protocols": "TLSv1.3"}
    for kind, path in key_stores.items():
        prefix = f"listener.name.{_PROTOCOL_NAMES[kind].lower()}.ssl.keystore"
        settings |= {f"{prefix}.type": "PEM", f"{prefix}.location": str(path)}
    return settings


@contextmanager
def ottla(
    folder: Path, listeners: dict[str, Listener], settings: Mapping[str, str], python: str | None = None
) -> Iterator[Contender]:
    both = listener_settings({"PLAINTEXT": Listener("PLAINTEXT", free_port()), **listeners})
    running = BrokerProcess(folder, {**settings, **both})
    running.python = python or running.python
    with running as broker:
        yield Contender("before" if python else "ottla", broker.bootstrap_servers, broker.pid, folder)


@contextmanager
def kafka_3(folder: Path, listeners: dict[str, Listener], settings: Mapping[str, str]) -> Iterator[Contender]:
    with ApacheKafka(folder, settings, listeners=listeners) as broker:
        yield Contender("kafka 3.9", broker.bootstrap_servers, broker.pid, folder)


@contextmanager
def kafka_4(folder: Path, listeners: dict[str, Listener], settings: Mapping[str, str]) -> Iterator[Contender]:
    with KraftKafka(folder, settings, heap="1g", listeners=listeners) as broker:
        yield Contender("kafka 4.4", broker.bootstrap_servers, broker.pid, folder)


STARTS: Final = {"ottla": ottla, "kafka-3.9": kafka_3, "kafka-4.4": kafka_4}


@contextmanager
def secured(
    start: Callable[..., AbstractContextManager[Contender]], folder: Path, key_stores: Mapping[str, Path]
) -> Iterator[Secured]:
    """Run a contender with a listener for each key store, beside PLAINTEXT."""
    ports = {kind: free_port() for kind in key_stores}
    listeners = {_PROTOCOL_NAMES[kind]: Listener("SSL", port) for kind, port in ports.items()}
    with start(folder, listeners, {**_SETTINGS, **tls_settings(key_stores)}) as broker:
        yield Secured(broker, ports)


def compile_tls(folder: Path) -> None:
    """Build the load generator with TLS, and the one of connections."""
    for name, output, flags in (("load", "load_tls", ["-DTLS"]), ("connects", "connects", [])):
        command: list[str | Path] = [
            "cc",
            "-O2",
            *flags,
            "-o",
            folder / output,
            NATIVE / f"{name}.c",
            "-lssl",
            "-lcrypto",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise SystemExit(f"{name}.c was not compiled (Debian: libssl-dev):\n{done.stderr}")


# ---- bytes in and out


def transfers(
    folder: Path, contenders: list[Secured], cases: list[Case], rounds: int, seconds: float
) -> None:
    rows = []
    for case in cases:
        figures = {there.broker.name: Figures() for there in contenders}
        with ExitStack() as stack:
            filled = {}
            if case.api == "fetch":
                for there in contenders:
                    filled[there.broker.name] = broker_network.prepare(folder, there.broker, case)
                    topic = filled[there.broker.name][0]
                    stack.callback(broker_network.delete, there.broker, topic)
            for number in range(rounds + 1):
                for there in contenders:
                    name = there.broker.name
                    cpu_ms = ms_per_mb(folder, there, case, filled.get(name), seconds)
                    if number:
                        figures[name].rounds.append(cpu_ms)
        rows.append((case.name, *(found.text(2) for found in figures.values()), ahead(figures)))
        print("  " + "  ".join(rows[-1]), flush=True)
    names = [there.broker.name for there in contenders]
    show(f"broker CPU ms per MB over TLS, median of {rounds} (least-most)", rows, ("", *names, "ahead by"))


def ms_per_mb(
    folder: Path, there: Secured, case: Case, filled: tuple[str, int] | None, seconds: float
) -> float:
    """Load one broker over TLS; return its CPU ms per MB of values."""
    topic, last = filled or broker_network.prepare(folder, there.broker, case)
    port, pid = there.ports[ECDSA], there.broker.pid
    broker_network.load(
        folder, port, topic, case, broker_network.WARM_UP_S, last, floor=False, program="load_tls"
    )
    quiet(there.broker, 3)
    us, _, _ = broker_network.measure(
        folder, pid, port, topic, case, seconds, last, floor=False, program="load_tls"
    )
    if filled is None:
        broker_network.delete(there.broker, topic)
    return us / 1e3 / (case.size / 1e6)


def ahead(figures: Mapping[str, Figures]) -> str:
    """Return by how much the first one's figure is smaller than the least of the others."""
    first, *others = (found.median for found in figures.values())
    return f"{min(others) / first:.2f}" if others else ""


# ---- handshakes


def handshakes(folder: Path, contenders: list[Secured], rounds: int, count: int) -> None:
    rows = []
    for mode, kind in (("plain", ""), ("full", ECDSA), ("resumed", ECDSA), ("full", RSA), ("resumed", RSA)):
        cpu = {there.broker.name: Figures() for there in contenders}
        rates = {there.broker.name: Figures() for there in contenders}
        shares = {there.broker.name: Figures() for there in contenders}
        for number in range(rounds + 1):
            for there in contenders:
                port = there.ports[kind] if kind else there.broker.port
                per_second, cpu_us, resumed = connected(folder, there.broker, port, mode, count)
                if number:
                    rates[there.broker.name].rounds.append(per_second)
                    cpu[there.broker.name].rounds.append(cpu_us)
                    shares[there.broker.name].rounds.append(resumed * 100)
        cells = []
        for name in cpu:
            share = f"{shares[name].median:.0f} %" if mode == "resumed" else ""
            cells += [rates[name].text(0), cpu[name].text(0), share]
        rows.append((f"{mode} {kind}".strip(), *cells, ahead(cpu)))
        print("  " + "  ".join(rows[-1]), flush=True)
    names = [there.broker.name for there in contenders]
    header = ("", *(text for name in names for text in (f"{name} /s", "CPU us", "resumed")), "CPU ahead by")
    show(f"connections with one request, {_CONCURRENT} clients at once, median of {rounds}", rows, header)


def connected(
    folder: Path, broker: Contender, port: int, mode: str, count: int
) -> tuple[float, float, float]:
    """Connect `count` times; return how often in a second, the broker's CPU µs, and the part resumed."""
    quiet(broker, 3)
    before = broker.cpu_seconds()
    command: list[str | Path] = [
        folder / "connects",
        "127.0.0.1",
        str(port),
        mode,
        str(_CONCURRENT),
        str(count),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{broker.name}, {mode}: {done.stderr.strip()}")
    connections, seconds, _, reused, *_ = map(float, done.stdout.split())
    cpu_us = (broker.cpu_seconds() - before) / connections * 1e6
    return connections / seconds, cpu_us, reused / connections


# ---- the floor


class Pair:
    """A client's and a server's TLS 1.3 with memory between them."""

    def __init__(
        self, server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None
    ) -> None:
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(self.to_client, self.to_server, session=session)
        self.server = server.wrap_bio(self.to_server, self.to_client, server_side=True)

    def shake(self) -> float:
        """Finish the handshake; return the server's CPU seconds."""
        used, ends = 0.0, {self.client: False, self.server: False}
        while not all(ends.values()):
            for end in ends:
                before = time.thread_time()
                ends[end] = ends[end] or _is_done(end.do_handshake)
                used += (time.thread_time() - before) if end is self.server else 0.0
        _is_done(lambda: self.client.read(1))  # its tickets
        return used


def _is_done(step: Callable[[], object]) -> bool:
    try:
        step()
    except ssl.SSLWantReadError:
        return False
    return True


def contexts(key_store: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(key_store)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return server, client


def floor(key_stores: Mapping[str, Path], count: int = 500) -> None:
    """Print OpenSSL's own cost."""
    rows = []
    for kind, path in key_stores.items():
        server, client = contexts(path)
        first = Pair(server, client, None)
        first.shake()
        full = [Pair(server, client, None).shake() for _ in range(count)]
        resumed = [Pair(server, client, first.client.session).shake() for _ in range(count)]
        rows.append((kind, *(f"{statistics.median(found) * 1e6:.0f}" for found in (full, resumed))))
    into, out = record_costs(first)
    cipher = first.client.cipher()
    show("OpenSSL's handshake, CPU us of the server", rows, ("", "full", "resumed"))
    print(f"\n  {cipher[0] if cipher else ''}: {into:.2f} CPU ms per MB in, {out:.2f} out, records of 16 KiB")
    print(f"  kernel TLS, setsockopt(TCP_ULP, 'tls'): {kernel_tls()}")


def record_costs(pair: Pair, records: int = 4_000) -> tuple[float, float]:
    """Return the CPU ms for a MB that is decrypted, and for one that is encrypted."""
    data, room = bytes(_RECORD), bytearray(_RECORD)
    into = out = 0.0
    for _ in range(records):
        pair.client.write(data)
        before = time.thread_time()
        pair.server.read(_RECORD, room)
        between = time.thread_time()
        pair.server.write(data)
        pair.to_client.read()
        into, out = into + between - before, out + time.thread_time() - between
    return into * 1e9 / (records * _RECORD), out * 1e9 / (records * _RECORD)


def kernel_tls() -> str:
    """Ask the kernel for its TLS on a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as plug,
    ):
        try:
            plug.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
    return "it has it"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--only", choices=("transfer", "handshakes", "floor"))
    parser.add_argument("--case", default="", help="only the loads whose name holds this")
    parser.add_argument("--contenders", nargs="+", choices=list(STARTS), default=list(STARTS))
    parser.add_argument("--before", help="Python of an environment with an earlier tree, as a contender")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds, seconds, count = (2, 1.0, 1_000) if options.quick else (options.rounds, 2.0, 3_000)
    names = [name for name in options.contenders if name == "ottla" or kafka_is_here()]
    with tempfile.TemporaryDirectory(prefix="ottla-tls-") as name, ExitStack() as stack:
        folder = Path(name)
        compile_native(folder)
        compile_tls(folder)
        key_stores = stores(folder / "certificates")
        floor(key_stores)
        if options.only == "floor":
            return 0
        starts: dict[str, Any] = {name: STARTS[name] for name in names}
        if options.before:
            starts["before"] = partial(ottla, python=options.before)
        contenders = [
            stack.enter_context(secured(start, folder / name, key_stores)) for name, start in starts.items()
        ]
        if options.only != "transfer":
            handshakes(folder, contenders, rounds, count)
        if options.only != "handshakes":
            cases = [case for case in CASES if options.case in case.name]
            transfers(folder, contenders, cases, rounds, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
