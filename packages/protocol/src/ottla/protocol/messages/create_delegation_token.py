"""Create a delegation token."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    blob,
    int16,
    int32,
    int64,
    message,
    nullable_string,
    string,
)


class CreatableRenewers(Struct):
    principal_type: str = string()
    principal_name: str = string()


@message(api_key=38, versions=(0, 3), flexible_from=2)
class CreateDelegationTokenRequest(Message):
    """Asks for a token (KIP-48); version 3 asks on behalf of somebody else (KIP-373)."""

    owner_principal_type: str | None = nullable_string(since=3)
    owner_principal_name: str | None = nullable_string(since=3)
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()


@message(api_key=38, versions=(0, 3), flexible_from=2)
class CreateDelegationTokenResponse(Message):
    """Carries the token and its secret."""

    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = blob()
    throttle_time_ms: int = int32()
