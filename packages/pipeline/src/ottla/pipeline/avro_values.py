"""Avro values as columns: the types of the fields, and a decoder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from ottla.pipeline.errors import OptionError

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
        return [_plain(each) for each in given]
    if not isinstance(given, dict):
        return given
    known = (given.get("type"), given.get("logicalType")) in (*_LOGICAL, *_DECIMAL)
    return {
        key: value if key in _TEXTS else _plain(value)
        for key, value in given.items()
        if known or key != "logicalType"
    }


def _fields(schema: dict[str, Any]) -> str:
    return ", ".join(f"`{each['name']}` {_type(each['type'])}" for each in schema["fields"])


def _type(given: Any) -> str:
    match given:
        case str() if given in _TYPES:
            return _TYPES[given]
        case [*options] if len(rest := [each for each in options if each != "null"]) == 1:
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
