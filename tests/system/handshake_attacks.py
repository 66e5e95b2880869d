"""Attacks by handshakes: random records, storms of keys and of resumptions, half-open ones, odd names."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID
from secured_broker import (
    ADMIN,
    Framed,
    SecuredBroker,
    assert_closed,
    assert_without_rights,
    framed,
    handshake_request,
    log_in,
    opened,
    secured_attack,
)

from ottla.broker.security.tls.testing import (
    Authority,
    client_hello,
    key_updates,
    records_of,
    renegotiations,
)
from ottla.broker.testing import BrokerProcess

BOUND_S = 60.0
TLS_1_2 = ssl.TLSVersion.TLSv1_2


@secured_attack("TLS records of random bytes")
def random_records(broker: SecuredBroker) -> None:
    chance = random.Random(3)
    hello = client_hello(broker.trusting())
    for number in range(3_000):
        data = bytearray(hello if number % 2 else chance.randbytes(chance.randrange(1, 3_000)))
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if number % 3:
            data[:3] = b"\x16\x03\x01"
        with opened(broker, ("SASL_SSL", "SSL")[number % 2]) as plug:
            plug.sendall(data)
            is_cut = number % 5 == 0
            if is_cut:
                plug.shutdown(socket.SHUT_WR)
                assert_closed(plug)


@secured_attack("20,000 updates of keys on each of 20 connections, unread")
def updated_keys(broker: SecuredBroker) -> None:
    for _ in range(20):
        with opened(broker, "SSL") as plug:
            updates = key_updates(records_of(plug, broker.trusting(), broker.files), 200) * 100
            with contextlib.suppress(ConnectionError):
                plug.sendall(updates)
            assert_closed(plug)


@secured_attack("500 renegotiations on each of 20 connections")
def renegotiated(broker: SecuredBroker) -> None:
    hello = client_hello(broker.trusting())[5:]
    for _ in range(20):
        context = broker.trusting(version=TLS_1_2)
        context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
        with opened(broker, "SSL") as plug:
            records = renegotiations(records_of(plug, context, broker.files), hello, 500)
            with contextlib.suppress(ConnectionError):
                plug.sendall(records)
            assert_closed(plug)


@secured_attack("5,000 resumed handshakes")
def resumed(broker: SecuredBroker) -> None:
    for version in (TLS_1_2, ssl.TLSVersion.TLSv1_3):
        context, session, again = broker.trusting(version=version), None, 0
        for _ in range(2_500):
            with (
                opened(broker, "SASL_SSL") as plug,
                context.wrap_socket(plug, server_hostname="127.0.0.1", session=session) as link,
            ):
                again += bool(link.session_reused)
                if session is None or version != TLS_1_2:
                    Framed(link).versions()  # tickets of TLS 1.3 come with the first answer
                    session = link.session
        assert again > 2_000, f"{again} of 2,500 handshakes were resumed"


@secured_attack("20,000 handshakes that stop half way, of one address")
def half_handshakes(broker: SecuredBroker) -> None:
    hello = client_hello(broker.trusting())
    parts = (b"", hello[:1], hello[:100], hello)
    flood(broker, "SASL_SSL", lambda number: parts[number % 4], ["127.6.6.6"])


@secured_attack("20,000 handshakes that stop half way, of 200 addresses")
def half_handshakes_of_many(broker: SecuredBroker) -> None:
    hello = client_hello(broker.trusting())
    flood(broker, "SASL_SSL", lambda _: hello, [f"127.6.7.{number}" for number in range(1, 201)])


@secured_attack("20,000 half-open logins of one address")
def half_logins(broker: SecuredBroker) -> None:
    handshake = framed(handshake_request("PLAIN"))
    parts = (b"", b"\0\0", handshake[:9], handshake)
    flood(broker, "SASL_PLAINTEXT", lambda number: parts[number % 4], ["127.6.6.6"])


@secured_attack("20,000 half-open logins of 40 addresses")
def half_logins_of_many(broker: SecuredBroker) -> None:
    handshake = framed(handshake_request("SCRAM-SHA-512"))
    flood(broker, "SASL_PLAINTEXT", lambda _: handshake, [f"127.6.7.{number}" for number in range(1, 41)])


def flood(broker: SecuredBroker, listener: str, part: Callable[[int], bytes], sources: list[str]) -> None:
    """Open 20,000 connections that stop; a login from another address gets in, and they end in time."""
    links: list[socket.socket] = []
    slowest_s, began_s, idle, cpu_s = 0.0, time.monotonic(), open_descriptors(broker), cpu_of(broker)
    for number in range(20_000 - 500):  # as many descriptors as a process may have here
        link = socket.socket()
        link.bind((sources[number % len(sources)], 0))
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", broker.ports[listener]))
        links.append(link)
        if number % 50 == 49:
            for begun in range(number - 49, number + 1):
                _send_soon(links[begun], part(begun))
        if number % 4_000 == 3_999:
            login_s = time.monotonic()
            with broker.wire(listener, source="127.0.0.1") as wire:
                log_in(wire)
            slowest_s = max(slowest_s, time.monotonic() - login_s)
    ended_s = time.monotonic()
    print(
        f"    opened in {ended_s - began_s:.1f} s, for {cpu_of(broker) - cpu_s:.1f} s of the processor; "
        f"the slowest honest login took {slowest_s:.2f} s"
    )
    while open_descriptors(broker) > idle + 20:
        assert time.monotonic() < ended_s + BOUND_S, f"{open_descriptors(broker) - idle} stay open"
        time.sleep(0.2)
    print(f"    all were closed {time.monotonic() - ended_s:.1f} s after the last")
    for link in links:
        link.close()


def cpu_of(broker: BrokerProcess) -> float:
    """Return the seconds of the processor that a broker has taken."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _send_soon(link: socket.socket, data: bytes) -> None:
    ends_s = time.monotonic() + 2
    while data and time.monotonic() < ends_s:
        try:
            link.send(data)
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return
        else:
            return


def open_descriptors(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@secured_attack("plaintext to TLS and TLS to plaintext, 500 times each")
def wrong_protocols(broker: SecuredBroker) -> None:
    hello = client_hello(broker.trusting())
    for _ in range(500):
        for listener in ("SASL_SSL", "SSL"):
            with opened(broker, listener) as plug:
                plug.sendall(framed(struct.pack(">hhih", 18, 0, 1, -1)))
                assert_closed(plug)
        with opened(broker, "SASL_PLAINTEXT") as plug:
            plug.sendall(hello)
            assert_closed(plug)
    text = broker.log_file.read_text(errors="replace")
    for words in ("does not speak TLS: its security.protocol has to be", "the client speaks TLS, which"):
        assert words in text, f"no line says {words!r}"


@secured_attack("certificates whose names take others exponential time")
def slow_names(broker: SecuredBroker) -> None:
    units = ["a" * 60 + "!" + str(number) for number in range(20)]
    attributes = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    certificate = broker.authority.sign(x509.Name(attributes))
    context = broker.trusting()
    context.load_cert_chain(certificate.write(broker.files / "slow.pem"))
    began_s = time.monotonic()
    for _ in range(100):
        with broker.wire("SSL", tls=context) as wire:
            assert wire.serves()
    assert time.monotonic() - began_s < BOUND_S
    with broker.wire("SSL", tls=context) as wire:
        assert_without_rights(wire)


@secured_attack("certificates of others, and with names that forge lines")
def foreign_certificates(broker: SecuredBroker) -> None:
    foreign = Authority().sign(ADMIN)
    odd = [
        f"User:{ADMIN}",
        f"{ADMIN}\n2026-01-01 WARNING forged: all is well",
        "\u202e" + ADMIN,
        f"{ADMIN},CN=x",
    ]
    for certificate in (foreign, *map(broker.authority.sign, odd)):
        context = broker.trusting()
        context.load_cert_chain(certificate.write(broker.files / "other.pem"))
        with contextlib.suppress(OSError, EOFError), broker.wire("SSL", tls=context) as wire:
            assert_without_rights(wire)
            assert certificate is not foreign, "a certificate of another authority gets in"
    assert "\n2026-01-01 WARNING forged" not in broker.log_file.read_text(errors="replace")
