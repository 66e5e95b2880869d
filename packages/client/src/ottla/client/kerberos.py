"""GSSAPI: logins by Kerberos (RFC 4752), with the package gssapi.

A ticket for the brokers' service comes from a keytab, or from the ticket cache that `kinit` fills. After both
sides have proved their names they agree on a security layer; Kafka has none, for TLS encrypts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from ottla.client.errors import AuthenticationFailed
from ottla.client.settings import SettingError

if TYPE_CHECKING:
    import gssapi

T = TypeVar("T")

_NO_LAYER: Final = 1
"""The bit of a layer that neither signs nor encrypts, and our answer that wants it, with no buffer."""
_ANSWER: Final = bytes([_NO_LAYER, 0, 0, 0])


def check_kerberos(service_name: str | None, keytab: str | None) -> None:
    """Raise SettingError if no login by Kerberos is possible with these settings."""
    if not service_name:
        raise SettingError("GSSAPI needs sasl_kerberos_service_name: `kafka` for kafka/host@REALM")
    if keytab is not None and not Path(keytab).is_file():
        raise SettingError(f"sasl_kerberos_keytab: there is no file {keytab!r}")
    from importlib.util import find_spec

    if find_spec("gssapi") is None:
        raise SettingError("GSSAPI needs `python -m pip install ottla-client[kerberos]`")


class Kerberos:
    """One login at the service of a host. Steps may ask the Kerberos server: run them on a thread."""

    blocks: ClassVar[bool] = True

    def __init__(self, service: str, host: str, principal: str | None, keytab: str | None) -> None:
        self._target = f"{service}@{host}"
        self._principal = principal
        self._keytab = keytab
        self._context: gssapi.SecurityContext | None = None
        self._agreed = False

    def first(self) -> bytes:
        """Return the ticket for the brokers' service. Raises AuthenticationFailed."""
        return self._checked(self._begin)

    def answer(self, challenge: bytes) -> bytes | None:
        """Check the broker's proof, then agree on no layer. Raises AuthenticationFailed."""
        if self._agreed:
            return None
        return self._checked(lambda: self._answered(challenge))

    def _begin(self) -> bytes:
        import gssapi

        name = gssapi.Name(self._target, gssapi.NameType.hostbased_service)
        self._context = gssapi.SecurityContext(name=name, creds=self._credentials(), usage="initiate")
        return self._context.step() or b""

    def _credentials(self) -> Any:
        import gssapi

        if self._principal is None and self._keytab is None:
            return None  # the ticket cache
        name = None
        if self._principal is not None:
            name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        # A cache of its own: the tickets of a keytab are not those of the person at this terminal.
        store = None
        if self._keytab is not None:
            # One for each principal: a keytab may have the keys of several.
            cache = f"MEMORY:ottla-{os.getpid()}-{self._principal or ''}-{self._keytab}"
            store = {"client_keytab": self._keytab, "ccache": cache}
        return gssapi.Credentials(name=name, usage="initiate", store=store)

    def _answered(self, challenge: bytes) -> bytes:
        assert self._context is not None
        if not self._context.complete:
            return self._context.step(challenge) or b""
        offered = bytes(self._context.unwrap(challenge).message)
        if len(offered) != len(_ANSWER) or not offered[0] & _NO_LAYER:
            raise AuthenticationFailed("the broker's Kerberos demands a security layer, which Kafka has not")
        self._agreed = True
        return bytes(self._context.wrap(_ANSWER, False).message)

    def _checked(self, step: Callable[[], T]) -> T:
        from gssapi.exceptions import GSSError

        try:
            return step()
        except GSSError as error:
            words = " ".join(str(error).split())
            whom = self._principal or "the ticket cache"
            raise AuthenticationFailed(f"no Kerberos login of {whom} at {self._target}: {words}") from None
