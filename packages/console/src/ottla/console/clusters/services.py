"""Services beside the brokers: a schema registry and clusters of Kafka Connect, as profiles name them.

The addresses are read when the console starts; secrets are, when a service is first asked.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ottla.client.config_definition import SettingError
from ottla.client.profiles import Profile, is_of_service

REGISTRY: Final = "schema_registry"
CONNECT: Final = "connect"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ServiceLogin:
    """How to log in at a service: by a user's password, a token, a certificate, or not at all."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The header that carries a token. Raises SettingError for one that no header can carry."""
        if self.token is None:
            return {}
        if not (self.token.isascii() and self.token.isprintable()):
            raise SettingError("the token of a service has letters that a header cannot carry")
        return {"authorization": f"Bearer {self.token}"}

    @property
    def basic(self) -> tuple[str, str] | None:
        """The user and the password, if there is a user."""
        return None if self.username is None else (self.username, self.password or "")

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of connections with TLS. Raises SettingError."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile, self.key_password)
        except OSError as error:  # ssl.SSLError is one
            raise SettingError(f"the certificates of a service cannot be read: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class Service:
    """One service: its name, the addresses of its instances, and how to log in there."""

    name: str
    urls: tuple[str, ...]
    login: Callable[[], ServiceLogin] = ServiceLogin


def registry_of(profile: Profile) -> Service | None:
    """Return the schema registry of a profile. Raises SettingError."""
    given = _text(profile, f"{REGISTRY}_url") or _text(profile, f"{REGISTRY}_urls")
    if given is None:
        return None
    return Service("schema registry", urls_of(given), lambda: _login(profile, (REGISTRY,)))


def connects_of(profile: Profile) -> tuple[Service, ...]:
    """Return the clusters of Kafka Connect of a profile. Raises SettingError."""
    given = _text(profile, f"{CONNECT}_urls") or _text(profile, f"{CONNECT}_url")
    if given is None:
        return ()
    return tuple(
        Service(name, urls, lambda name=name: _login(profile, (f"{CONNECT}_{name}", CONNECT)))  # type: ignore[misc]
        for name, urls in named_urls(given).items()
    )


def direct_services(
    registry: str | None, connects: Iterable[str]
) -> tuple[Service | None, tuple[Service, ...]]:
    """Return the services that options of the command name, which need no login. Raises SettingError."""
    workers = named_urls(",".join(connects))
    found = None if registry is None else Service("schema registry", urls_of(registry))
    return found, tuple(Service(name, urls) for name, urls in workers.items())


def check_services(profile: Profile) -> None:
    """Check that settings of services name one that has an address. Raises SettingError."""
    keys = [key for key in profile.settings if is_of_service(key)]
    for prefix in (REGISTRY, CONNECT):
        own = [key for key in keys if _flat(key).startswith(f"{prefix}_")]
        if own and not any(_flat(key) in (f"{prefix}_url", f"{prefix}_urls") for key in own):
            raise SettingError(f"profile {profile.name!r} has {own[0]}, and no {prefix}_url")


def urls_of(text: str) -> tuple[str, ...]:
    """Return the addresses of a list divided by commas. Raises SettingError."""
    found = tuple(_checked(part) for part in re.split(r"[,\s]+", text.strip()) if part)
    if not found:
        raise SettingError("an address of a service is empty: write http://HOST:PORT or https://HOST:PORT")
    return found


def named_urls(text: str) -> dict[str, tuple[str, ...]]:
    """Return the addresses of each cluster of `NAME=URL` or of URLs alone, divided by commas.

    Several addresses of one name are workers of one cluster. Raises SettingError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        name, equals, url = part.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            name, url = CONNECT, part
        found[name] = (*found.get(name, ()), _checked(url))
    return found


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise SettingError(f"{url!r} is no address of a service, such as http://127.0.0.1:8081")
    if parts.username is not None or parts.password is not None:
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise SettingError(f"the address {shown} has a login in it: use ..._username and ..._password")
    return url.rstrip("/")


def _login(profile: Profile, prefixes: Iterable[str]) -> ServiceLogin:
    """Return the login of a service; of several beginnings of its settings, the first is the strongest."""
    settings = profile.services()

    def found(name: str) -> str | None:
        keys = (f"{prefix}_{name}" for prefix in prefixes_)
        return next((str(settings[key]) for key in keys if key in settings), None)

    prefixes_ = tuple(prefixes)
    return ServiceLogin(
        found("username"), found("password"), found("token"), found("ssl_cafile"), found("ssl_certfile"),
        found("ssl_keyfile"), found("ssl_key_password"),
    )  # fmt: skip


def _text(profile: Profile, wanted: str) -> str | None:
    flat: Mapping[str, Any] = {_flat(key): value for key, value in profile.settings.items()}
    found = flat.get(wanted)
    return None if found is None else str(found)


def _flat(key: str) -> str:
    return key.replace(".", "_")
