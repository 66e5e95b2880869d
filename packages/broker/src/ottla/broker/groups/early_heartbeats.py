"""Heartbeats that members are asked for early, because their group is in motion.

The answer to a heartbeat names the time until the next one, and clients keep to it. A member learns only by
its heartbeats that others gave up what it waits for, so a rebalance takes as many intervals as it has steps.
While it lasts members are told a shorter one:

    group epoch changes ---- all members: short, for two configured intervals ----> configured
                             a member that waits: short, for as long as it waits

A member that did not expect the change learns of it after the configured interval, as ever.
"""

from __future__ import annotations

from math import ceil
from typing import Final

BETWEEN_MS: Final = 0.5
"""The time between two early heartbeats, of all groups of a broker: there are at most 2,000 a second."""
INTERVALS_IN_MOTION: Final = 2
"""Configured intervals for which a change of the group epoch keeps a group in motion.

In the first one each member hears of the change. In the second one all heartbeat often, and hear soon of the
next change: members seldom start or stop alone.
"""


class EarlyHeartbeats:
    """The times of the early heartbeats of one broker, each some time behind the one before.

    So members that are told an interval together come back one after the other, and the more they are the
    longer it is, up to the configured one: 10,000 members at once keep that of 5 s.
    """

    def __init__(self, shortest_ms: int) -> None:
        self._shortest_ms = shortest_ms
        self._last_ms = float("-inf")

    def interval_ms(self, configured_ms: int, now_ms: float) -> int:
        """Return the time until an early heartbeat; the configured one if there is no room before it."""
        if not 0 < self._shortest_ms < configured_ms:
            return configured_ms
        at_ms = max(now_ms + self._shortest_ms, self._last_ms + BETWEEN_MS)
        if at_ms >= now_ms + configured_ms:
            return configured_ms
        self._last_ms = at_ms
        return min(ceil(at_ms - now_ms), configured_ms)


class GroupMotion:
    """The motion of one group after a change of its epoch; no record stores it."""

    __slots__ = ("_early", "_epoch", "_until_ms")

    def __init__(self, early: EarlyHeartbeats) -> None:
        self._early = early
        self._epoch: int | None = None
        self._until_ms = float("-inf")

    def interval_ms(
        self, configured_ms: int, now_ms: float, *, stored_epoch: int, epoch: int, waits: bool
    ) -> int:
        """Return the time until the next heartbeat of a member; `epoch` is the group's after the present one.

        A member `waits` when its next heartbeat may give it what it has not got yet.
        """
        if self._epoch is None:
            self._epoch = stored_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._until_ms = now_ms + INTERVALS_IN_MOTION * configured_ms
        if waits or now_ms < self._until_ms:
            return self._early.interval_ms(configured_ms, now_ms)
        return configured_ms
