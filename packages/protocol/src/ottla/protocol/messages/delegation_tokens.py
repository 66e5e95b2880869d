"""Create, prolong, end and list delegation tokens."""

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
