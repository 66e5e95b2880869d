"""Settings of connectors without their secrets. Pure.

A value is hidden where the connector's class says that it is a password, or its name looks like one. A value
that names a place of a secret (`${file:/etc/secrets:password}`) is no secret and says where to look.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

HIDDEN: Final = "hidden"
_SECRET_KEY: Final = re.compile(
    r"passw|passphrase|secret|token|credential|jaas|user[._]?info|(?:api|access|account|private|encryption"
    r"|sas|ssl|shared)[._-]?key(?!store\.(?:location|type))",
    re.IGNORECASE,
)
_REFERENCE: Final = re.compile(r"\$\{[^{}:]+:[^{}]*\}")
_LOGIN_IN_URL: Final = re.compile(r"(?<=://)([^\s/@:]*):[^\s/@]+(?=@)")
_SECRET_IN_VALUE: Final = re.compile(
    r"(?i)\b(passw(?:or)?d|pwd|secret|token|api[_-]?key|access[_-]?key)(\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s;&,\"']+)"
)
_SHORTEST: Final = 4
"""A shorter secret would hide half of the words of an error message with itself."""


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting as a page shows it; `providers` are the places that its value names."""

    name: str
    value: str
    is_hidden: bool = False
    providers: tuple[str, ...] = ()


def shown_settings(config: Mapping[str, object], passwords: Collection[str] = ()) -> list[ShownSetting]:
    """Return settings by name, secrets hidden. `passwords` are the names that the class says are such."""
    return [_shown(name, config[name], name in passwords) for name in sorted(config)]


def _shown(name: str, value: object, is_password: bool) -> ShownSetting:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    providers = tuple(dict.fromkeys(found[2:-1].partition(":")[0] for found in _REFERENCE.findall(text)))
    if _is_secret(name, text, is_password):
        return ShownSetting(name, HIDDEN, True, providers)
    return ShownSetting(name, without_logins(text), False, providers)


def _is_secret(name: str, text: str, is_password: bool) -> bool:
    if not text or not _REFERENCE.sub("", text).strip():  # nothing, or places of secrets only
        return False
    return is_password or _SECRET_KEY.search(name) is not None


def without_logins(text: str) -> str:
    """Return a text without passwords in addresses, and without values behind words such as `password=`."""
    text = _LOGIN_IN_URL.sub(rf"\1:{HIDDEN}", text)
    return _SECRET_IN_VALUE.sub(lambda found: f"{found[1]}{found[2]}{HIDDEN}", text)


def secrets_of(config: Mapping[str, object], passwords: Collection[str] = ()) -> frozenset[str]:
    """Return the values that are hidden: they may stand in the traces of the connector, too."""
    texts = {name: str(value) for name, value in config.items()}
    return frozenset(text for name, text in texts.items() if _is_secret(name, text, name in passwords))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text, such as a trace, without the given secrets and without logins."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return without_logins(text)
