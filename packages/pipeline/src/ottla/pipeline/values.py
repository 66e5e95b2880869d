"""Values of records as columns: JSON, MessagePack and Avro with a schema.

Columns are declared in Spark's DDL, which is looked at without Spark, so that an error names the option and
the word. Only certain mistakes are reported: Spark's parser has the last word.
"""

from __future__ import annotations

import difflib
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.json_values import Decoded, decode_each, decode_json
from ottla.pipeline.lazy import pa
from ottla.pipeline.options import option, required

_TYPES = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "bytes": "BINARY", "string": "STRING",
}  # fmt: skip
_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}
_TEXTS = ("name", "namespace", "doc", "default", "symbols", "aliases")


_DECIMAL = (("bytes", "decimal"), ("fixed", "decimal"))


@cache
def avro_reader(text: str) -> Callable[[bytes], Any]:
    """Return a function that decodes one value written with a schema."""
    fastavro = _fastavro()
    parsed = fastavro.parse_schema(_plain(json.loads(text)))

    def read(value: bytes) -> Any:
        source = io.BytesIO(value)
        row = fastavro.schemaless_reader(source, parsed)
        if source.read(1):
            raise ValueError("the value has extra bytes at its end")
        return row

    return read


def avro_columns(text: str) -> str:
    """Return the fields of an Avro record as Spark's DDL. Raises OptionError for another schema."""
    return _fields(_schema(text))


def _schema(text: str) -> dict[str, Any]:
    fastavro = _fastavro()
    try:
        schema = _plain(json.loads(text))
        # Expand types that are referenced by name.
        expanded = fastavro.schema.expand_schema(schema)
    except json.JSONDecodeError as error:
        raise OptionError(f"option 'value.schema' must be an Avro schema, as JSON: {error}") from None
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, ValueError) as error:
        raise OptionError(f"option 'value.schema' is not an Avro schema: {error}") from None
    if not isinstance(expanded, dict) or expanded.get("type") != "record":
        raise OptionError("option 'value.schema' must be the Avro schema of a record")
    return expanded


def _plain(given: Any) -> Any:
    """Replace logical types that Spark does not have by the types below them."""
    if isinstance(given, list):
        return [_plain(item) for item in given]
    if not isinstance(given, dict):
        return given
    known = (given.get("type"), given.get("logicalType")) in (*_LOGICAL, *_DECIMAL)
    return {
        key: value if key in _TEXTS else _plain(value)
        for key, value in given.items()
        if known or key != "logicalType"
    }


def _fields(schema: dict[str, Any]) -> str:
    return ", ".join(f"`{field['name']}` {_type(field['type'])}" for field in schema["fields"])


def _type(given: Any) -> str:
    # One case for each form that a schema may give a type: a name, a union with null, a complex type, a
    # logical type, or one of these once more inside {"type": ...}. The order decides: the last case unwraps.
    match given:
        case str() if given in _TYPES:
            return _TYPES[given]
        case [*options] if len(rest := [option for option in options if option != "null"]) == 1:
            return _type(rest[0])
        case {"type": "record"}:
            return f"STRUCT<{_fields(given)}>"
        case {"type": "array"}:
            return f"ARRAY<{_type(given['items'])}>"
        case {"type": "map"}:
            return f"MAP<STRING, {_type(given['values'])}>"
        case {"type": "enum"}:
            return "STRING"
        case {"type": "bytes" | "fixed", "logicalType": "decimal"}:
            return f"DECIMAL({given['precision']}, {given.get('scale', 0)})"
        case {"type": "fixed"}:
            return "BINARY"
        case {"type": str(kind), "logicalType": str(logical)} if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        case {"type": inner}:
            return _type(inner)
    raise OptionError(f"option 'value.schema': Spark has no type for Avro's {given!r}")


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise OptionError("value.format=avro needs fastavro: pip install 'ottla-pipeline[avro]'") from error
    return fastavro


_NAMES = frozenset(
    (
        "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL",
        "DOUBLE", "FLOAT", "GEOGRAPHY", "GEOMETRY", "INT", "INTEGER", "INTERVAL", "LONG", "MAP", "NUMERIC",
        "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
        "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT", "VOID",
    )
)  # fmt: skip
_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))\s*:?\s*(.*)", re.DOTALL)
_TYPE = re.compile(r"\s*(\w+)\s*(?:<(.*)>)?", re.DOTALL)
_OPENING, _CLOSING = "<(", ">)"


def wrong_ddl(columns: str) -> Iterator[str]:
    """Yield the mistakes in columns such as `drink STRING, price DOUBLE`."""
    for part in _parts(columns):
        found = _FIELD.fullmatch(part)
        if found is None:
            yield f"{columns!r} has an empty place between two commas, or names no column"
            continue
        name = found[1] or found[2]
        if not found[3].strip():
            yield f"{name!r} has no type: {name} STRING"
        else:
            yield from (f"{said} (of {name!r})" for said in _wrong_type(found[3]))


def _wrong_type(text: str) -> Iterator[str]:
    found = _TYPE.match(text)
    if found is None:
        yield f"{text.strip()!r} is not a type"
        return
    word, inner = found[1], found[2]
    if word.upper() not in _NAMES:
        near = difflib.get_close_matches(word.upper(), _NAMES, 1)
        yield f"{word!r} is not a type" + (f"; did you mean {near[0]}?" if near else "")
    elif inner is not None and word.upper() == "STRUCT":
        yield from wrong_ddl(inner)
    elif inner is not None:
        for part in _parts(inner):
            yield from _wrong_type(part)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas that are in no brackets and no quotes."""
    depth, begin, quote = 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character == "," and not depth:
            yield text[begin:at]
            begin = at + 1
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
    yield text[begin:]


Kind = Literal["raw", "json", "msgpack", "avro"]
Mode = Literal["permissive", "dropmalformed", "failfast"]

_AS_DATETIME = 3
"""For msgpack: decode timestamps as aware datetimes."""
_NOT_NULL = re.compile(r"\bnot\s+null\b", re.IGNORECASE)


class ValueMalformed(PipelineError):
    """A value that does not match `value.format`, with `value.mode` failfast."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(
            f"a value is not {kind} of value.schema: {reason}. With option value.mode=permissive "
            "such values are null, with the reason in value_error; with dropmalformed their rows "
            "are dropped"
        )


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The format of values, and their columns."""

    kind: Kind = "raw"
    columns: str | None = None
    """The fields of a value as Spark's DDL: `drink STRING, price DOUBLE`."""
    avro_schema: str | None = None
    """The Avro schema of the writer, as JSON."""
    mode: Mode = "permissive"

    @property
    def ddl(self) -> str:
        """The columns for the value in Spark's DDL."""
        if self.kind == "raw":
            return "value BINARY"
        extra = ", value_raw BINARY, value_error STRING" if self.mode == "permissive" else ""
        return f"value STRUCT<{self.columns}>{extra}"

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of these columns."""
        if self.kind == "raw" or self.mode != "permissive":
            return ("value",)
        return ("value", "value_raw", "value_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """The options that decide the columns of rows."""

    value_format: Kind = option(
        "value.format", "raw",
        "the format of values: `json`, `msgpack`, `avro`, or `raw` for bytes. The others become a "
        "column `value` with the fields of `value.schema`",
    )  # fmt: skip
    value_schema: str | None = option(
        "value.schema", None,
        "the fields of values, in Spark's form, `drink STRING, price DOUBLE`; for Avro its schema "
        "as JSON",
    )  # fmt: skip
    value_mode: Mode = option(
        "value.mode", "permissive",
        "the handling of a malformed value: `permissive`: it is null, `value_raw` has its bytes and "
        "`value_error` the reason; `dropmalformed`: its row is dropped; `failfast`: the query fails",
    )  # fmt: skip
    include_headers: bool = option("includeHeaders", False, "whether there is a column `headers`")


def value_format(options: RowOptions) -> ValueFormat:
    """Return the format that the options describe. Raises OptionError."""
    kind, mode = options.value_format, options.value_mode
    if kind == "raw":
        if options.value_schema is not None:
            raise OptionError("option 'value.schema' needs value.format: json, msgpack or avro")
        return ValueFormat()
    if kind == "avro":
        example = '{"type": "record", "name": "Order", "fields": [...]}'
        text = required("value.schema", options.value_schema, example)
        return ValueFormat(kind, avro_columns(text), text, mode)
    text = required("value.schema", options.value_schema, "drink STRING, price DOUBLE")
    return ValueFormat(kind, _columns(text), None, mode)


def _columns(text: str) -> str:
    if _NOT_NULL.search(text):
        raise OptionError("option 'value.schema': any field may be missing in a value; remove NOT NULL")
    for said in wrong_ddl(text):
        raise OptionError(f"option 'value.schema': {said}")
    return text


def decode(given: ValueFormat, values: pa.Array, wanted: pa.StructType) -> Decoded:
    """Decode a column of bytes; null stays null, and a malformed value becomes null."""
    if given.kind == "json":
        return decode_json(values, wanted)
    if given.kind == "msgpack":
        return decode_each(_unpack, values, wanted)
    return decode_each(avro_reader(given.avro_schema or ""), values, wanted)


def _unpack(value: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(value, timestamp=_AS_DATETIME)
