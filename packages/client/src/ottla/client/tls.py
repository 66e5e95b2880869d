"""The TLS context of connections, from Kafka's settings: versions, cipher suites and encrypted keys.

Suites may have the names of IANA, which Java uses, or those of OpenSSL. Python cannot choose among the suites
of TLS 1.3: if one of them is named, all are offered; if none is, TLS 1.3 is not.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from ottla.client.config_definition import SettingError

__all__ = ["Certificate", "allowed_versions", "restrict"]

Names = Sequence[str] | None

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OBSOLETE = ("TLSv1", "TLSv1.1")
"""Accepted beside newer ones, as old Kafkas list them by default, but never used (RFC 8996)."""

_TLS_1_3 = re.compile(r"TLS_(AES_(128|256)_(GCM|CCM|CCM_8)|CHACHA20_POLY1305)_SHA(256|384)")


class Certificate(NamedTuple):
    """A certificate and its key, in PEM files; without `keyfile` both are in one file."""

    certfile: str
    keyfile: str | None
    password: str | None

    def load(self, context: ssl.SSLContext) -> None:
        """Load both. Raises OSError for bad files, SettingError for a key that cannot be decrypted."""
        keyfile = self.keyfile or self.certfile

        def decrypt() -> str:
            # Without this function OpenSSL would ask at the terminal, and block the event loop.
            if self.password is None:
                raise SettingError(f"the key in {keyfile} is encrypted: set ssl_key_password")
            return self.password

        try:
            context.load_cert_chain(self.certfile, self.keyfile, decrypt)
        except ssl.SSLError as error:
            if self.password is None or error.reason == "KEY_VALUES_MISMATCH":
                raise
            raise SettingError(f"ssl_key_password does not decrypt the key in {keyfile}: {error}") from error


def restrict(context: ssl.SSLContext, protocols: Names, suites: Names) -> None:
    """Offer only some versions of TLS and some cipher suites; None: all."""
    versions = allowed_versions(protocols, suites)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older := _older_suites(suites or ()):
        context.set_ciphers(":".join(older))


def allowed_versions(protocols: Names, suites: Names) -> set[ssl.TLSVersion]:
    """Return the versions of TLS that the settings allow. Raises SettingError if there are none."""
    allowed = set(_VERSIONS.values()) if protocols is None else _enabled(protocols)
    if suites is None:
        return allowed
    older = _older_suites(suites)
    if not older:
        allowed.discard(ssl.TLSVersion.TLSv1_2)
    if len(older) == len(suites):
        allowed.discard(ssl.TLSVersion.TLSv1_3)
    if not allowed:
        raise SettingError("ssl_cipher_suites has no suite for the versions of ssl_enabled_protocols")
    return allowed


def _enabled(names: Sequence[str]) -> set[ssl.TLSVersion]:
    for name in names:
        if name not in _VERSIONS and name not in _OBSOLETE:
            raise SettingError(f"ssl_enabled_protocols: there is no version {name!r}; give TLSv1.2, TLSv1.3")
    found = {_VERSIONS[name] for name in names if name in _VERSIONS}
    if not found:
        raise SettingError("ssl_enabled_protocols names neither TLSv1.2 nor TLSv1.3; others are obsolete")
    return found


def _older_suites(names: Sequence[str]) -> list[str]:
    """Return the suites of TLS 1.2 under OpenSSL's names. Raises SettingError for one that it lacks."""
    older = [(name, _openssl_name(name)) for name in names if not _TLS_1_3.fullmatch(name)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name, openssl_name in older:
        try:
            context.set_ciphers(openssl_name)  # a list would pass with a single known name
        except ssl.SSLError:
            raise SettingError(f"ssl_cipher_suites: OpenSSL has no suite {name!r}") from None
    return [openssl_name for _, openssl_name in older]


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite: ECDHE-RSA-AES128-GCM-SHA256 for TLS_ECDHE_RSA_WITH_AES_128_GCM_…."""
    if not name.startswith(("TLS_", "SSL_")):
        return name
    exchange, _, cipher = name[4:].partition("_WITH_")
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)(_CBC)?", r"\1\2", cipher).replace(
        "POLY1305_SHA256", "POLY1305"
    )
    return "-".join([*([] if exchange == "RSA" else [exchange]), cipher]).replace("_", "-")
