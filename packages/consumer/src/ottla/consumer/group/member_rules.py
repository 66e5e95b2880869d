"""The phases of a group member, and its settings that never change."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ottla.client.retry import Backoff
from ottla.consumer.assignors import Assignor


class Phase(Enum):
    """The phase of a member."""

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


JOIN_PHASES = (Phase.JOINING, Phase.LOOKING_UP, Phase.SYNCING)
HEARTBEAT_PHASES = frozenset(Phase) - {Phase.OUT, Phase.JOINING, Phase.WAITING, Phase.LEAVING}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRules:
    """The settings of a member."""

    group_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str | None = None
    rack: str | None = None
    heartbeat_interval_ms: float = 3_000
    max_poll_interval_ms: float = 300_000
    leave_timeout_ms: float = 10_000
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0))
