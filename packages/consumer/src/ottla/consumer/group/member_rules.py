"""What a member of a group may be doing, and the facts that do not change while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ottla.client.retry import Backoff
from ottla.consumer.assignors import Assignor


class Phase(Enum):
    """What a member is doing."""

    OUT = "out"
    PREPARING = "preparing"
    JOINING = "joining"
    LOOKING_UP = "looking up"
    SYNCING = "syncing"
    REVOKING = "revoking"
    ADOPTING = "adopting"
    STABLE = "stable"
    WAITING = "waiting"
    LEAVING = "leaving"


REBALANCING = (Phase.JOINING, Phase.LOOKING_UP, Phase.SYNCING)
BEATING = frozenset(Phase) - {Phase.OUT, Phase.JOINING, Phase.WAITING, Phase.LEAVING}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRules:
    """What does not change while a member lives."""

    group_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str | None = None
    rack: str | None = None
    heartbeat_interval_ms: float = 3_000
    max_poll_interval_ms: float = 300_000
    leave_patience_ms: float = 10_000
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0))
