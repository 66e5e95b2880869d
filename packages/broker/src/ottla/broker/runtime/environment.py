"""Time, randomness and the event loop's budget of a broker, as one object that a simulator can replace."""

from __future__ import annotations

import random

from ottla.broker.runtime.clock import Clock, SystemClock
from ottla.broker.runtime.loop_budget import LoopBudget

__all__ = ["Clock", "Environment", "SystemClock"]


class Environment:
    """Clock, randomness and loop budget of one broker.

    Disk goes through `ottla.broker.log.files.file_system`, ZooKeeper through `ottla.zookeeper.session`,
    timers and sockets through the running event loop; each of them can be replaced too.
    """

    __slots__ = ("budget", "clock", "random")

    def __init__(
        self,
        clock: Clock | None = None,
        random: random.Random | None = None,
        *,
        budget: LoopBudget | None = None,
    ) -> None:
        """`budget` is measured on `clock` unless it is given."""
        self.clock: Clock = clock or SystemClock()
        self.random = random or _system_random()
        self.budget = budget or LoopBudget(self.clock.monotonic_ms)


def _system_random() -> random.Random:
    return random.SystemRandom()
