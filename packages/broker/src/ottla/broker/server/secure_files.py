"""The directory `secure` of a broker: its files, its local authority, and certificates that stay valid."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.client.environment import now_ms

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

_log = logging.getLogger(__name__)

_AUTHORITY_DAYS: Final = 3_650
_CERTIFICATE_DAYS: Final = 820
"""Less than the 825 beyond which scanners and browsers refuse a certificate."""
_RENEW_DAYS: Final = 30
"""A new certificate is made, at a start or while the broker runs, if the present one ends sooner."""
_LOOK_EVERY_S: Final = 3_600.0
_DAY_MS: Final = 24 * 3_600 * 1_000


class SecureFiles(NamedTuple):
    """The files of the directory `secure`."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, for clients to trust."""
        return self.directory / "ca.pem"

    @property
    def authority_key(self) -> Path:
        """The authority's key."""
        return self.directory / "ca.key"

    @property
    def certificate(self) -> Path:
        """The broker's key and certificate."""
        return self.directory / "broker.pem"

    @property
    def facts(self) -> Path:
        """The hosts and the end of the broker's certificate, as JSON."""
        return self.directory / "broker.json"

    @property
    def java_properties(self) -> Path:
        """The settings by which Java's clients and tools log in as the administrator."""
        return self.directory / "java.properties"

    @property
    def librdkafka_properties(self) -> Path:
        """The same under librdkafka's names."""
        return self.directory / "librdkafka.properties"

    @property
    def token_key(self) -> Path:
        """The secret by which the passwords of delegation tokens are made."""
        return self.directory / "delegation-tokens.key"

    def password(self, user: str) -> Path:
        """The password of a user."""
        return self.directory / f"{user}.password"


def read_secret(path: Path) -> str:
    """Return the first line of a file."""
    return path.read_text(encoding="utf-8").strip()


def write(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner only. Raises OSError."""
    from ottla.client.profiles import write_private  # 10 ms of imports, which later starts do without

    write_private(path, text)


def own_hosts() -> set[str]:
    return {"localhost", "127.0.0.1", "::1", socket.gethostname()}


class CertificateFacts(NamedTuple):
    """Hosts and end of the broker's certificate: parsing it would cost a start 0.1 s."""

    hosts: list[str]
    ends_ms: int
    is_last: bool = False
    """Whether it ends with its authority."""

    def lasts(self, at_ms: int) -> bool:
        """Whether it needs no renewal yet."""
        return self.ends_ms - at_ms > _RENEW_DAYS * _DAY_MS


def _facts(files: SecureFiles) -> CertificateFacts:
    """Read the facts; damaged ones are of a certificate that has ended."""
    try:
        found = json.loads(files.facts.read_text(encoding="utf-8"))
        return CertificateFacts(list(found["hosts"]), int(found["ends_ms"]), bool(found.get("is_last")))
    except (OSError, ValueError, KeyError, TypeError):
        return CertificateFacts([], 0)


def is_certificate_good(files: SecureFiles, hosts: Iterable[str], at_ms: int) -> bool:
    """Return whether the certificate is for the hosts, and lasts as long as one can."""
    facts = _facts(files)
    lasts = facts.lasts(at_ms) or (facts.is_last and facts.ends_ms > at_ms)
    return files.certificate.exists() and lasts and set(hosts) <= set(facts.hosts)


# ---- certificates


def make_authority(files: SecureFiles) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    key = _new_key()
    certificate = _signed(
        "Ottla local authority", key, key, None, now_ms(), _AUTHORITY_DAYS,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(signs_certificates=True), True),
    )  # fmt: skip
    write(files.authority, certificate.public_bytes(Encoding.PEM).decode())
    files.authority.chmod(0o644)
    write(files.authority_key, _pem(key))  # the last: it shows that the others are there


def make_certificate(files: SecureFiles, hosts: list[str], at_ms: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    authority_key: Any = load_pem_private_key(files.authority_key.read_bytes(), None)
    key = _new_key()
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = _signed(
        "Ottla broker", key, authority_key, authority, at_ms, _CERTIFICATE_DAYS,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage(purposes), False),
        (x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False),
    )  # fmt: skip
    write(files.certificate, _pem(key) + certificate.public_bytes(Encoding.PEM).decode())
    ends = certificate.not_valid_after_utc
    is_last = ends == authority.not_valid_after_utc
    facts = CertificateFacts(hosts, int(ends.timestamp() * 1_000), is_last)
    write(files.facts, json.dumps(facts._asdict()))


def _signed(
    name: str,
    key: EllipticCurvePrivateKey,
    signing_key: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    at_ms: int,
    days: int,
    *extensions: tuple[Any, bool],
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.fromtimestamp(at_ms / 1_000, UTC)
    ends = now + timedelta(days=days)
    builder = (
        x509.CertificateBuilder(subject if issuer is None else issuer.subject, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of clients may be late
        .not_valid_after(ends if issuer is None else min(ends, issuer.not_valid_after_utc))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), False)
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return builder.sign(signing_key, SHA256())


def _usage(*, signs_certificates: bool) -> Any:
    from cryptography.x509 import KeyUsage

    return KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return generate_private_key(SECP256R1())


def _pem(key: EllipticCurvePrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    written: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return written.decode()


async def keep_valid(
    files: SecureFiles,
    now_ms: Callable[[], int] = now_ms,
    run: Callable[..., Awaitable[bool]] = asyncio.to_thread,
) -> None:
    """Renew the certificate before it ends, until cancelled; listeners take it when its file changes.

    `run` calls a function on a thread. Brokers of a cluster may do this at the same time: each file is
    replaced whole, and key and certificate are in one.
    """
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        try:
            await run(renew, files, now_ms())
        except (OSError, ValueError) as error:
            facts = {"directory": str(files.directory), "reason": str(error)}
            _log.error("certificate not renewed", extra=facts)


def renew(files: SecureFiles, at_ms: int) -> bool:
    """Make a new certificate for the hosts of the present one, if that ends soon; return whether it did.

    Raises OSError, and ValueError for a key of the authority that cannot be read.
    """
    facts = _facts(files)
    if is_certificate_good(files, facts.hosts, at_ms):
        if facts.is_last and not facts.lasts(at_ms):
            ends = datetime.fromtimestamp(facts.ends_ms / 1_000, UTC).isoformat()
            reason = f"no certificate can outlast it: move {files.directory} away and start with --secure"
            _log.error("local authority ends", extra={"ends": ends, "reason": reason})
        return False
    make_certificate(files, facts.hosts or sorted(own_hosts()), at_ms)
    return True
