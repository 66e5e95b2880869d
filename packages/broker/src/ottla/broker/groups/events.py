"""What may happen to a classic group, what it answers, and what it wants written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from ottla.broker.values import frozen
from ottla.protocol.errors import ErrorCode

NO_GENERATION = -1
UNKNOWN_MEMBER_ID = ""

Token: TypeAlias = Hashable
"""Stands for a request that waits for its answer; the group only hands it back."""


class GroupState(Enum):
    """The states of a classic group, under the names that clients are shown."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# ---- what is kept in the log


@frozen(kw_only=True)
class MemberSnapshot:
    """One member as the log keeps it; the subscription is that of the group's chosen protocol."""

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
    """A group as the log keeps it; `state_since_ms` is wall-clock time, -1 when the log does not know."""

    group_id: str
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    state_since_ms: int = -1
    members: tuple[MemberSnapshot, ...] = ()


class Reason(Enum):
    """Why a group wants to be written."""

    EMPTIED = "emptied"
    ASSIGNED = "assigned"
    STATIC_MEMBER_REPLACED = "static member replaced"


@frozen(kw_only=True)
class Replacement:
    """A static member that came back under a new member id, and how it was before."""

    instance_id: str
    new_member_id: str
    old_member_id: str
    old_leader_id: str | None
    old_protocols: tuple[tuple[str, bytes], ...]
    old_rebalance_timeout_ms: int
    old_session_timeout_ms: int


@frozen(kw_only=True)
class Persist:
    """Write this snapshot; afterwards tell the group with `Persisted`."""

    reason: Reason
    snapshot: GroupSnapshot
    replacement: Replacement | None = None


# ---- what happens


@frozen(kw_only=True)
class Join:
    """A member wants to be in the next generation.

    `new_member_id` is the id it gets if it has none; its first part may be anything, but the whole is unique.
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
    new_member_id: str = ""


@frozen(kw_only=True)
class Sync:
    """A member asks for its assignment; the leader's sync brings everybody's."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@frozen(kw_only=True)
class Heartbeat:
    """A member is alive."""

    token: Token
    member_id: str
    generation: int
    instance_id: str | None = None


@frozen
class MemberIdentity:
    """Who leaves: by member id, by instance id alone when an administrator says so."""

    member_id: str
    instance_id: str | None = None


@frozen(kw_only=True)
class Leave:
    """Members leave, or are made to."""

    token: Token
    members: tuple[MemberIdentity, ...]


@frozen
class TimePassed:
    """The time the group wanted to be woken at has come."""


@frozen
class Persisted:
    """A snapshot is in the log for good, or could not be brought there."""

    persist: Persist
    error: ErrorCode = ErrorCode.NONE


@frozen
class Loaded:
    """The group was just read from the log: give its members their time."""


@frozen
class Unloaded:
    """Another broker coordinates the group from now on."""


@frozen
class Removed:
    """The empty group is forgotten."""


Event: TypeAlias = Join | Sync | Heartbeat | Leave | TimePassed | Persisted | Loaded | Unloaded | Removed


# ---- what is answered


@frozen
class JoinedMember:
    """What the leader is told of each member."""

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
class Reply:
    """The answer to the request that `token` stands for."""

    token: Token
    result: Result


@dataclass(slots=True)
class Outcome:
    """What a step leaves to be done: write `persist`, send `replies`, come back at `wake_at_ms`.

    `rebalanced` counts generations whose assignment was handed in during the step.
    """

    persist: list[Persist] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    wake_at_ms: float | None = None
    rebalanced: int = 0
