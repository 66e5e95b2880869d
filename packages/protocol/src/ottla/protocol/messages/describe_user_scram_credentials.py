"""Describe SCRAM credentials."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    message,
    nullable_array,
    nullable_string,
    string,
)


class UserName(Struct):
    name: str = string()


@message(api_key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsRequest(Message):
    """Asks for some users' credentials, or all (KIP-554)."""

    users: list[UserName] | None = nullable_array(UserName)


class CredentialInfo(Struct):
    mechanism: int = int8()
    iterations: int = int32()


class DescribeUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    credential_infos: list[CredentialInfo] = array(CredentialInfo)


@message(api_key=50, versions=(0, 0), flexible_from=0)
class DescribeUserScramCredentialsResponse(Message):
    """Lists mechanisms and iterations; never secrets."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = nullable_string()
    results: list[DescribeUserScramCredentialsResult] = array(DescribeUserScramCredentialsResult)
