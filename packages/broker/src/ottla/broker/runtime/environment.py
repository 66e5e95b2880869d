"""Time and randomness of the broker, as one object that a simulator can replace."""

from __future__ import annotations

import random
import time
from dataclasses import field
from typing import Protocol

from ottla.broker.runtime.frozen_classes import frozen


class Clock(Protocol):
    """Two readings of time, both in milliseconds."""

    def now_ms(self) -> int:
        """Wall-clock time since the epoch, for timestamps of records."""
        ...

    def monotonic_ms(self) -> float:
        """Monotonic time, for waits and timeouts."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6


@frozen
class Environment:
    """Clock and randomness of one broker.

    Disk goes through `ottla.broker.log.files.file_system`, ZooKeeper through `ottla.zookeeper.session`,
    timers and sockets through the running event loop; each of them can be replaced too.
    """

    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.SystemRandom)
