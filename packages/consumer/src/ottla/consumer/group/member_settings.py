"""The settings of a group member that the state machine needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.client.retry import Backoff
from ottla.consumer.assignors import Assignor
from ottla.consumer.errors import GroupFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a member; they never change."""

    group_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str | None = None
    rack: str | None = None
    heartbeat_interval_ms: float = 3_000
    max_poll_interval_ms: float = 300_000
    leave_timeout_ms: float = 10_000
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0))

    def assignor(self, name: str) -> Assignor:
        """Return the assignor that the group chose. Raises GroupFailed if this member lacks it."""
        for assignor in self.assignors:
            if assignor.name == name:
                return assignor
        raise GroupFailed(f"the group chose the assignor {name!r}, which this member lacks")
