"""The settings of one share group for its members: how often they heartbeat, and how often it assigns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.group import bounded

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig


class ShareGroupIntervals(NamedTuple):
    """The intervals of one group: its own, else those of the broker."""

    session_timeout_ms: int
    """How long a member may be silent."""
    heartbeat_interval_ms: int
    """How often members are asked to heartbeat."""
    assignment_interval_ms: int
    """The least time between two assignments."""


def intervals_of(config: BrokerConfig, own: Mapping[str, str]) -> ShareGroupIntervals:
    """Return the intervals of a group that has these settings of its own."""
    return ShareGroupIntervals(
        bounded(
            own.get("share.session.timeout.ms"),
            config.group_share_session_timeout_ms,
            config.group_share_min_session_timeout_ms,
            config.group_share_max_session_timeout_ms,
        ),
        bounded(
            own.get("share.heartbeat.interval.ms"),
            config.group_share_heartbeat_interval_ms,
            config.group_share_min_heartbeat_interval_ms,
            config.group_share_max_heartbeat_interval_ms,
        ),
        bounded(
            own.get("share.assignment.interval.ms"),
            config.group_share_assignment_interval_ms,
            config.group_share_min_assignment_interval_ms,
            config.group_share_max_assignment_interval_ms,
        ),
    )
