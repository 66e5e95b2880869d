"""The TLS of one listener: its contexts for clients and for other brokers, and how a new one replaces it."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.broker.security.principal_mapping import Rule, parse_rules, principal_name
from ottla.broker.security.tls.certificates import CertificateNames, MalformedCertificate, names_of
from ottla.broker.security.tls.stores import KeyStore, TrustStore, read_key_store, read_trust_store
from ottla.client.config_definition import ConfigError, SettingError
from ottla.client.security import restrict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.config import BrokerConfig

_log = logging.getLogger(__name__)

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_OWN_NAMES: Final = {
    "ssl_enabled_protocols": "ssl.enabled.protocols",
    "ssl_cipher_suites": "ssl.cipher.suites",
}
_AUTHENTICATED: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2 that encrypt and authenticate in one step; the padding of others was attacked."""
_MOST_FLIGHTS: Final = 10


class Stores(NamedTuple):
    """The stores of a listener as they were read."""

    keys: KeyStore | None
    trusted: TrustStore | None


def read_stores(config: BrokerConfig) -> Stores:
    """Read the stores of a listener's settings. Raises ConfigError."""
    return Stores(read_key_store(config), read_trust_store(config))


def server_context(config: BrokerConfig, stores: Stores) -> ssl.SSLContext:
    """Return the context in which a listener accepts. Raises ConfigError."""
    if stores.keys is None:
        raise ConfigError("ssl.keystore.location", "must be set: a listener with TLS needs a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 1  # OpenSSL's 2 are for browsers, which open several connections at once
    context.verify_mode = _VERIFY[config.ssl_client_auth]
    if config.ssl_client_auth != "none":
        _trust(context, stores.trusted, ssl.Purpose.CLIENT_AUTH)
    if config.ssl_cipher_suites is None:
        context.set_ciphers(_AUTHENTICATED)
    _restrict(context, config)
    load_key_store(context, stores.keys)
    return context


def client_context(config: BrokerConfig, stores: Stores) -> ssl.SSLContext:
    """Return the context in which this broker connects to such a listener of another one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = (config.ssl_endpoint_identification_algorithm or "").lower() == "https"
    _trust(context, stores.trusted, ssl.Purpose.SERVER_AUTH)
    _restrict(context, config)
    if stores.keys is not None:
        load_key_store(context, stores.keys)
    return context


def _trust(context: ssl.SSLContext, trusted: TrustStore | None, purpose: ssl.Purpose) -> None:
    if trusted is None:
        context.load_default_certs(purpose)
        return
    try:
        context.load_verify_locations(cadata=trusted.certificates)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(trusted.source, f"has a certificate that cannot be read: {error}") from None


def _restrict(context: ssl.SSLContext, config: BrokerConfig) -> None:
    try:
        restrict(context, config.ssl_enabled_protocols, config.ssl_cipher_suites)
    except SettingError as error:
        text = str(error)
        for theirs, ours in _OWN_NAMES.items():
            text = text.replace(theirs, ours)
        name, _, problem = text.partition(" ")
        raise ConfigError(name, problem) from None


def load_key_store(context: ssl.SSLContext, keys: KeyStore) -> None:
    """Load a certificate and its key. Raises ConfigError."""

    def password() -> str:
        # Without this function OpenSSL would ask at the terminal, and block the event loop.
        if keys.password is None:
            raise ConfigError("ssl.key.password", f"must be set: the key in {keys.source} is encrypted")
        return keys.password

    try:
        with _in_memory(keys.chain + keys.private_key) as path:
            context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        raise ConfigError(*_why_not_loaded(keys, error)) from None


def _why_not_loaded(keys: KeyStore, error: ssl.SSLError) -> tuple[str, str]:
    if error.reason == "KEY_VALUES_MISMATCH":
        return keys.source, "has a private key that does not belong to its certificate"
    if "ENCRYPTED" in keys.private_key:
        return "ssl.key.password", f"does not decrypt the key in {keys.source}"
    return keys.source, f"cannot be used: {error.reason or error}"


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """Give OpenSSL, which reads files only, a file that no disk holds where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile("w") as file:  # readable by its owner only
        file.write(text)
        file.flush()
        yield file.name


# ---- one listener


class ListenerTls:
    """The TLS of one listener. New connections use what it holds now; open ones go on with theirs."""

    def __init__(self, name: str, config: BrokerConfig, *, is_of_brokers: bool) -> None:
        """`config` is the listener's (`BrokerConfig.of_listener`). Raises ConfigError."""
        self.name = name
        self._is_of_brokers = is_of_brokers
        self.stores: Stores
        self.context: ssl.SSLContext
        self.to_brokers: ssl.SSLContext | None
        """For connections to the listener of this name of other brokers."""
        self._rules: Sequence[Rule]
        self.take(self.prepared(config, None))

    def prepared(self, config: BrokerConfig, stores: Stores | None) -> Prepared:
        """Make everything from settings, and from stores if they were read. Raises ConfigError."""
        stores = stores or read_stores(config)
        context = server_context(config, stores)
        to_brokers = client_context(config, stores) if self._is_of_brokers else None
        if to_brokers is not None:
            check_handshake(context, client_context(config, stores), stores)
        return Prepared(stores, context, to_brokers, parse_rules(config.ssl_principal_mapping_rules))

    def replacement(self, config: BrokerConfig) -> Prepared:
        """Make what a running listener may take in its place. Raises ConfigError."""
        made = self.prepared(config, None)
        if self.stores.keys is not None and made.stores.keys is not None:
            check_names(self.stores.keys, made.stores.keys, config)
        return made

    def take(self, made: Prepared) -> None:
        """Use it for new connections."""
        self.stores, self.context, self.to_brokers, self._rules = made

    def own_principal(self) -> Principal:
        """Return the principal of a client with this listener's own certificate. Raises `NoRuleApplies`."""
        if self.context.verify_mode is ssl.CERT_NONE or self.stores.keys is None:
            return ANONYMOUS
        subject = _own_names(self.stores.keys).subject
        return Principal("User", principal_name(self._rules, subject))

    def principal_of(self, tls: ssl.SSLObject) -> Principal:
        """Return the principal of a client's certificate. Raises `NoRuleApplies`, `MalformedCertificate`."""
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        return Principal("User", principal_name(self._rules, names_of(certificate).subject))


class Prepared(NamedTuple):
    """All that a listener uses, checked."""

    stores: Stores
    context: ssl.SSLContext
    to_brokers: ssl.SSLContext | None
    rules: Sequence[Rule]


def check_names(present: KeyStore, new: KeyStore, config: BrokerConfig) -> None:
    """Check that a new certificate is for the names of the present one. Raises ConfigError."""
    old_names, new_names = _own_names(present), _own_names(new)
    if not config.ssl_allow_dn_changes and old_names.subject != new_names.subject:
        raise ConfigError(
            new.source,
            f"has a certificate of {new_names.subject}, but the present one is of {old_names.subject}: set "
            "ssl.allow.dn.changes=true and restart, if that is meant",
        )
    if not config.ssl_allow_san_changes and not old_names.alternatives <= new_names.alternatives:
        raise ConfigError(
            new.source,
            "has a certificate that lacks alternative names of the present one: set "
            "ssl.allow.san.changes=true and restart, if that is meant",
        )


def _own_names(keys: KeyStore) -> CertificateNames:
    try:
        return names_of(keys.certificate)
    except MalformedCertificate as error:
        raise ConfigError(keys.source, str(error)) from None


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext, stores: Stores) -> None:
    """Check that brokers with these stores trust each other. Raises ConfigError."""
    client.check_hostname = False  # names are checked where hosts are known
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(inward, outward), server.wrap_bio(outward, inward, server_side=True)]
    try:
        for _ in range(_MOST_FLIGHTS):
            ends = [end for end in ends if not _is_done(end.do_handshake)]
            if not ends:
                return
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or str(error)
        raise ConfigError(
            stores.trusted.source if stores.trusted else "ssl.truststore.location",
            f"does not let brokers with this certificate trust each other: {reason}",
        ) from None


def _is_done(step: Callable[[], Any]) -> bool:
    try:
        step()
    except ssl.SSLWantReadError:
        return False
    return True


# ---- all listeners
