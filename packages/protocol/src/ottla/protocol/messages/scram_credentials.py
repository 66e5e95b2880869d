"""Describe and change SCRAM credentials."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    blob,
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


class ScramCredentialDeletion(Struct):
    name: str = string()
    mechanism: int = int8()


class ScramCredentialUpsertion(Struct):
    name: str = string()
    mechanism: int = int8()
    iterations: int = int32()
    salt: bytes = blob()
    salted_password: bytes = blob()


@message(api_key=51, versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsRequest(Message):
    """Deletes and upserts credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion)


class AlterUserScramCredentialsResult(Struct):
    user: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string()


@message(api_key=51, versions=(0, 0), flexible_from=0)
class AlterUserScramCredentialsResponse(Message):
    """Says whether each user was changed."""

    throttle_time_ms: int = int32()
    results: list[AlterUserScramCredentialsResult] = array(AlterUserScramCredentialsResult)
