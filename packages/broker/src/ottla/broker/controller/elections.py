"""Who leads a partition: pure choices over an assignment, an ISR and the living.

A leader is the first in assignment order that is alive and in sync. What differs between the
strategies is which replicas are asked and what becomes of the ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

Alive = Callable[[int], bool]


class Choice(NamedTuple):
    """An elected leader, the ISR it starts with, and whether acknowledged records may be lost."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def elect_for_offline(
    replicas: Sequence[int], isr: Collection[int], alive: Alive, *, unclean_allowed: bool
) -> Choice | None:
    """Replace a leader that is gone. Out-of-sync replicas only when that is allowed."""
    in_sync = tuple(member for member in isr if alive(member))
    for replica in replicas:
        if replica in in_sync:
            return Choice(replica, in_sync)
    if unclean_allowed:
        for replica in replicas:
            if alive(replica):
                return Choice(replica, (replica,), unclean=True)
    return None


def elect_preferred(replicas: Sequence[int], isr: Collection[int], alive: Alive) -> Choice | None:
    """Give the leadership to the first replica, if it lives and is in sync."""
    preferred = replicas[0]
    return Choice(preferred, tuple(isr)) if alive(preferred) and preferred in isr else None


def elect_for_reassignment(targets: Sequence[int], isr: Collection[int], alive: Alive) -> Choice | None:
    """Choose among the replicas that stay."""
    for replica in targets:
        if replica in isr and alive(replica):
            return Choice(replica, tuple(isr))
    return None


def elect_for_shutdown(
    replicas: Sequence[int], isr: Collection[int], alive: Alive, leaving: Collection[int]
) -> Choice | None:
    """Move a leadership off brokers that are shutting down, and them out of the ISR."""
    staying = tuple(member for member in isr if member not in leaving)
    for replica in replicas:
        if replica in staying and alive(replica):
            return Choice(replica, staying)
    return None


def imbalance(preferring: int, led_elsewhere: int) -> float:
    """The share of partitions preferring a broker that somebody else leads."""
    return led_elsewhere / preferring if preferring else 0.0
