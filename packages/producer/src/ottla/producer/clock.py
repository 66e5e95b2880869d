"""The producer's clock: that of the event loop, which a test replaces with the loop."""

from __future__ import annotations

import asyncio


def loop_time_ms() -> float:
    """Return the time of the running event loop in milliseconds."""
    return asyncio.get_running_loop().time() * 1_000
