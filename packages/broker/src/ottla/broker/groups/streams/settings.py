"""The settings of one streams group, and the topics of the cluster as a group sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.groups.assigned.topics import GroupTopics
from ottla.client.config_definition import MAX_INT, MAX_LONG
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig

STANDBY_REPLICAS: Final = "num.standby.replicas"
RACK_AWARE_TAGS: Final = "rack.aware.assignment.tags"


@frozen(kw_only=True)
class StreamsSettings:
    """The settings of one group: its own, else those of the broker."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000
    assignment_interval_ms: int = 1_000
    task_offset_interval_ms: int = 60_000
    acceptable_recovery_lag: int = 10_000
    rack_aware_tags: tuple[str, ...] = ()

    @property
    def assignment_configs(self) -> tuple[tuple[str, str], ...]:
        """The settings whose change asks for a new assignment, as the group's record stores them."""
        configs = [(STANDBY_REPLICAS, str(self.standby_replicas))]
        if self.rack_aware_tags:
            configs.append((RACK_AWARE_TAGS, ",".join(self.rack_aware_tags)))
        return tuple(configs)


def settings_of(config: BrokerConfig, own: Mapping[str, str]) -> StreamsSettings:
    """Return the settings of a group: its own within the broker's bounds, else the broker's."""

    def number(key: str, default: int, least: int = 0, most: int = MAX_INT) -> int:
        text = own.get(f"streams.{key}")
        return default if text is None else min(max(int(text), least), most)

    tags = own.get("streams.rack.aware.assignment.tags")
    return StreamsSettings(
        session_timeout_ms=number(
            "session.timeout.ms",
            config.group_streams_session_timeout_ms,
            config.group_streams_min_session_timeout_ms,
            config.group_streams_max_session_timeout_ms,
        ),
        heartbeat_interval_ms=number(
            "heartbeat.interval.ms",
            config.group_streams_heartbeat_interval_ms,
            config.group_streams_min_heartbeat_interval_ms,
            config.group_streams_max_heartbeat_interval_ms,
        ),
        max_size=config.group_streams_max_size,
        standby_replicas=number(
            "num.standby.replicas",
            config.group_streams_num_standby_replicas,
            most=config.group_streams_max_standby_replicas,
        ),
        initial_rebalance_delay_ms=number(
            "initial.rebalance.delay.ms", config.group_streams_initial_rebalance_delay_ms
        ),
        assignment_interval_ms=number(
            "assignment.interval.ms",
            config.group_streams_assignment_interval_ms,
            config.group_streams_min_assignment_interval_ms,
            config.group_streams_max_assignment_interval_ms,
        ),
        task_offset_interval_ms=number(
            "task.offset.interval.ms",
            config.group_streams_task_offset_interval_ms,
            config.group_streams_min_task_offset_interval_ms,
        ),
        acceptable_recovery_lag=number(
            "acceptable.recovery.lag", config.group_streams_acceptable_recovery_lag, most=MAX_LONG
        ),
        rack_aware_tags=config.group_streams_rack_aware_assignment_tags
        if tags is None
        else tuple(tag for part in tags.split(",") if (tag := part.strip())),
    )


class Topics:
    """The topics of the cluster as one group sees them."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._topics = GroupTopics(metadata)

    def partitions(self, name: str) -> int | None:
        """Return how many partitions a topic has; None where there is none of the name."""
        return self._metadata.partition_count(name) or None

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a number of 64 bits, as records store it, that differs when one of the topics does."""
        return self._topics.hash_of(names)

    def forget(self, names: Iterable[str]) -> None:
        """Compute the hashes of topics again that have changed."""
        self._topics.forget_hashes(names)
