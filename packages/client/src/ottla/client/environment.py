"""The only Python module of the clients that reads the machine's clocks and draws random numbers.

Functions that decide take `now_ms` and chance as arguments. Tasks measure time by the event loop's clock,
`asyncio.get_running_loop().time()`, which a test replaces together with the loop. The time of day, a clock
for threads without a loop, and chance are taken from here; ruff rejects `time`, `random` and `secrets` in all
other modules of the clients. Native code has clocks of its own: `monotonic_clock.h` of the consumer and
`wall_clock.h` of the producer.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from typing import Final

chance: Final[Callable[[], float]] = random.random
"""A random number from 0 up to 1, for jitter and for choosing among equals."""

monotonic_s: Final[Callable[[], float]] = time.monotonic
"""Seconds that never step back, for threads that have no event loop."""


def now_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def nonce() -> str:
    """Return unguessable text, for a login."""
    return secrets.token_urlsafe(24)


def random_bytes(length: int) -> bytes:
    """Return unguessable bytes, for a salt."""
    return secrets.token_bytes(length)


def unique_suffix() -> str:
    """Return eight hexadecimal digits that keep two names apart."""
    return secrets.token_hex(4)
