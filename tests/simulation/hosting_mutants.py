"""Changed rules of what hosts groups, whatever their kind."""

from __future__ import annotations

from typing import Any

from ottla.broker.groups.hosting.hosted_groups import HostedGroups
from simulation.mutants import Patch


def answers_come_before_replicas() -> list[Patch]:
    """A member gets its answer before its records are committed."""
    original = HostedGroups._write_records

    def write_records(self: Any, hosted: Any, outcome: Any) -> Any:
        replies, outcome.replies = outcome.replies, []
        written = original(self, hosted, outcome)
        self._reply(replies)
        return written

    return [(HostedGroups, "_write_records", write_records)]
