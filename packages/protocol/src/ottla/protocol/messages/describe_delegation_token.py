"""List delegation tokens."""

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
    nullable_array,
    string,
)


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = string()
    principal_name: str = string()


@message(api_key=41, versions=(0, 3), flexible_from=2)
class DescribeDelegationTokenRequest(Message):
    """Asks for the tokens of some owners, or all (KIP-48)."""

    owners: list[DescribeDelegationTokenOwner] | None = nullable_array(DescribeDelegationTokenOwner)


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = string()
    principal_name: str = string()


class DescribedDelegationToken(Struct):
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string(since=3)
    token_requester_principal_name: str = string(since=3)
    issue_timestamp: int = int64()
    expiry_timestamp: int = int64()
    max_timestamp: int = int64()
    token_id: str = string()
    hmac: bytes = blob()
    renewers: list[DescribedDelegationTokenRenewer] = array(DescribedDelegationTokenRenewer)


@message(api_key=41, versions=(0, 3), flexible_from=2)
class DescribeDelegationTokenResponse(Message):
    """Lists tokens; version 3 adds their requesters (KIP-373)."""

    error_code: int = int16()
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken)
    throttle_time_ms: int = int32()
