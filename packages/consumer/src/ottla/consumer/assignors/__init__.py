"""Assignors: how the leader of a group assigns the partitions to its members.

The results are those of the Java client's assignors for the same members, so that in a group of several kinds
of clients it does not matter who leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.consumer.assignors.assignor import (
    Assigned,
    Assignor,
    MemberSubscription,
    RebalanceProtocol,
    TopicRacks,
    shared_protocol,
)
from ottla.consumer.assignors.stateless import RangeAssignor, RoundRobinAssignor
from ottla.consumer.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

BUILT_IN: Final[dict[str, type[Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def assignors(specs: str | Assignor | Iterable[str | Assignor]) -> tuple[Assignor, ...]:
    """Return assignors, given by name or as objects, preferred first.

    Names are Kafka's short ones; a Java class name counts as the one it ends with. Raises ValueError for a
    name that is not known, for none at all, and for two of one name.
    """
    found = tuple(_assignor(spec) for spec in _listed(specs))
    names = [assignor.name for assignor in found]
    if not found or len(set(names)) < len(names):
        raise ValueError(f"give one assignor or several different ones, not {names}")
    shared_protocol(found)
    return found


def _listed(specs: str | Assignor | Iterable[str | Assignor]) -> list[str | Assignor]:
    if isinstance(specs, str):
        return [*specs.split(",")]
    return list(specs) if isinstance(specs, Iterable) else [specs]


def _assignor(spec: str | Assignor) -> Assignor:
    if not isinstance(spec, str):
        made: Assignor = spec() if isinstance(spec, type) else spec
        if any(not hasattr(made, name) for name in ("name", "protocols", "user_data", "assign")):
            raise ValueError(
                f"{spec!r} is no assignor here, as those of other clients are not; name one of "
                f"{', '.join(BUILT_IN)}, or give an object with what ottla.consumer.assignors.Assignor has"
            )
        return made
    wanted = spec.strip()
    for name, kind in BUILT_IN.items():
        if wanted in (name, f"org.apache.kafka.clients.consumer.{kind.__name__}"):
            return kind()
    raise ValueError(f"there is no assignor {wanted!r}; there are {', '.join(BUILT_IN)}, or give an object")


__all__ = [
    "Assigned",
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "TopicRacks",
    "assignors",
    "shared_protocol",
]
