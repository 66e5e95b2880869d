"""Partition leader election: pure choices over an assignment, an ISR and the live brokers.

The leader is the first replica in assignment order that is alive and in sync. The strategies differ in the
replicas that they consider and in the ISR that the leader starts with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ottla.broker.controller.controller_context import NO_LEADER

Alive = Callable[[int], bool]


class Choice(NamedTuple):
    """An elected leader, the ISR it starts with, and whether acknowledged records may be lost."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def elect_for_offline(
    replicas: Sequence[int], isr: Collection[int], alive: Alive, *, unclean_allowed: bool
) -> Choice | None:
    """Replace a dead leader; by an out-of-sync replica only if `unclean_allowed`."""
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
    """Elect the first replica of the assignment, if it is alive and in sync."""
    preferred = replicas[0]
    return Choice(preferred, tuple(isr)) if alive(preferred) and preferred in isr else None


def elect_for_shutdown(
    replicas: Sequence[int], isr: Collection[int], alive: Alive, leaving: Collection[int]
) -> Choice | None:
    """Move a leadership off brokers that shut down, and remove them from the ISR."""
    staying = tuple(member for member in isr if member not in leaving)
    for replica in replicas:
        if replica in staying and alive(replica):
            return Choice(replica, staying)
    return None


def elect_for_reassignment(
    replicas: Sequence[int], isr: Collection[int], alive: Alive, leader: int
) -> Choice | None:
    """Keep the leader if it stays, else elect; the ISR loses former replicas, also live ones."""
    staying = tuple(member for member in isr if member in replicas)
    if not staying:
        return None
    if leader in staying and alive(leader):
        return Choice(leader, staying)
    for replica in replicas:
        if replica in staying and alive(replica):
            return Choice(replica, staying)
    return Choice(NO_LEADER, staying)


def imbalance(preferring: int, led_elsewhere: int) -> float:
    """The share of the partitions that prefer a broker and are led by another one."""
    return led_elsewhere / preferring if preferring else 0.0
