"""Filters of records: read from an address, and compiled into a test of one record. Pure.

A text is searched in the bytes of a record as they were written. Patterns are RE2's, whose time grows with
the length of the record alone; JSONPath is RFC 9535; expressions stand in `ottla.client.expressions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, cast, get_args

import msgpack
import msgspec

from ottla.client.expressions import BadExpression, Expression, Undecided, expression
from ottla.console.records.patterns import compiled_path, compiled_pattern
from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import Ambiguous, unambiguous
from ottla.console.web.fields import Unclear
from ottla.protocol.records import Record

Place = Literal["any", "key", "value", "header", "path"]
How = Literal["contains", "is", "matches", "exists"]
PLACES: Final[tuple[str, ...]] = get_args(Place)
HOWS: Final[tuple[str, ...]] = get_args(How)
MOST_LETTERS: Final = 4_000

Tested = ShownRecord | Record
RecordTest = Callable[[Any], bool]
BytesTest = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are wanted: those with a key, with a text somewhere, and of which an expression is true.

    `name` is that of a header, or a JSONPath; an empty field filters nothing.
    """

    key: str = ""
    place: Place = "any"
    name: str = ""
    how: How = "contains"
    text: str = ""
    expression: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether all records pass."""
        return not (self.key or self.text or self.expression or self.looks_for_existence)

    @property
    def looks_for_existence(self) -> bool:
        """Whether it asks for a header or a JSONPath alone, with any value."""
        return self.how == "exists" and self.place in ("header", "path") and bool(self.name)

    def parts(self) -> dict[str, str]:
        """Return the fields of an address; those that are not set are empty."""
        is_set = bool(self.text) or self.looks_for_existence
        return {
            "key": self.key, "in": self.place if is_set and self.place != "any" else "",
            "name": self.name if is_set else "", "how": self.how if is_set and self.how != "contains" else "",
            "find": self.text, "where": self.expression,
        }  # fmt: skip


def wanted_filter(query: Mapping[str, str]) -> Filter:
    """Return the filter of an address, and compile it once. Raises Unclear."""
    place, how = query.get("in") or "any", query.get("how") or "contains"
    if place not in PLACES or how not in HOWS:
        raise Unclear(f"a text can be searched in {', '.join(PLACES)}; it {', '.join(HOWS)}")
    texts = {name: query.get(name, "") for name in ("key", "name", "find", "where")}
    if any(len(text) > MOST_LETTERS for text in texts.values()):
        raise Unclear(f"a filter has at most {MOST_LETTERS} letters")
    found = Filter(
        texts["key"], cast("Place", place), texts["name"].strip(), cast("How", how), texts["find"],
        texts["where"].strip(),
    )  # fmt: skip
    CompiledFilter(found)
    return found


def key_bytes(text: str) -> bytes:
    """Return a key as it was typed: text as UTF-8, and bytes as 0x and hexadecimal digits. Raises Unclear."""
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise Unclear(f"{text!r} must be hexadecimal digits behind 0x") from None


Headers = Sequence[tuple[str, bytes | None]]
ReadBySchema = Callable[[bytes | None, Literal["key", "value"], Headers], bytes | None]
"""Returns a key or a value as JSON by the schema that it names; None where it names none."""


class CompiledFilter:
    """A filter that tests records.

    `needles` are bytes without which no batch of the log holds a record that passes, unless letters stand in
    it as escapes (`may_hold`). `undecided` counts records of which the filter makes no sense.
    """

    def __init__(self, wanted: Filter, by_schema: ReadBySchema | None = None) -> None:
        """Raises Unclear for a pattern, a path or an expression that cannot be read."""
        self._by_schema = by_schema
        self.needles: tuple[bytes, ...] = ()
        self.needs_batch_alone = True
        """Whether it looks at that alone which its batch has: then it tests records as they are decoded."""
        self.undecided = 0
        self._has_escapes = False
        self._tests = tuple(self._parts(wanted))

    def __call__(self, record: Tested) -> bool:
        """Whether a record passes."""
        try:
            for test in self._tests:
                if not test(record):
                    return False
        except (Undecided, RecursionError, ArithmeticError, TypeError, ValueError):
            # The last three: lone surrogates, numbers and keys that JSON or a float cannot hold.
            self.undecided += 1
            return False
        return True

    def may_hold(self, batch: bytes, start: int = 0, end: int | None = None) -> bool:
        """Whether records of uncompressed batches could pass, by a look at their bytes alone."""
        stop = len(batch) if end is None else end
        if all(batch.find(needle, start, stop) >= 0 for needle in self.needles):
            return True
        return self._has_escapes and batch.find(b"\\u", start, stop) >= 0

    def _parts(self, wanted: Filter) -> Iterator[RecordTest]:
        if wanted.key:
            key = key_bytes(wanted.key)
            self.needles += (key,)
            yield lambda record: record.key == key
        if wanted.text or wanted.looks_for_existence:
            yield self._text(wanted)
        if wanted.expression:
            found = _read(wanted.expression)
            self.needs_batch_alone = _SHOWN_ALONE.isdisjoint(found.names)
            needles = tuple(needle.encode() for needle in found.needles)
            if needles:  # it is much faster to look for a text than to read JSON
                yield partial(self._holds, needles)
            if self._by_schema is None:  # a schema can have texts of its own: no batch may be left out
                self.needles += needles
                self._has_escapes = bool(needles)
            yield self._is_true(found)

    def _text(self, wanted: Filter) -> RecordTest:
        if wanted.place == "path":
            return self._by_path(wanted)
        test = _bytes_test(wanted.how, wanted.text)
        if wanted.how in ("contains", "is"):
            self.needles += (wanted.text.encode(),)
        match wanted.place:
            case "key":
                return lambda record: record.key is not None and test(record.key)
            case "value":
                return lambda record: record.value is not None and test(record.value)
            case "header":
                return partial(_in_headers, wanted.name, test)
        return lambda record: _anywhere(record, test)

    def _holds(self, needles: tuple[bytes, ...], record: Tested) -> bool:
        """Whether an expression can be true of a record, by a look at its bytes alone."""
        if (read := self._by_schema) is not None and (
            read(record.value, "value", record.headers) is not None
            or read(record.key, "key", record.headers) is not None
        ):
            return True
        parts = [record.key or b"", record.value or b"", *(part or b"" for _, part in record.headers)]
        data = b"\n".join(parts)
        return all(needle in data for needle in needles) or b"\\u" in data

    def _by_path(self, wanted: Filter) -> RecordTest:
        """Return a test of the nodes that a JSONPath selects in values; one that passes is enough."""
        selected, test = compiled_path(wanted.name), _bytes_test(wanted.how, wanted.text)

        def passes(record: Tested) -> bool:
            if record.value is None:
                return False
            return any(test(node_text(node).encode()) for node in selected(self._value(record)))

        return passes

    def _is_true(self, found: Expression) -> RecordTest:
        fields = {**_FIELDS, "key": self._key, "value": self._value}
        reads = [(name, fields[name]) for name in sorted(found.names)]
        return lambda record: found.matches({name: read(record) for name, read in reads})

    def _value(self, record: Tested) -> Any:
        text = None if self._by_schema is None else self._by_schema(record.value, "value", record.headers)
        return decoded(record.value if text is None else text)

    def _key(self, record: Tested) -> Any:
        text = None if self._by_schema is None else self._by_schema(record.key, "key", record.headers)
        return decoded_key(record.key) if text is None else decoded(text)


def _bytes_test(how: How, text: str) -> BytesTest:
    wanted = text.encode()
    match how:
        case "is":
            return lambda data: data == wanted
        case "matches":
            pattern = compiled_pattern(text)
            return lambda data: pattern.search(data) is not None
        case "exists":
            return lambda data: True
    return lambda data: wanted in data


def _anywhere(record: ShownRecord, test: BytesTest) -> bool:
    if (record.value is not None and test(record.value)) or (record.key is not None and test(record.key)):
        return True
    names = (name.encode(errors="surrogateescape") for name, _ in record.headers)
    return any(map(test, names)) or any(value is not None and test(value) for _, value in record.headers)


def _in_headers(wanted: str, test: BytesTest, record: ShownRecord) -> bool:
    return any(test(value or b"") for name, value in record.headers if not wanted or name == wanted)


# --- JSONPath


def node_text(node: object) -> str:
    """Return a value within JSON as text: strings as they are, numbers with all their digits."""
    return node if isinstance(node, str) else json.dumps(node, ensure_ascii=False, default=str)


# --- expressions


def _read(text: str) -> Expression:
    def matcher(pattern: str) -> Callable[[str], bool]:
        found = compiled_pattern(pattern)
        return lambda letters: found.search(letters) is not None

    try:
        return expression(text, matcher)
    except BadExpression as error:
        raise Unclear(f"the expression cannot be read: {error}") from None


def decoded(data: bytes | None) -> Any:
    """Return a value as JSON, msgpack or text holds it; bytes where it is none of these.

    Raises Undecided where a map has a key twice: no test of its value could mean the one that counts.
    """
    if data is None:
        return None
    if (found := _quick_json(data)) is not None:
        return found
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _unpacked(data)
    if text[:1] and text[0] in '{["-0123456789tfn \n\r\t':
        try:
            return json.loads(text, object_pairs_hook=unambiguous)
        except Ambiguous:
            raise Undecided from None
        except (ValueError, RecursionError):
            pass
    return text


def _quick_json(data: bytes) -> dict[str, Any] | list[Any] | None:
    """Return a map or a list of JSON that has surely no key twice; None for all others.

    A colon stands behind each key, and behind its quotation mark where no white space is between them. So a
    text with as many of these as there are different keys has none twice, be there others within texts.
    """
    if data[:1] not in (b"{", b"["):
        return None
    try:
        found: dict[str, Any] | list[Any] = msgspec.json.decode(data)
        keys = _keys(found)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if data.count(b":") == keys:
        return found
    is_tight = not any(space in data for space in _SPACED_COLONS)
    return found if is_tight and data.count(b'":') == keys else None


def _keys(value: dict[str, Any] | list[Any]) -> int:
    """Return how many keys all maps of a value have."""
    items, count = (value.values(), len(value)) if type(value) is dict else (value, 0)
    for item in items:
        if type(item) is dict or type(item) is list:
            count += _keys(item)
    return count


def _unpacked(data: bytes) -> Any:
    if not (0x80 <= data[0] <= 0x9F or 0xDC <= data[0] <= 0xDF):
        return data
    try:
        return msgpack.unpackb(data, strict_map_key=False, timestamp=3, object_pairs_hook=unambiguous)
    except Ambiguous:
        raise Undecided from None
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException):
        return data


def _text_or_bytes(data: bytes | None) -> str | bytes | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return data


def _headers(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str | bytes | None]:
    return {name: _text_or_bytes(value) for name, value in headers}


_SPACED_COLONS: Final = (b" :", b"\n:", b"\t:", b"\r:")
_SHOWN_ALONE: Final = frozenset({"kind", "partition"})
"""Names that a record has only as it is shown."""
_FIELDS: Final[Mapping[str, Callable[[ShownRecord], Any]]] = {
    "headers": lambda record: _headers(record.headers),
    "partition": lambda record: record.partition, "offset": lambda record: record.offset,
    "time_ms": lambda record: record.timestamp_ms, "kind": lambda record: record.fate,
}  # fmt: skip


def decoded_key(data: bytes | None) -> Any:
    """Return a key as text, as JSON only where it is an object or a list."""
    found = _text_or_bytes(data)
    return decoded(data) if isinstance(found, str) and found[:1] in ("{", "[") else found
