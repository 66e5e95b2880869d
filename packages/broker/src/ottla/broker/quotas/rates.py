"""Rates over windows and the quotas of one client, shared by the fast paths and the general path.

They are compiled (`_rates.pyx`), because a fast path charges a request in tens of nanoseconds. Time is an
argument or an injected clock; nothing here waits.
"""

from typing import Final

from ottla.broker.quotas._rates import QuotaBucket, SampledRate, SessionQuotas, ThrottleTimes, TokenBucket

__all__ = [
    "STALE",
    "UNLIMITED",
    "QuotaBucket",
    "SampledRate",
    "SessionQuotas",
    "ThrottleTimes",
    "TokenBucket",
]


def _no_time() -> float:
    return 0.0


UNLIMITED: Final = SessionQuotas(_no_time)
"""The quotas of a session where there are none."""
STALE: Final = SessionQuotas(_no_time)
"""The quotas of a session before it has looked them up: the general path does, with its next request."""
STALE.is_stale = True
