"""Take the broker's settings from environment variables: `OTTLA_LOG_RETENTION_HOURS=24`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.keys import LISTENER_PREFIX, find_key
from ottla.broker.config.unsupported_keys import IGNORED, is_known, nearest_key
from ottla.client.config_definition import ConfigError

PREFIX: Final = "OTTLA_"

OTHER_COMMANDS: Final = frozenset(
    {"OTTLA_BOOTSTRAP_SERVER", "OTTLA_PROFILE", "OTTLA_PROFILES", "OTTLA_ZOOKEEPER", "OTTLA_ZOOKEEPER_CONFIG"}
)
"""Variables that Ottla's other commands read."""

_OF_KUBERNETES = re.compile(
    r"OTTLA_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_URL = re.compile(r"(?:tcp|udp|sctp)://")


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return PREFIX + key.replace(".", "_").upper()


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among environment variables, by dotted key.

    Raises `ConfigError` for a variable with the prefix that no command of Ottla reads. Kubernetes sets such
    variables in every container beside a service named ottla; those are left out.
    """
    settings: dict[str, str] = {}
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and not _is_for_others(variable, text):
            settings[_key_of(variable)] = text
    return settings


def _is_for_others(variable: str, text: str) -> bool:
    if variable in OTHER_COMMANDS or _OF_KUBERNETES.fullmatch(variable):
        return True
    return variable.endswith("_PORT") and _URL.match(text) is not None


def _listener_key(dotted: str) -> str | None:
    """Return a key of one listener, whose name may have underscores, and whose mechanism hyphens.

    `listener.name.sasl.ssl.scram.sha.512.sasl.jaas.config` has dots for both.
    """
    if not dotted.startswith(LISTENER_PREFIX):
        return None
    words = dotted.removeprefix(LISTENER_PREFIX).split(".")
    for count in range(1, len(words)):
        rest = re.sub(r"^scram\.sha\.(\d+)\.", r"scram-sha-\1.", ".".join(words[count:]))
        key = f"{LISTENER_PREFIX}{'_'.join(words[:count])}.{rest}"
        if find_key(BrokerConfig, key) is not None:
            return key
    return None


def _key_of(variable: str) -> str:
    key = variable.removeprefix(PREFIX).lower().replace("_", ".")
    if is_known(key):
        return key
    if (of_listener := _listener_key(key)) is not None:
        return of_listener
    for name in IGNORED:  # one of them has a capital letter
        if name.lower() == key:
            return name
    near = _nearest_variable(variable, key)
    problem = "is not a variable of Ottla"
    raise ConfigError(variable, f"{problem}; did you mean {near}?" if near else problem)


def _nearest_variable(variable: str, key: str) -> str | None:
    """Return the variable that is spelled most like an unknown one: of other commands, then of settings."""
    import difflib  # for a mistake only

    if of_others := difflib.get_close_matches(variable, OTHER_COMMANDS, 1, 0.9):
        return of_others[0]
    near = nearest_key(key)
    return variable_of(near) if near else None
