"""The phases of a group member between joining and leaving."""

from __future__ import annotations

from enum import Enum


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
AWAITED_PHASES = (Phase.JOINING, Phase.SYNCING)
HEARTBEAT_PHASES = frozenset(Phase) - {Phase.OUT, *AWAITED_PHASES, Phase.WAITING, Phase.LEAVING}
"""Not while a JoinGroup or SyncGroup is outstanding: the coordinator regards its sender as alive, and answers
a heartbeat on the same connection only after it. That would be too late, and close the connection."""
