"""Kafka's settings of ZooKeeper's clients: the identity that a client shows, and TLS.

The login by SASL comes from a JAAS file, as Apache's clients read it; `digest` credentials from a file with
`user:password`. Files are read when a session is made, those of TLS again at each connection.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from ottla.zookeeper.environment import new_secret
from ottla.zookeeper.errors import UnsafeSecret, ZooKeeperError
from ottla.zookeeper.frozen_classes import frozen

DIGEST_FILE: Final = "zookeeper.digest.file"
JAAS_FILE: Final = "zookeeper.sasl.jaas.file"
JAAS_SECTION: Final = "zookeeper.sasl.clientconfig"
IS_TLS: Final = "zookeeper.ssl.client.enable"
_SSL: Final = "zookeeper.ssl."
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
KEYS: Final = (
    DIGEST_FILE,
    JAAS_FILE,
    JAAS_SECTION,
    IS_TLS,
    *(
        f"{_SSL}{store}.{part}"
        for store in ("keystore", "truststore")
        for part in ("location", "password", "type")
    ),
    f"{_SSL}protocol",
    f"{_SSL}enabled.protocols",
    f"{_SSL}cipher.suites",
    f"{_SSL}endpoint.identification.algorithm",
    f"{_SSL}crl.enable",
    f"{_SSL}ocsp.enable",
)
_WITHOUT_EFFECT: Final = ("zookeeper.clientCnxnSocket", "zookeeper.sasl.client")
_ALIASES: Final = {"zookeeper.client.secure": IS_TLS}
_TOKEN: Final = re.compile(
    r'\s+|//[^\n]*|#[^\n]*|/\*.*?\*/|"((?:[^"\\\n]|\\.)*)"|([\w.$-]+)|([{};=])', re.DOTALL
)
_DIGEST_MODULE: Final = "DigestLoginModule"
_MAX_BYTES: Final = 1 << 20


class SecuritySettingError(ZooKeeperError, ValueError):
    """A setting cannot be used; `path` is its key, and the message one line without secrets."""

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


@frozen
class SaslLogin:
    """A user and the password for SASL's DIGEST-MD5."""

    username: str
    password: str = field(repr=False)


@frozen
class Store:
    """A file with a key and its certificate, or with trusted certificates: PEM or PKCS#12."""

    key: str
    path: Path
    password: str | None = field(repr=False)

    def pem(self) -> tuple[bytes, str | None]:
        """Return its content as PEM, and the password of its key. Raises SecuritySettingError."""
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise SecuritySettingError(self.key, f"{self.path}: {error.strerror}") from error
        if b"-----BEGIN " in data:
            return data, self.password
        if data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
            raise SecuritySettingError(
                self.key,
                f"{self.path} is a Java keystore: keytool -importkeystore -srckeystore {self.path} "
                f"-destkeystore {self.path.with_suffix('.p12')} -deststoretype PKCS12",
            )
        return self._of_pkcs12(data)

    def _of_pkcs12(self, data: bytes) -> tuple[bytes, str | None]:
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.serialization import pkcs12
        except ImportError:
            advice = "python -m pip install cryptography, or give a PEM file"
            raise SecuritySettingError(self.key, f"{self.path} is no PEM file: {advice}") from None
        try:
            content = pkcs12.load_pkcs12(data, self.password.encode() if self.password else None)
        except ValueError as error:
            why = f"{self.path} is neither PEM nor PKCS#12, or its password is wrong"
            raise SecuritySettingError(self.key, why) from error
        certificates = [content.cert] if content.cert else []
        found = [held.certificate for held in (*certificates, *content.additional_certs)]
        pem = [certificate.public_bytes(serialization.Encoding.PEM) for certificate in found]
        password = None
        if content.key is not None:
            password = new_secret()
            pem.append(
                content.key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(password.encode()),
                )
            )
        return b"".join(pem), password


@frozen
class TlsSettings:
    """Settings of TLS to ZooKeeper."""

    keystore: Store | None = None
    truststore: Store | None = None
    versions: frozenset[ssl.TLSVersion] = frozenset(_VERSIONS.values())
    ciphers: str | None = None
    checks_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context of a connection, of the files as they are now. Raises SecuritySettingError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_hostname
        context.minimum_version, context.maximum_version = min(self.versions), max(self.versions)
        if self.ciphers is not None:
            context.set_ciphers(self.ciphers)
        if self.truststore is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _trust(context, self.truststore)
        if self.keystore is not None:
            _show(context, self.keystore)
        return context


@frozen
class ClientSecurity:
    """The credentials of a session's connections, and their encryption; by default neither."""

    digests: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    login: SaslLogin | None = None
    tls: TlsSettings | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether ZooKeeper learns an identity, which ACLs can name."""
        return (
            bool(self.digests)
            or self.login is not None
            or (self.tls is not None and self.tls.keystore is not None)
        )


NO_SECURITY: Final = ClientSecurity()


def client_security_from(settings: Mapping[str, str]) -> ClientSecurity:
    """Read Kafka's keys of ZooKeeper's client, and the files that they name; other keys are left out.

    Raises SecuritySettingError, and UnsafeSecret for a file of credentials that others can read.
    """
    given = {_ALIASES.get(key, key): text.strip() for key, text in settings.items() if text.strip()}
    for key in given:
        if key.startswith((_SSL, "zookeeper.sasl.", "zookeeper.digest.")) and key not in (
            *KEYS,
            *_WITHOUT_EFFECT,
        ):
            raise SecuritySettingError(key, "there is no such setting")
    return ClientSecurity(
        _digests(given[DIGEST_FILE]) if DIGEST_FILE in given else (),
        _login(given[JAAS_FILE], given.get(JAAS_SECTION, "Client")) if JAAS_FILE in given else None,
        _tls(given) if _flag(given, IS_TLS) else None,
    )


def settings_in(path: Path) -> dict[str, str]:
    """Return the keys of a properties file; of one with an odd line, the others."""
    found: dict[str, str] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        if (text := line.strip()) and text[0] not in "#!":
            key, _, value = text.partition("=")
            found[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    return found


# -- TLS


def _tls(given: Mapping[str, str]) -> TlsSettings:
    for key in (f"{_SSL}crl.enable", f"{_SSL}ocsp.enable"):
        if _flag(given, key):
            raise SecuritySettingError(key, "Python's ssl looks up no revoked certificates: leave it false")
    algorithm = given.get(f"{_SSL}endpoint.identification.algorithm", "HTTPS")
    if algorithm.upper() not in ("HTTPS", "NONE"):
        raise SecuritySettingError(
            f"{_SSL}endpoint.identification.algorithm", "it is HTTPS, or empty for none"
        )
    made = TlsSettings(
        _store(given, "keystore"),
        _store(given, "truststore"),
        _versions(given),
        _ciphers(given.get(f"{_SSL}cipher.suites", "")),
        algorithm.upper() == "HTTPS",
    )
    made.context()
    return made


def _store(given: Mapping[str, str], what: str) -> Store | None:
    key = f"{_SSL}{what}.location"
    kind = given.get(f"{_SSL}{what}.type", "PKCS12").upper()
    if kind not in ("PEM", "PKCS12", "JKS"):
        raise SecuritySettingError(f"{_SSL}{what}.type", "it is PEM or PKCS12")
    if key not in given:
        return None
    return Store(key, Path(given[key]), given.get(f"{_SSL}{what}.password"))


def _versions(given: Mapping[str, str]) -> frozenset[ssl.TLSVersion]:
    key = f"{_SSL}enabled.protocols"
    names = [name.strip() for name in given.get(key, ",".join(_VERSIONS)).split(",")]
    versions = frozenset(_VERSIONS[name] for name in names if name in _VERSIONS)
    if not versions:
        raise SecuritySettingError(key, f"it names none of {', '.join(_VERSIONS)}")
    return versions


def _ciphers(text: str) -> str | None:
    names = [_openssl_name(name.strip()) for name in text.split(",") if name.strip()]
    if not names:
        return None
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in names:
        try:
            probe.set_ciphers(name)
        except ssl.SSLError:
            raise SecuritySettingError(f"{_SSL}cipher.suites", f"OpenSSL has no suite {name!r}") from None
    return ":".join(names)


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2; others stay as they are."""
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)(_CBC)?", r"\1\2", cipher).replace(
        "POLY1305_SHA256", "POLY1305"
    )
    return "-".join([*([] if exchange == "RSA" else [exchange]), cipher]).replace("_", "-")


def _trust(context: ssl.SSLContext, store: Store) -> None:
    pem, _ = store.pem()
    certificates = re.findall(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", pem, re.DOTALL)
    try:
        context.load_verify_locations(cadata="\n".join(found.decode("ascii") for found in certificates))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise SecuritySettingError(
            store.key, f"{store.path} holds no certificate that can be read"
        ) from error


def _show(context: ssl.SSLContext, store: Store) -> None:
    pem, password = store.pem()
    with _private_file(pem) as path:
        try:
            context.load_cert_chain(path, password=password or "")
        except (ssl.SSLError, ValueError) as error:
            why = f"{store.path} holds no certificate with its key, or the password is wrong"
            raise SecuritySettingError(store.key, why) from error


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[Path]:
    """Write a file for OpenSSL, which takes keys from files only; a key that was encrypted stays so."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ottla-") as folder:
        path = Path(folder, "key.pem")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
        yield path


def _flag(given: Mapping[str, str], key: str) -> bool:
    text = given.get(key, "false").lower()
    if text not in ("true", "false"):
        raise SecuritySettingError(key, "it is true or false")
    return text == "true"


# -- logins


def _digests(place: str) -> tuple[tuple[str, str], ...]:
    text = read_secret_file(DIGEST_FILE, Path(place)).strip()
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise SecuritySettingError(DIGEST_FILE, f"{place} does not hold one line user:password")
    return (("digest", text),)


def _login(place: str, section: str) -> SaslLogin:
    modules = jaas_sections(read_secret_file(JAAS_FILE, Path(place)))
    if section not in modules:
        raise SecuritySettingError(JAAS_FILE, f"{place} has no section {section} that can be read")
    module, options = modules[section]
    if module.rpartition(".")[2] != _DIGEST_MODULE:
        raise SecuritySettingError(
            JAAS_FILE, f"{section} in {place} names {module}: only DigestLoginModule (DIGEST-MD5) works here"
        )
    if not options.get("username") or "password" not in options:
        raise SecuritySettingError(JAAS_FILE, f"{section} in {place} has no username or no password")
    return SaslLogin(options["username"], options["password"])


def jaas_sections(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the first login module and its options of each section of a JAAS file that can be read."""
    tokens = _tokens(text)
    found: dict[str, tuple[str, dict[str, str]]] = {}
    position = 0
    while position + 3 < len(tokens) and tokens[position + 1] == "{":
        name, module = tokens[position], tokens[position + 2]
        end = next((at for at in range(position, len(tokens) - 1) if tokens[at : at + 2] == [";", "}"]), None)
        if end is None:
            break
        first = tokens[position + 4 : tokens.index(";", position + 4)]
        options = {first[at]: first[at + 2] for at in range(0, len(first) - 2, 3) if first[at + 1] == "="}
        found[name] = (module, options)
        position = end + 3  # behind `;};`
    return found


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text) and (match := _TOKEN.match(text, position)):
        quoted, word, sign = match.groups()
        if quoted is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", quoted))
        elif word or sign:
            tokens.append(word or sign)
        position = match.end()
    return tokens


def read_secret_file(key: str, path: Path) -> str:
    """Return the text of a file of credentials. Raises UnsafeSecret where everybody can read or write it.

    A group may read it, and it may be a link: so secrets are mounted into containers.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES)
    except OSError as error:
        raise SecuritySettingError(key, f"{path}: {error.strerror}") from error
    if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        mode = stat.S_IMODE(facts.st_mode)
        raise UnsafeSecret(str(path), f"others can read or write it (mode {mode:04o}): chmod 600 it")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SecuritySettingError(key, f"{path} is no text in UTF-8") from None
