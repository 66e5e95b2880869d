"""The headers before requests and responses."""

from __future__ import annotations

import pytest

from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request,
    encode_request_header,
    request_header_version,
    response_header,
    response_header_version,
)
from ottla.protocol.messages.controller_requests import ControlledShutdownRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.primitives import MalformedMessage

GOLDEN = [
    (RequestHeader(3, 0, 7, "me"), "0003 0000 00000007 0002 6d65"),
    (RequestHeader(3, 1, -1, None), "0003 0001 ffffffff ffff"),
    (RequestHeader(3, 8, 1, ""), "0003 0008 00000001 0000"),
    (RequestHeader(3, 9, 7, "me"), "0003 0009 00000007 0002 6d65 00"),
    (RequestHeader(18, 2, 7, "me"), "0012 0002 00000007 0002 6d65"),
    (RequestHeader(18, 3, 7, "me"), "0012 0003 00000007 0002 6d65 00"),
    (RequestHeader(18, 4, 7, None), "0012 0004 00000007 ffff 00"),
    (RequestHeader(7, 0, 7, None), "0007 0000 00000007"),
    (RequestHeader(7, 1, 7, "me"), "0007 0001 00000007 0002 6d65"),
    (RequestHeader(7, 3, 7, "me"), "0007 0003 00000007 0002 6d65 00"),
]


@pytest.mark.parametrize(("header", "expected"), GOLDEN)
def test_headers_have_the_bytes_kafka_gives_them(header: RequestHeader, expected: str) -> None:
    written = bytes.fromhex(expected)

    assert encode_request_header(header) == written
    assert decode_request_header(written + b"body") == (header, len(written))
    assert decode_request_header(memoryview(written + b"body")) == (header, len(written))


def test_controlled_shutdown_version_0_has_no_client_id() -> None:
    header = RequestHeader(ApiKey.CONTROLLED_SHUTDOWN, 0, 7, "dropped")

    written = encode_request(header, ControlledShutdownRequest(broker_id=5))

    assert written == bytes.fromhex("0007 0000 00000007 00000005")


def test_tagged_fields_of_a_header_are_skipped() -> None:
    written = bytes.fromhex("0003 0009 00000007 0002 6d65 01 00 02 ffff")

    assert decode_request_header(written) == (RequestHeader(3, 9, 7, "me"), len(written))


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="9999"):
        decode_request_header(bytes.fromhex("270f 0000 00000007 ffff"))


@pytest.mark.parametrize("data", ["", "0003", "0003 0000 00000007", "0003 0000 00000007 0005 6d65"])
def test_a_header_cut_short_is_refused(data: str) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_header(bytes.fromhex(data))


def test_a_client_id_that_is_not_text_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        decode_request_header(bytes.fromhex("0003 0000 00000007 0002 c328"))


@pytest.mark.parametrize(
    ("key", "version", "expected"),
    [
        (ApiKey.METADATA, 8, "00000007"),
        (ApiKey.METADATA, 9, "00000007 00"),
        (ApiKey.API_VERSIONS, 0, "00000007"),
        (ApiKey.API_VERSIONS, 3, "00000007"),
        (ApiKey.API_VERSIONS, 4, "00000007"),
    ],
)
def test_response_headers_are_flexible_except_that_of_api_versions(
    key: ApiKey, version: int, expected: str
) -> None:
    written = response_header(7, key, version)

    assert written == bytes.fromhex(expected)
    assert decode_response_header(written, key, version) == (7, len(written))


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_a_request_and_its_response_are_flexible_from_the_same_version(key: ApiKey) -> None:
    for version in range(20):
        if key != ApiKey.API_VERSIONS:
            assert (request_header_version(key, version) == 2) == (response_header_version(key, version) == 1)


def test_header_and_body_make_a_request() -> None:
    header = RequestHeader(ApiKey.METADATA, 1, 7, "me")

    written = encode_request(header, MetadataRequest(topics=None))

    read, position = decode_request_header(written)
    assert read == header
    assert MetadataRequest.decode(written[position:], 1).topics is None
