"""The events of a share group, and the answer to a heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.groups.share.members import NOTHING
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.groups.kinds import Token
    from ottla.broker.groups.share.assignor import Assignment

JOINING: Final = 0
LEAVING: Final = -1


@frozen(kw_only=True)
class ShareHeartbeat:
    """A member joins (epoch 0), is alive, or leaves (-1). Nothing has changed where a field is None."""

    token: Token = None
    member_id: str
    epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""


@frozen
class StateInitialized:
    """The state of these partitions has begun, or could not begin."""

    partitions: Mapping[UUID, frozenset[int]]
    has_failed: bool = False
    token: Token = None


@frozen
class OffsetsChange:
    """The state of these partitions of an empty group begins again: the answer is the epoch of that state."""

    partitions: Mapping[UUID, frozenset[int]]
    token: Token = None


@frozen
class OffsetsDeleted:
    """The state of these topics was deleted."""

    topics: frozenset[UUID]
    token: Token = None


@frozen
class ShareAnswer:
    """The member's epoch, its partitions if they are asked for or have changed, and the state to begin."""

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    state_epoch: int = 0
    to_initialize: Assignment = NOTHING
