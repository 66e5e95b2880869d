"""The settings that a new topic is given."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config import ConfigError, parse_topic_overrides
from ottla.protocol.errors import InvalidConfig


def checked_overrides(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Check the settings of a topic; raises InvalidConfig for the first invalid one."""
    if missing := [name for name, value in configs.items() if value is None]:
        raise InvalidConfig(f"Null value not supported for topic configs: {', '.join(missing)}")
    overrides = {name: value for name, value in configs.items() if value is not None}
    try:
        parse_topic_overrides(overrides)
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None
    return overrides
