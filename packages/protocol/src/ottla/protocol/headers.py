"""The headers before requests and responses."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.api import request_header_version, response_header_version
from ottla.protocol.primitives import Buffer, MalformedMessage, Unreadable, skip_tagged_fields

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

_FIXED: Final = struct.Struct(">hhi")
_CLIENT_ID_LENGTH: Final = struct.Struct(">h")
_CORRELATION_ID: Final = struct.Struct(">i")


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
