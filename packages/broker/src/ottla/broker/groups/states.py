"""What a classic group may do: its states and their order, its limits, what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ottla.broker.groups.events import GroupState
from ottla.broker.values import frozen

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a member may wait for its first generation; without an id it cannot send heartbeats."""

SHORTEST_SECOND_WAIT_MS: Final = 1_000

PREVIOUS_STATES: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
"""From which states each state may be entered."""


@frozen(kw_only=True)
class GroupLimits:
    """What the broker allows groups, from its configuration."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


class Wait(Enum):
    """What a group's deadlines are for."""

    SESSION = "session"
    PENDING_MEMBER = "pending member"
    REBALANCE = "rebalance"
    SYNCS = "syncs"
