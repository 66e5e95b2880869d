"""Records as lines: escapes of options, and one JSON object per record, without loss in both directions."""

from __future__ import annotations

import base64
import binascii
import json
import re
import string
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

FIELDS: Final = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
"""The fields of a record in JSON, in their order."""

FORMAT_FIELDS: Final = (*FIELDS, "timestamp")
"""The fields that a format may have: also the time in ISO."""

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


def iso_time(timestamp_ms: int) -> str:
    """Return a timestamp as ISO has it, in UTC; nothing where a record has none."""
    if timestamp_ms < 0:
        return ""
    return datetime.fromtimestamp(timestamp_ms / 1_000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def record_format(text: str) -> Callable[[Any, str], str]:
    """Return a function that formats a record, with what null keys and values are shown as.

    The text is a Python format string of FORMAT_FIELDS, or a format of kcat or rpk: `%t %p %o %k %s`. Raises
    ValueError that says which fields there are.
    """
    template = unescape(text)
    if "%" in template and not _FIELD_IN_BRACES.search(template):
        return _percent_format(template)
    used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    if unknown := used - set(FORMAT_FIELDS):
        raise ValueError(f"knows {', '.join(FORMAT_FIELDS)}, not {', '.join(sorted(unknown))}")

    def formatted(record: Any, null: str) -> str:
        return template.format(**{name: _LETTERS[_FIELD_LETTERS[name]](record, null) for name in used})

    return formatted


def _percent_format(template: str) -> Callable[[Any, str], str]:
    parts = re.split(r"%(.)", template, flags=re.DOTALL)
    texts, letters = parts[::2], parts[1::2]
    if unknown := [letter for letter in letters if letter not in _LETTERS and letter != "%"]:
        known = " ".join(f"%{letter}" for letter in _LETTERS)
        raise ValueError(f"%{unknown[0]} is no field of kcat or rpk that is known here: {known}")
    if "%" in texts[-1]:
        raise ValueError("ends with a single %; %% is a percent sign")

    def formatted(record: Any, null: str) -> str:
        shown = (letter if letter == "%" else str(_LETTERS[letter](record, null)) for letter in letters)
        return texts[0] + "".join(map("".join, zip(shown, texts[1:], strict=True)))

    return formatted


def _shown_bytes(data: bytes | None, null: str) -> str:
    return null if data is None else data.decode("utf-8", "backslashreplace")


def _shown_headers(record: Any, null: str) -> str:
    return ",".join(f"{key}={_shown_bytes(value, null)}" for key, value in record.headers)


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


_LETTERS: Final[dict[str, Callable[[Any, str], object]]] = {
    "t": lambda record, null: record.topic,
    "p": lambda record, null: record.partition,
    "o": lambda record, null: record.offset,
    "T": lambda record, null: record.timestamp_ms,
    "d": lambda record, null: record.timestamp_ms,
    "i": lambda record, null: iso_time(record.timestamp_ms),
    "k": lambda record, null: _shown_bytes(record.key, null),
    "K": lambda record, null: _length(record.key),
    "s": lambda record, null: _shown_bytes(record.value, null),
    "v": lambda record, null: _shown_bytes(record.value, null),
    "S": lambda record, null: _length(record.value),
    "V": lambda record, null: _length(record.value),
    "h": _shown_headers,
    "H": lambda record, null: len(record.headers),
}
"""kcat's letters and rpk's; both have the same topic, partition, offset, key and headers."""
_FIELD_LETTERS: Final = dict(zip(FORMAT_FIELDS, "tpoTksh" + "i", strict=True))
_FIELD_IN_BRACES: Final = re.compile(r"\{(" + "|".join(FORMAT_FIELDS) + r")[}:!]")


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
