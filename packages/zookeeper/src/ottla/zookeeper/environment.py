"""The only module of the package that reads the machine's clocks and draws random numbers.

The embedded coordinator's service takes both as arguments; tasks measure time by the event loop's clock.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Final

PASSWORD_BYTES: Final = 16
SECRET_BYTES: Final = 32

monotonic_s: Final[Callable[[], float]] = time.monotonic
"""Seconds that never step back, for threads that have no event loop."""


share: Final[Callable[[], float]] = random.random
"""A random number from 0 to 1, for jitter."""


def now_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_password() -> bytes:
    """Return a session's password: unguessable bytes."""
    return os.urandom(PASSWORD_BYTES)


def new_secret() -> str:
    """Return an unguessable secret in printable characters."""
    return os.urandom(SECRET_BYTES).hex()
