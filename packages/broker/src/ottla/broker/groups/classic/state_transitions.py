"""The state transitions of a classic group, its limits, and its kinds of deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.runtime.frozen_classes import frozen

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation: without an id it cannot send heartbeats."""

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
"""For each state, the states it may be entered from."""


@frozen(kw_only=True)
class GroupLimits:
    """The limits of groups in the broker's configuration."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    max_metadata_bytes: int = 2**31 - 1
    """The most bytes of metadata that all members of a group together may have."""


class Wait(StrEnum):
    """The kinds of deadlines of a group; strings, because keys of deadlines are hashed natively then."""

    SESSION = "session"
    PENDING_MEMBER = "pending member"
    REBALANCE = "rebalance"
    SYNCS = "syncs"
