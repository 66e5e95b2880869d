"""Key stores and trust stores: read from PEM files, PEM text of the configuration, and PKCS#12 files.

Everything becomes PEM in memory, which is what Python's `ssl` takes. Java's own format is not read: its
protection of keys is Sun's invention of 1998, and Java itself has advised against it since version 9.
"""

from __future__ import annotations

import base64
import hashlib
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.client.config_definition import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

    from ottla.broker.config import BrokerConfig

MOST_STORE_BYTES: Final = 16 << 20

_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----((?:(?!-----).)*)-----END \1-----", re.DOTALL)
"""A body has no five dashes, so that a store that is none is refused in time linear in its size."""
_CERTIFICATES: Final = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")


class KeyStore(NamedTuple):
    """A certificate with its chain and its private key."""

    source: str
    """The key, with its value where that is a path, for messages."""
    chain: str
    """PEM; the broker's own certificate is first."""
    private_key: str
    """PEM, perhaps encrypted."""
    password: str | None

    def __repr__(self) -> str:
        return f"KeyStore({self.source})"

    @property
    def certificate(self) -> bytes:
        """The broker's own certificate, DER-encoded."""
        return _decoded(_blocks(self.chain)[0][1])

    @property
    def fingerprint(self) -> str:
        """A short name of the certificate, for logs: the beginning of its SHA-256."""
        return hashlib.sha256(self.certificate).hexdigest()[:16]


class TrustStore(NamedTuple):
    """The certificates of trusted authorities."""

    source: str
    certificates: str
    """PEM."""


def read_key_store(config: BrokerConfig) -> KeyStore | None:
    """Read the key store of a listener's settings; None where there is none. Raises ConfigError."""
    chain, key = config.ssl_keystore_certificate_chain, config.ssl_keystore_key
    if chain is not None or key is not None:
        return _from_text(config, chain, key)
    path = config.ssl_keystore_location
    if path is None:
        if config.ssl_keystore_password is not None:
            raise ConfigError("ssl.keystore.location", "is missing, but ssl.keystore.password is set")
        return None
    data = _read("ssl.keystore.location", path)
    if _is_pkcs12("ssl.keystore", path, config.ssl_keystore_type, data):
        return _from_pkcs12(path, data, config.ssl_keystore_password)
    _refuse_password_of_pem("ssl.keystore.password", config.ssl_keystore_password)
    source = f"ssl.keystore.location {path}"
    return _key_store(source, "ssl.keystore.location", _text("ssl.keystore.location", path, data), config)


def _from_text(config: BrokerConfig, chain: str | None, key: str | None) -> KeyStore:
    for name, value in (("ssl.keystore.certificate.chain", chain), ("ssl.keystore.key", key)):
        if value is None:
            raise ConfigError(name, "is missing: certificate and key as text belong together")
    if config.ssl_keystore_location is not None:
        raise ConfigError("ssl.keystore.location", "must not be set beside ssl.keystore.certificate.chain")
    if config.ssl_keystore_type.upper() != "PEM":
        raise ConfigError("ssl.keystore.type", "must be PEM for ssl.keystore.certificate.chain")
    _refuse_password_of_pem("ssl.keystore.password", config.ssl_keystore_password)
    name = "ssl.keystore.certificate.chain"
    return _key_store(name, name, f"{chain}\n{key}", config)


def _key_store(source: str, name: str, text: str, config: BrokerConfig) -> KeyStore:
    blocks = _blocks(text)
    chain = [_pem("CERTIFICATE", body) for label, body in blocks if label in _CERTIFICATES]
    keys = [_pem(label, body) for label, body in blocks if label.endswith("PRIVATE KEY")]
    if not chain or len(keys) != 1:
        raise ConfigError(
            name,
            f"must have certificates and one private key in PEM, not {len(chain)} certificates and "
            f"{len(keys)} keys",
        )
    return KeyStore(source, "".join(chain), keys[0], config.ssl_key_password)


def read_trust_store(config: BrokerConfig) -> TrustStore | None:
    """Read the trust store of a listener's settings; None stands for the system's. Raises ConfigError."""
    if (text := config.ssl_truststore_certificates) is not None:
        if config.ssl_truststore_type.upper() != "PEM":
            raise ConfigError("ssl.truststore.type", "must be PEM for ssl.truststore.certificates")
        _refuse_password_of_pem("ssl.truststore.password", config.ssl_truststore_password)
        return _trusted("ssl.truststore.certificates", "ssl.truststore.certificates", text)
    path = config.ssl_truststore_location
    if path is None:
        if config.ssl_truststore_password is not None:
            raise ConfigError("ssl.truststore.location", "is missing, but ssl.truststore.password is set")
        return None
    data = _read("ssl.truststore.location", path)
    source = f"ssl.truststore.location {path}"
    if _is_pkcs12("ssl.truststore", path, config.ssl_truststore_type, data):
        return TrustStore(source, _certificates_of_pkcs12(path, data, config.ssl_truststore_password))
    _refuse_password_of_pem("ssl.truststore.password", config.ssl_truststore_password)
    return _trusted(source, "ssl.truststore.location", _text("ssl.truststore.location", path, data))


def _trusted(source: str, name: str, text: str) -> TrustStore:
    found = [_pem("CERTIFICATE", body) for label, body in _blocks(text) if label in _CERTIFICATES]
    if not found:
        raise ConfigError(name, "has no certificate in PEM")
    return TrustStore(source, "".join(found))


def _refuse_password_of_pem(name: str, password: str | None) -> None:
    if password is not None:
        raise ConfigError(name, "must not be set for PEM, which has only ssl.key.password")


# ---- files


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_STORE_BYTES + 1)
    except OSError as error:
        raise ConfigError(name, f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_STORE_BYTES:
        raise ConfigError(name, f"{path} has more than {MOST_STORE_BYTES} bytes")
    return data


def _is_pkcs12(kind: str, path: str, configured: str, data: bytes) -> bool:
    """Recognize the format. `JKS`, Kafka's default, stands for any, as it does for Java since version 9."""
    if data.startswith(_JAVA_STORES):
        converted = f"{path.removesuffix('.jks')}.p12"
        raise ConfigError(
            f"{kind}.location",
            f"{path} is a Java key store; convert it with: keytool -importkeystore -srckeystore {path} "
            f"-destkeystore {converted} -deststoretype PKCS12, and set {kind}.location={converted}",
        )
    is_pkcs12 = data.startswith(_DER_SEQUENCE)
    wanted = configured.upper()
    if wanted != "JKS" and (wanted == "PKCS12") is not is_pkcs12:
        raise ConfigError(f"{kind}.type", f"is {wanted}, but {path} is {'PKCS12' if is_pkcs12 else 'not'}")
    return is_pkcs12


def _text(name: str, path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(name, f"{path} is neither PEM nor PKCS12") from None


# ---- PEM


def _blocks(text: str) -> list[tuple[str, str]]:
    return [(block[1], block[2]) for block in _BLOCK.finditer(text)]


def _pem(label: str, body: str) -> str:
    """Write a block with its line breaks, which the text of a properties file may have lost."""
    if ":" in body:  # the headers of an old encrypted key
        return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
    lines = "\n".join(textwrap.wrap("".join(body.split()), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def _decoded(body: str) -> bytes:
    return base64.b64decode("".join(body.split()))


# ---- PKCS#12


def _from_pkcs12(path: str, data: bytes, password: str | None) -> KeyStore:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    store = _opened("ssl.keystore", path, data, password)
    if store.key is None or store.cert is None:
        raise ConfigError("ssl.keystore.location", f"{path} has no certificate with its private key")
    chain = [store.cert, *store.additional_certs]
    return KeyStore(
        f"ssl.keystore.location {path}",
        "".join(found.certificate.public_bytes(Encoding.PEM).decode() for found in chain),
        store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        None,
    )


def _certificates_of_pkcs12(path: str, data: bytes, password: str | None) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    store = _opened("ssl.truststore", path, data, password)
    found = [*([store.cert] if store.cert else []), *store.additional_certs]
    if not found:
        raise ConfigError("ssl.truststore.location", f"{path} has no certificate")
    return "".join(entry.certificate.public_bytes(Encoding.PEM).decode() for entry in found)


def _opened(kind: str, path: str, data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        problem = "is missing for" if password is None else "does not open"
        raise ConfigError(f"{kind}.password", f"{problem} {path}, or the file is damaged") from None
