"""Records as lines: escapes of options, and one JSON object per record, without loss in both directions."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

FIELDS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""The fields of a record in JSON, in their order."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
_WANTED = 'text, {"base64": "…"} or null'

Headers = list[tuple[str, bytes | None]]


class JsonRecord(NamedTuple):
    """The parts of a JSON record that a producer takes; topic and offset say where it came from."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None


def unescape(text: str) -> str:
    r"""Turn `\t`, `\n`, `\r`, `\0` and `\\` of an option into what they stand for."""
    return re.sub(r"\\([tnr0\\])", lambda found: _ESCAPES[found[1]], text)


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as JSON has them: as text, or as base64 where they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_headers(headers: Iterable[tuple[str, bytes | None]]) -> list[list[object]]:
    """Return headers as a JSON list of pairs: they keep their order, and names may repeat."""
    return [[name, json_bytes(value)] for name, value in headers]


def from_json(line: bytes) -> JsonRecord:
    """Read a record that `json_bytes` and `json_headers` wrote. Raises ValueError that names the field."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object with {', '.join(FIELDS)}")
    if unknown := sorted(found.keys() - set(FIELDS)):
        raise ValueError(f"{unknown[0]!r} is not a field of a record: {', '.join(FIELDS)}")
    if "value" not in found:
        raise ValueError("has no value; a tombstone has the value null")
    return JsonRecord(
        _bytes("key", found.get("key")),
        _bytes("value", found["value"]),
        _headers(found.get("headers") or []),
        _number("partition", found.get("partition")),
        _number("timestamp_ms", found.get("timestamp_ms")),
    )


def _bytes(field: str, value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case {"base64": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{field} is not base64: {error}") from None
    raise ValueError(f"{field} must be {_WANTED}, not {value!r}")


def _headers(value: Any) -> Headers:
    match value:
        case list() if all(
            isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
        ):
            return [(name, _bytes(f"header {name}", given)) for name, given in value]
    raise ValueError("headers must be a list of [name, value]")


def _number(field: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    if field == "timestamp_ms" and value == -1:
        return None
    raise ValueError(f"{field} must be a whole number from 0, not {value!r}")
