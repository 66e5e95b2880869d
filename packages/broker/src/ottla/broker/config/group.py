"""The settings of one group, a resource of type GROUP, in place of the broker's `group.*` keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.keys import keys_of
from ottla.client.config_definition import ConfigError, Setting, at_least, one_of, setting
from ottla.zookeeper.frozen_classes import frozen

BY_DURATION: Final = "by_duration:"
_SESSION_BOUNDED: Final = ("consumer", "share", "streams")


def iso_duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration of days and time (`P1DT2H3M4.5S`).

    Raises ValueError for another text, and for one below zero.
    """
    found = re.fullmatch(
        r"P(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{0,9})?)S)?)?", text.upper()
    )
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no duration such as PT1H")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def _offset_reset(text: str) -> str | None:
    """Accept where a share group may begin."""
    if text.lower() in ("earliest", "latest"):
        return None
    try:
        iso_duration_ms(text.lower().removeprefix(BY_DURATION) if BY_DURATION in text.lower() else "")
    except ValueError:
        return "must be earliest, latest or by_duration: with an ISO 8601 duration such as PT1H"
    return None


@frozen(kw_only=True)
class GroupConfig:
    """The settings that a group may have. Every field is a group-level key of Kafka in snake case."""

    consumer_session_timeout_ms: int = setting(
        45_000, "How long a silent member stays in a consumer group.", at_least(1)
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, "The time between two heartbeats of a member of a consumer group.", at_least(1)
    )
    consumer_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a consumer group.", at_least(0)
    )
    share_session_timeout_ms: int = setting(
        45_000, "How long a silent member stays in a share group.", at_least(1)
    )
    share_heartbeat_interval_ms: int = setting(
        5_000, "The time between two heartbeats of a member of a share group.", at_least(1)
    )
    share_record_lock_duration_ms: int = setting(
        30_000, "How long a record stays acquired by one member of a share group.", at_least(1_000)
    )
    share_delivery_count_limit: int = setting(
        5, "The most deliveries of a record to members of a share group.", at_least(2)
    )
    share_partition_max_record_locks: int = setting(
        2_000, "The most records of a partition that a share group has acquired at once.", at_least(100)
    )
    share_auto_offset_reset: str = setting(
        "latest",
        "Where a share group begins: `earliest`, `latest`, or `by_duration:` with an ISO 8601 duration.",
        _offset_reset,
    )
    share_isolation_level: str = setting(
        "read_uncommitted",
        "Whether a share group reads records of transactions that are open or aborted.",
        one_of("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable: bool = setting(
        True, "Whether members of a share group may extend the time of their records."
    )
    share_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a share group.", at_least(0)
    )
    streams_session_timeout_ms: int = setting(
        45_000, "How long a silent member stays in a streams group.", at_least(1)
    )
    streams_heartbeat_interval_ms: int = setting(
        5_000, "The time between two heartbeats of a member of a streams group.", at_least(1)
    )
    streams_num_standby_replicas: int = setting(0, "Standby replicas of each task.", at_least(0))
    streams_initial_rebalance_delay_ms: int = setting(
        3_000, "How long the first assignment of an empty streams group waits for members.", at_least(0)
    )
    streams_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a streams group.", at_least(0)
    )
    streams_rack_aware_assignment_tags: tuple[str, ...] = setting(
        (), "The client tags over which standby replicas are spread."
    )
    streams_assignor_name: str | None = setting(
        None, "The task assignor of a streams group; by default the broker's first one."
    )
    errors_deadletterqueue_topic_name: str = setting(
        "", "The topic for records of a share group that cannot be processed; empty for none."
    )
    errors_deadletterqueue_copy_record_enable: bool = setting(
        False, "Whether such records are copied with their key and value."
    )


def group_keys() -> Mapping[str, Setting]:
    """List the keys that a group may have, by Kafka's dotted name."""
    return keys_of(GroupConfig)


def synonym_of(key: str) -> str | None:
    """Return the broker's key that is the default of a group's key, if it has one."""
    name = "group.streams.assignors" if key == "streams.assignor.name" else f"group.{key}"
    return name if name in keys_of(BrokerConfig) else None


def bounded(own: str | None, of_broker: int, least: int, greatest: int) -> int:
    """Return a group's own value, within bounds that may have changed since it was set, or the broker's."""
    return of_broker if own is None else min(max(int(own), least), greatest)


def check_group_settings(settings: Mapping[str, str], broker: BrokerConfig) -> None:
    """Check the settings of a group within the broker's bounds. Raises ConfigError."""
    known, values = group_keys(), dict[str, Any]()
    for name, text in settings.items():
        if name not in known:
            raise ConfigError(name, "is not a group configuration")
        values[name] = known[name].parse(text)
    for name, value in values.items():
        _check_bounds(name, value, broker)
    for kind in _SESSION_BOUNDED:
        _check_session(kind, values, broker)
    if str(values.get("errors.deadletterqueue.topic.name", "")).startswith("__"):
        raise ConfigError("errors.deadletterqueue.topic.name", "must not start with __")


def _check_bounds(name: str, value: Any, broker: BrokerConfig) -> None:
    kind, _, rest = name.replace(".", "_").partition("_")
    low = getattr(broker, f"group_{kind}_min_{rest}", None)
    high = getattr(broker, f"group_{kind}_max_{rest.removeprefix('num_')}", None)
    if low is not None and high is not None and not low <= value <= high:
        raise ConfigError(name, f"must be in the range {low} to {high} inclusive")
    if low is None and high is not None and value > high:
        raise ConfigError(name, f"must be less than or equal to {high}")
    if low is not None and high is None and value < low:
        raise ConfigError(name, f"must be greater than or equal to {low}")


def _check_session(kind: str, values: Mapping[str, Any], broker: BrokerConfig) -> None:
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    if session not in values and heartbeat not in values:
        return
    defaults = [
        getattr(broker, f"group_{key.replace('.', '_')}", group_keys()[key].default)
        for key in (session, heartbeat)
    ]
    if values.get(session, defaults[0]) <= values.get(heartbeat, defaults[1]):
        raise ConfigError(session, f"must be greater than {heartbeat}")
