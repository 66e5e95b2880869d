"""End a delegation token."""

from __future__ import annotations

from ottla.protocol.schema import Message, blob, int16, int32, int64, message


@message(api_key=40, versions=(0, 2), flexible_from=2)
class ExpireDelegationTokenRequest(Message):
    """Changes or ends a token's life (KIP-48)."""

    hmac: bytes = blob()
    expiry_time_period_ms: int = int64()


@message(api_key=40, versions=(0, 2), flexible_from=2)
class ExpireDelegationTokenResponse(Message):
    """Gives the expiry."""

    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
