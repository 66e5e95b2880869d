"""The APIs by key: their classes, and the headers before their requests and responses."""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.primitives import Buffer, MalformedMessage, Unreadable, skip_tagged_fields

if TYPE_CHECKING:
    from ottla.protocol.schema import Message


_FIXED: Final = struct.Struct(">hhi")
_CLIENT_ID_LENGTH: Final = struct.Struct(">h")
_CORRELATION_ID: Final = struct.Struct(">i")


class ApiKey(IntEnum):
    """The APIs this package knows, by the number that opens a request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93


_SHARED_MODULES: Final = {
    key: module
    for module, keys in {
        "acls": (ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS),
        "client_quotas": (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS),
        "cluster": (ApiKey.DESCRIBE_CLUSTER, ApiKey.UPDATE_FEATURES),
        "configs": (
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.LIST_CONFIG_RESOURCES,
        ),
        "consumer_groups": (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
        "control_requests": (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA),
        "controller_requests": (ApiKey.ALTER_PARTITION, ApiKey.CONTROLLED_SHUTDOWN),
        "delegation_tokens": (
            ApiKey.CREATE_DELEGATION_TOKEN,
            ApiKey.RENEW_DELEGATION_TOKEN,
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ),
        "groups": (ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS),
        "log_dirs": (ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ALTER_REPLICA_LOG_DIRS),
        "log_offsets": (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DELETE_RECORDS),
        "open_transactions": (
            ApiKey.LIST_TRANSACTIONS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.DESCRIBE_PRODUCERS,
        ),
        "partition_reassignments": (
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ),
        "producer_ids": (ApiKey.INIT_PRODUCER_ID, ApiKey.ALLOCATE_PRODUCER_IDS),
        "sasl": (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE),
        "scram_credentials": (
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ),
        "share_groups": (
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_DESCRIBE,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ),
        "share_sessions": (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE),
        "share_state": (
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE,
            ApiKey.WRITE_SHARE_GROUP_STATE,
            ApiKey.DELETE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ),
        "streams_groups": (
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        ),
        "telemetry": (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY),
        "topic_descriptions": (ApiKey.DESCRIBE_TOPIC_PARTITIONS,),
        "topics": (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS),
        "transactions": (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.END_TXN,
            ApiKey.WRITE_TXN_MARKERS,
        ),
    }.items()
    for key in keys
}
"""The module of APIs that share one; every other API has a module of its own name."""


@cache
def request_class(key: int) -> type[Message]:
    """Return the class of an API's request. Raises ValueError for a key that is unknown."""
    return _message_class(ApiKey(key), "Request")


@cache
def response_class(key: int) -> type[Message]:
    """Return the class of an API's response. Raises ValueError for a key that is unknown."""
    return _message_class(ApiKey(key), "Response")


def request_header_version(key: int, version: int) -> int:
    """Return 2 where the request is flexible, else 1 (KIP-482).

    Version 0, which has no client id, belongs to version 0 of ControlledShutdown alone.
    """
    if version == 0 and key == ApiKey.CONTROLLED_SHUTDOWN:
        return 0
    return 2 if version >= request_class(key).FLEXIBLE_FROM else 1


def response_header_version(key: int, version: int) -> int:
    """Return 1 where the response is flexible, else 0 (KIP-482).

    ApiVersions is always answered with 0: its reader does not know yet what the broker speaks (KIP-511).
    """
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= response_class(key).FLEXIBLE_FROM else 0


header_version = request_header_version


def _message_class(key: ApiKey, suffix: str) -> type[Message]:
    module = import_module(f"ottla.protocol.messages.{_SHARED_MODULES.get(key, key.name.lower())}")
    name = "".join(word.capitalize() for word in key.name.split("_"))
    found: type[Message] = getattr(module, name + suffix)
    return found


class RequestHeader(NamedTuple):
    """The header of a request: its API and version, and the correlation id that its response repeats."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def decode_request_header(buffer: Buffer) -> tuple[RequestHeader, int]:
    """Read the header of the request in `buffer`; return it with the position of the body.

    Raises MalformedMessage, also for an unknown API key: the layout of its header is not known.
    """
    api_key = api_version = -1
    try:
        api_key, api_version, correlation_id = _FIXED.unpack_from(buffer)
        version = request_header_version(api_key, api_version)
        client_id, position = _client_id(buffer) if version else (None, _FIXED.size)
        if version == 2:
            position = skip_tagged_fields(memoryview(buffer), position, len(buffer))
    except (struct.error, IndexError) as error:
        raise _malformed(api_version, len(buffer), "the message ends too early") from error
    except (Unreadable, ValueError) as error:
        reason = "text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _malformed(api_version, 0, reason) from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def _client_id(buffer: Buffer) -> tuple[str | None, int]:
    # The old length of two bytes stays even in flexible headers: an ApiVersions request of any version must
    # be readable for brokers older than itself (KIP-511).
    (length,) = _CLIENT_ID_LENGTH.unpack_from(buffer, _FIXED.size)
    start = _FIXED.size + _CLIENT_ID_LENGTH.size
    if length < 0:
        return None, start
    if length > len(buffer) - start:
        raise Unreadable(f"{length} bytes are announced, {len(buffer) - start} are left")
    return str(buffer[start : start + length], "utf-8"), start + length


def _malformed(version: int, position: int, reason: str) -> MalformedMessage:
    return MalformedMessage("RequestHeader", version, "", position, reason)


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the header's bytes in the version that goes with its API version."""
    version = request_header_version(header.api_key, header.api_version)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id)
    if version == 0:
        return fixed
    name = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(name)
    return fixed + _CLIENT_ID_LENGTH.pack(length) + name + (b"\x00" if version == 2 else b"")


def encode_request(header: RequestHeader, request: Message) -> bytes:
    """Return header and body, without the frame's length."""
    return encode_request_header(header) + request.encode(header.api_version)


def response_header(correlation_id: int, key: int, version: int) -> bytes:
    """Return the header of the response to a request of that API and version."""
    head = _CORRELATION_ID.pack(correlation_id)
    return head + b"\x00" if response_header_version(key, version) else head


def decode_response_header(buffer: Buffer, key: int, version: int) -> tuple[int, int]:
    """Return the correlation id and the position of the body. Raises MalformedMessage."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(buffer)
        position = _CORRELATION_ID.size
        if response_header_version(key, version):
            position = skip_tagged_fields(memoryview(buffer), position, len(buffer))
    except (struct.error, IndexError) as error:
        raise MalformedMessage(
            "ResponseHeader", version, "", len(buffer), "the message ends too early"
        ) from error
    except Unreadable as error:
        raise MalformedMessage("ResponseHeader", version, "", _CORRELATION_ID.size, str(error)) from error
    return correlation_id, position
