"""The keys of the broker's config classes, by Kafka's dotted names, and those of one listener.

A setting of TLS, logins and connections may differ by listener: `listener.name.external.ssl.client.auth` is
`ssl.client.auth` of the listener EXTERNAL, and `listener.name.external.plain.sasl.jaas.config` is
`sasl.jaas.config` of its mechanism PLAIN. `BrokerConfig.of_listener` returns the settings of one listener.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ottla.client.config_definition import INT, ConfigError, Setting, define
from ottla.zookeeper.frozen_classes import declared

if TYPE_CHECKING:
    from ottla.client.config_definition import Update

LISTENER_PREFIX: Final = "listener.name."

OVERRIDES: Final = "listener_overrides"
"""The field of `BrokerConfig` that is no key: the texts of the keys of single listeners."""

_CLUSTER_WIDE: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
_OF_LISTENERS: Final = _CLUSTER_WIDE | {"connections.max.reauth.ms", "principal.builder.class"}
_PREFIXES_OF_LISTENERS: Final = ("ssl.", "sasl.")
_OF_MECHANISMS: Final = ("sasl.", "connections.max.reauth.ms")
_MECHANISM: Final = "gssapi|plain|scram-sha-256|scram-sha-512|oauthbearer"
_LISTENER_KEY: Final = re.compile(
    rf"listener\.name\.(?P<listener>[^.]+)\.(?:(?P<mechanism>{_MECHANISM})\.)?(?P<key>.+)"
)


def keys_of(cls: type[Any]) -> Mapping[str, Setting]:
    """List the keys of a configuration class, by Kafka's dotted name, in their order."""
    return _keys_of(cast(Any, cls))  # mypy takes no class of classes for hashable


@functools.cache
def _keys_of(cls: Any) -> Mapping[str, Setting]:
    fields = {name: field for name, field in declared(cls).items() if name != OVERRIDES}
    return {key.name: key for key in define(cls, fields, integer=INT).values()}


class ListenerKey(NamedTuple):
    """A key of one listener, or of one mechanism of its logins, both in lower case."""

    listener: str
    mechanism: str | None
    key: str


def parse_listener_key(name: str) -> ListenerKey | None:
    """Return the parts of `listener.name.<listener>.<key>`; None for another name."""
    match = _LISTENER_KEY.fullmatch(name)
    return None if match is None else ListenerKey(match["listener"], match["mechanism"], match["key"])


def may_differ_by_listener(key: str) -> bool:
    """Return whether a listener may have a value of its own."""
    return key in _OF_LISTENERS or key.startswith(_PREFIXES_OF_LISTENERS)


def find_key(cls: type[Any], name: str) -> Setting | None:
    """Return a key; for one of a single listener, its base with the way in which the former changes."""
    known = keys_of(cls)
    if (found := known.get(name)) is not None:
        return found
    parts = parse_listener_key(name)
    if parts is None or parts.listener != parts.listener.lower() or not may_differ_by_listener(parts.key):
        return None
    if parts.mechanism is not None and not parts.key.startswith(_OF_MECHANISMS):
        return None
    base = known.get(parts.key)
    return None if base is None else base._replace(update=_update_of_listener(base))


def _update_of_listener(base: Setting) -> Update:
    """Return how a listener's own value changes: security is each broker's own.

    As in Kafka, all of them may change, also those that cannot for all listeners at once.
    """
    return base.update if base.name in _CLUSTER_WIDE else "per-broker"


def overrides_of(overrides: Mapping[str, str], listener: str, mechanism: str | None) -> dict[str, str]:
    """Return the texts of one listener's own keys, by the key without its prefix; a mechanism's own win."""
    found: dict[str, str] = {}
    for wanted in (None,) if mechanism is None else (None, mechanism.lower()):
        for name, text in overrides.items():
            parts = parse_listener_key(name)
            if parts is not None and parts[:2] == (listener.lower(), wanted):
                found[parts.key] = text
    return found


def values_of(cls: type[Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Parse settings, all of which are keys; return them by field. Raises ConfigError."""
    known = keys_of(cls)
    values: dict[str, Any] = {
        known[name].field: known[name].parse(text) for name, text in settings.items() if name in known
    }
    own = {name: text for name, text in settings.items() if name not in known}
    for name, text in own.items():
        if (base := find_key(cls, name)) is not None:
            _parse_own(base, name, text)
    return values | ({OVERRIDES: tuple(sorted(own.items()))} if own else {})


def _parse_own(base: Setting, name: str, text: str) -> None:
    try:
        base.parse(text)
    except ConfigError as error:
        raise ConfigError(name, error.problem) from None
