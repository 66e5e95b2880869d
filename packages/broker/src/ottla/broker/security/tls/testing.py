"""For tests: a certificate authority, what it signs, and records of hostile clients."""

from __future__ import annotations

import datetime
import hmac
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from ottla.broker.runtime.clock import SystemClock

DAY = datetime.timedelta(days=1)


def common_name(text: str) -> x509.Name:
    """Return a name with nothing but `CN`."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Certificate(NamedTuple):
    """A certificate with its key, signed by an authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def chain_pem(self) -> str:
        """The certificate as PEM."""
        return str(self.certificate.public_bytes(Encoding.PEM), "ascii")

    def key_pem(self, password: str | None = None) -> str:
        """Return the key as PEM, encrypted if there is a password."""
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return str(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), "ascii")

    @property
    def pem(self) -> str:
        """Both, as in a key store's file."""
        return self.chain_pem + self.key_pem()

    @property
    def der(self) -> bytes:
        """The certificate as it goes over the wire."""
        return bytes(self.certificate.public_bytes(Encoding.DER))

    def pkcs12(self, password: str) -> bytes:
        """Return both as a PKCS#12 store."""
        encryption = BestAvailableEncryption(password.encode())
        return bytes(
            pkcs12.serialize_key_and_certificates(b"broker", self.key, self.certificate, None, encryption)
        )

    def write(self, path: Path) -> str:
        """Write the key store's PEM file, and return its path."""
        path.write_text(self.pem)
        return str(path)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "authority") -> None:
        self.name = common_name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = (
            self._builder(self.name, self._key, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        """The authority's own certificate, as in a trust store's file."""
        return str(self.certificate.public_bytes(Encoding.PEM), "ascii")

    def write(self, path: Path) -> str:
        """Write the trust store's PEM file, and return its path."""
        path.write_text(self.pem)
        return str(path)

    def sign(
        self,
        subject: str | x509.Name,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        *,
        lasts: datetime.timedelta = DAY,
    ) -> Certificate:
        """Make a certificate for a name and its hosts; with a negative time one that is expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = subject if isinstance(subject, x509.Name) else common_name(subject)
        builder = self._builder(name, key, lasts)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), False
            )
        return Certificate(builder.sign(self._key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, lasts: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.fromtimestamp(SystemClock().now_ms() / 1000, datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 7 * DAY)
            .not_valid_after(now + lasts)
        )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


# ---- records that no library sends


class Records(NamedTuple):
    """The secrets by which a client writes the records behind its handshake by itself."""

    version: str
    secret: bytes
    """The secret of its traffic; of TLS 1.2 the master secret."""
    randoms: bytes
    """The server's and the client's, of TLS 1.2."""


def records_of(plug: socket.socket, context: ssl.SSLContext, folder: Path) -> Records:
    """Connect over a socket, and take the secrets of the connection, whose client says nothing more."""
    log = folder / "secrets"
    log.unlink(missing_ok=True)
    context.keylog_filename = str(log)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    received = b""
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            plug.sendall(outgoing.read())
            incoming.write(piece := plug.recv(65_536))
            received += piece
    plug.sendall(outgoing.read())
    label = "CLIENT_TRAFFIC_SECRET_0" if tls.version() == "TLSv1.3" else "CLIENT_RANDOM"
    _, random, secret = next(line for line in log.read_text().splitlines() if line.startswith(label)).split()
    return Records(str(tls.version()), bytes.fromhex(secret), received[11:43] + bytes.fromhex(random))


def key_updates(records: Records, count: int) -> bytes:
    """Return messages of TLS 1.3 (AES-256-GCM) that ask the server for new keys, one after the other."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    def expanded(secret: bytes, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\0"
        return bytes(HKDFExpand(hashes.SHA384(), size, info).derive(secret))

    secret, found = records.secret, []
    for _ in range(count):
        key, nonce = expanded(secret, "key", 32), expanded(secret, "iv", 12)
        message = b"\x18\x00\x00\x01\x01" + b"\x16"  # the last is the type of the content
        head = b"\x17\x03\x03" + struct.pack(">H", len(message) + 16)
        found.append(head + AESGCM(key).encrypt(nonce, message, head))
        secret = expanded(secret, "traffic upd", 48)
    return b"".join(found)


def renegotiations(records: Records, hello: bytes, count: int) -> bytes:
    """Return records of TLS 1.2 (AES-256-GCM-SHA384), each with a ClientHello that renegotiates."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    seed, block = b"key expansion" + records.randoms, b""
    digest = seed
    while len(block) < 72:
        digest = hmac.digest(records.secret, digest, "sha384")
        block += hmac.digest(records.secret, digest + seed, "sha384")
    key, salt = block[:32], block[64:68]
    found = []
    for number in range(1, count + 1):  # the first record was the end of the handshake
        explicit = struct.pack(">Q", number)
        head = explicit + b"\x16\x03\x03" + struct.pack(">H", len(hello))
        sealed = explicit + AESGCM(key).encrypt(salt + explicit, hello, head)
        found.append(b"\x16\x03\x03" + struct.pack(">H", len(sealed)) + sealed)
    return b"".join(found)


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the first record of a client."""
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
