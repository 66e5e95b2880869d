"""The clocks and random numbers of the machine, which no other Python module of the clients reads; threads.

Functions that decide take `now_ms` and chance as arguments. Tasks measure time by the event loop's clock,
`asyncio.get_running_loop().time()`, which a test replaces together with the loop. The time of day, a clock
for threads without a loop, and chance are taken from here; ruff rejects `time`, `random` and `secrets` in all
other modules of the clients. Native code has clocks of its own: `monotonic_clock.h` of the consumer and
`wall_clock.h` of the producer.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

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


LOGIN_THREADS: Final = 4


def login_threads() -> ThreadPoolExecutor:
    """Return the threads of this process that ask servers of Kerberos and of tokens.

    They are not the event loop's own: a server that does not answer holds a step for half a minute, and would
    keep an application's, or a broker's, other work waiting.
    """
    return _threads_of(os.getpid())


@cache
def _threads_of(process: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(LOGIN_THREADS, "logins")  # a forked process has none of its parent's threads
