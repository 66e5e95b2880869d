"""Rates over windows and the quotas of one client, shared by the fast paths and the general path.

They are compiled (`_rates.pyx`), because a fast path charges a request in tens of nanoseconds. Time is an
argument or an injected clock; nothing here waits.
"""

from ottla.broker.quotas._rates import QuotaBucket, SampledRate, SessionQuotas, ThrottleTimes, TokenBucket

__all__ = ["QuotaBucket", "SampledRate", "SessionQuotas", "ThrottleTimes", "TokenBucket"]
