"""Services of a cluster as profiles name them: a registry, clusters of Kafka Connect, pages of metrics.

The addresses are read when the console starts; secrets are, when a service is first asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.client.config_definition import SettingError
from ottla.client.profiles import Profile, is_of_service
from ottla.registry.rest import Service, ServiceLogin, checked_url, urls_of

REGISTRY: Final = "schema_registry"
CONNECT: Final = "connect"
METRICS: Final = "metrics"
_METRICS_NAME: Final = "metrics page"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
__all__ = [
    "CONNECT",
    "METRICS",
    "REGISTRY",
    "Service",
    "ServiceLogin",
    "check_services",
    "connects_of",
    "direct_metrics",
    "direct_services",
    "metrics_of",
    "named_urls",
    "registry_of",
    "urls_of",
]


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


def metrics_of(profile: Profile) -> Service | None:
    """Return the metrics pages of a profile's brokers. Raises SettingError."""
    given = _text(profile, f"{METRICS}_urls") or _text(profile, f"{METRICS}_url")
    if given is None:
        return None
    return Service(_METRICS_NAME, _pages(given), lambda: _login(profile, (METRICS,)))


def direct_metrics(pages: Iterable[str]) -> Service | None:
    """Return the metrics pages that options of the command name, which need no login. Raises SettingError."""
    given = ",".join(pages)
    return Service(_METRICS_NAME, _pages(given)) if given else None


def _pages(text: str) -> tuple[str, ...]:
    """Return the addresses of pages without `/metrics`, which users may write or leave out."""
    return tuple(dict.fromkeys(url.removesuffix("/metrics") for url in urls_of(text)))


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
    for prefix in (REGISTRY, CONNECT, METRICS):
        own = [key for key in keys if _flat(key).startswith(f"{prefix}_")]
        if own and not any(_flat(key) in (f"{prefix}_url", f"{prefix}_urls") for key in own):
            raise SettingError(f"profile {profile.name!r} has {own[0]}, and no {prefix}_url")


def named_urls(text: str) -> dict[str, tuple[str, ...]]:
    """Return the addresses of each cluster of `NAME=URL` or of URLs alone, divided by commas.

    Several addresses of one name are workers of one cluster. Raises SettingError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        name, equals, url = part.partition("=")
        if not (equals and _NAME.fullmatch(name)):
            name, url = CONNECT, part
        found[name] = (*found.get(name, ()), checked_url(url))
    return found


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
