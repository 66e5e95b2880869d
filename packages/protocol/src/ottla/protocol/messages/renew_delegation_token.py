"""Prolong a delegation token."""

from __future__ import annotations

from ottla.protocol.schema import Message, blob, int16, int32, int64, message


@message(api_key=39, versions=(0, 2), flexible_from=2)
class RenewDelegationTokenRequest(Message):
    """Asks for a later expiry (KIP-48)."""

    hmac: bytes = blob()
    renew_period_ms: int = int64()


@message(api_key=39, versions=(0, 2), flexible_from=2)
class RenewDelegationTokenResponse(Message):
    """Gives the new expiry."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
