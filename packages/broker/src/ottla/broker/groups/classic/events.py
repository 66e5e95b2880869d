"""The states and events of a classic group, its replies, its limits, and its snapshots in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from ottla.broker.groups.kinds import (
    Loaded,
    NotWritten,
    Removed,
    StepOutcome,
    Succeeded,
    TimePassed,
    Token,
    Unloaded,
)
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import frozen, replace

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a new member may wait for its first generation: without an id it cannot send heartbeats."""

SHORTEST_SECOND_WAIT_MS: Final = 1_000


class GroupState(Enum):
    """The states of a classic group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


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


# ---- snapshots in the log


@frozen(kw_only=True)
class MemberSnapshot:
    """One member as the log stores it; the subscription is the one for the group's protocol."""

    member_id: str
    instance_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


@frozen(kw_only=True)
class GroupSnapshot:
    """A group as the log stores it; `state_since_ms` is wall-clock time, -1 when the log has none."""

    group_id: str
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    state_since_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


class Reason(Enum):
    """Why a group is written."""

    EMPTIED = "emptied"
    ASSIGNED = "assigned"
    STATIC_MEMBER_REPLACED = "static member replaced"


@frozen(kw_only=True)
class Replacement:
    """A static member that joined under a new member id, and what it was before (KIP-345)."""

    instance_id: str
    new_member_id: str
    old_member_id: str
    old_leader_id: str | None
    old_protocols: tuple[tuple[str, bytes], ...]
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int
    may_skip_assignment: bool = False


@frozen(kw_only=True)
class Persist:
    """A snapshot to be written; `Persisted` brings the group the result."""

    reason: Reason
    snapshot: GroupSnapshot
    replacement: Replacement | None = None


# ---- events


@frozen(kw_only=True)
class Join:
    """JoinGroup: a member wants to be in the next generation.

    `new_member_id` is the id for a member that has none: any text that no other member has.
    """

    token: Token
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    require_known_member_id: bool = False
    may_skip_assignment: bool = False
    """Whether the member understands an answer with `JoinResult.skip_assignment`."""
    new_member_id: str = ""


@frozen(kw_only=True)
class Sync:
    """SyncGroup: a member asks for its assignment; the leader's request carries all assignments."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@frozen(kw_only=True)
class Heartbeat:
    """Heartbeat: a member is alive."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None


@frozen
class MemberIdentity:
    """One member of LeaveGroup: by member id, or by instance id alone when an administrator removes it."""

    member_id: str
    instance_id: str | None = None


@frozen(kw_only=True)
class Leave:
    """LeaveGroup: members leave, or an administrator removes them."""

    token: Token
    members: tuple[MemberIdentity, ...]


@frozen
class Persisted:
    """A snapshot is committed, or its write failed."""

    persist: Persist
    error: ErrorCode = ErrorCode.NONE


Event: TypeAlias = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | TimePassed
    | Persisted
    | Loaded
    | Unloaded
    | Removed
    | Succeeded
    | NotWritten
)


# ---- replies


@frozen
class JoinedMember:
    """One member, as the leader gets it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@frozen(kw_only=True)
class JoinResult:
    """The answer to a join; only the leader gets `members`."""

    error: ErrorCode
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    """Whether the leader must not assign: the generation goes on with its assignment (KIP-814)."""


@frozen(kw_only=True)
class SyncResult:
    """The answer to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@frozen
class HeartbeatResult:
    """The answer to a heartbeat."""

    error: ErrorCode


@frozen
class LeaveResult:
    """The answer to a leave: one error for each member, in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()


Result: TypeAlias = JoinResult | SyncResult | HeartbeatResult | LeaveResult


@frozen
class MemberJoined:
    """The answer to the join of one of many members, made when it is sent.

    `generation` is the answer that all members share but the leader: only the member id is their own.
    """

    token: Token
    member_id: str
    generation: JoinResult

    @property
    def result(self) -> JoinResult:
        """The answer."""
        return replace(self.generation, member_id=self.member_id)


@frozen
class MemberSynced:
    """The assignment of one of many members, an answer that is made when it is sent."""

    token: Token
    assignment: bytes
    generation: SyncResult

    @property
    def result(self) -> SyncResult:
        """The answer."""
        return replace(self.generation, assignment=self.assignment)


@dataclass(slots=True)
class Outcome(StepOutcome):
    """The effects of a step of a classic group: it writes the snapshots of `persist`, and no other records.

    `rebalanced` counts the generations that got their assignment from the leader during the step.
    """

    persist: list[Persist] = field(default_factory=list)


class Wait(StrEnum):
    """The kinds of deadlines of a group; strings, because keys of deadlines are hashed natively then."""

    SESSION = "session"
    PENDING_MEMBER = "pending member"
    REBALANCE = "rebalance"
    SYNCS = "syncs"
