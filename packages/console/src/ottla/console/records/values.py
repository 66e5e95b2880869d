"""Keys, values and headers as text: JSON set out in lines, text, msgpack or hexadecimal. Pure.

Nothing is lost or changed on the way: numbers of JSON keep their digits, as they are never read as numbers.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import msgpack

from ottla.console.web.formats import printable

Form = Literal["auto", "json", "text", "msgpack", "hex", "registry"]
FORMS: Final[tuple[str, ...]] = get_args(Form)

PART_BYTES: Final = 4_096
"""As much of a value is shown in a list; the rest on the record's own page."""
ALL_BYTES: Final = 2 << 20
"""As much is shown on the record's own page; a longer value is downloaded."""
_DEEPEST: Final = 60
_TOKEN: Final = re.compile(
    # A string lasts to the end of the text where that is cut; it is read once, without a step back.
    r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+',
    re.DOTALL,
)
_REGISTRY_HEADER: Final = 5


class Ambiguous(ValueError):
    """A map has a key twice: readers differ in which of them counts."""


def unambiguous(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return the keys and values of a map. Raises Ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Ambiguous("a key stands twice in one map")
    return found


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text; `form` is the form that it has, "null" for none; `left_bytes` are not shown.

    `schema` is the id or GUID of its schema in a registry, "" where none was asked; `note` says more of it.

    `schema_id` is that of a registry where the value begins as such values do: a zero and four bytes.
    """

    text: str
    form: str
    length: int
    left_bytes: int = 0
    schema_id: int | None = None
    note: str = ""
    schema: str = ""


def shown_value(
    data: bytes | None, form: Form = "auto", most: int = PART_BYTES, length: int | None = None
) -> ShownValue:
    """Return a value in the form asked for, or in the first that fits; hexadecimal fits always.

    `length` is that of the whole value where `data` is the first part of it.
    """
    if data is None:
        return ShownValue("null", "null", 0)
    part, whole = data[:most], max(len(data), length or 0)
    left, schema_id = whole - len(part), _schema_id(data)
    for name, make in _MAKERS.items():
        if form in ("auto", name) and (text := make(part, left)) is not None:
            return ShownValue(text, name, whole, left, schema_id)
    return ShownValue(_hex(part, left), "hex", whole, left, schema_id)


def _schema_id(data: bytes) -> int | None:
    if len(data) < _REGISTRY_HEADER or data[0] != 0:
        return None
    return int.from_bytes(data[1:_REGISTRY_HEADER], "big")


def _json(data: bytes, left: int) -> str | None:
    text = _decoded(data, left)
    if text is None or text[:1] not in '{["-0123456789tfn':
        return None
    if left:  # a part of JSON is not JSON, and is set out all the same
        return printable(set_out(text)) if text[:1] in "{[" else None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return printable(set_out(text))


def set_out(text: str) -> str:
    """Return JSON in lines, its tokens as they were; deep parts stay on one line."""
    parts, depth, before = list[str](), 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        depth -= token in ("}", "]")
        begins_line = before not in ("{", "[") if token in ("}", "]") else before in ("{", "[", ",")
        if begins_line and depth < _DEEPEST:
            parts.append("\n" + "  " * max(depth, 0))
        parts.append(": " if token == ":" else token)
        depth += token in ("{", "[")
        before = token
    return "".join(parts).rstrip(" ")


def _text(data: bytes, left: int) -> str | None:
    text = _decoded(data, left)
    return None if text is None or "\0" in text else printable(text)


def _decoded(data: bytes, left: int) -> str | None:
    """Return UTF-8 as text; a letter that the cut divides is left out."""
    for short in range(4 if left else 1):
        try:
            return data[: len(data) - short].decode()
        except UnicodeDecodeError:
            continue
    return None


def _msgpack(data: bytes, left: int) -> str | None:
    """Return a map or a list of msgpack as JSON, bytes in it as hexadecimal text; None for a key twice."""
    if left or not data or not (0x80 <= data[0] <= 0x9F or 0xDC <= data[0] <= 0xDF):
        return None
    try:
        found = msgpack.unpackb(data, strict_map_key=False, timestamp=3, object_pairs_hook=unambiguous)
        return printable(json.dumps(_plain(found), indent=2, ensure_ascii=False))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _hex(data: bytes, _: int) -> str:
    """Return lines of sixteen bytes: position, hexadecimal, and its printable letters."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


_MAKERS: Final = {"json": _json, "msgpack": _msgpack, "text": _text, "hex": _hex}
