"""For tests: a certificate authority, and what it signs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
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
