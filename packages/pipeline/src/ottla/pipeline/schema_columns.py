"""Schemas as columns of Spark, and values of Avro and Protobuf as rows with these columns. Pure.

A schema of Protobuf is the descriptor of its message.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from ottla.pipeline.errors import OptionError, PipelineError

References = Sequence[tuple[str, str]]
"""The names and texts of schemas that a schema imports."""


class SchemaUnfit(PipelineError):
    """A registered schema for which Spark has no columns."""


def ddl(fields: Mapping[str, str]) -> str:
    """Return columns with their types in Spark's DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())


# --- Avro

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
    return ddl(_record_fields(_schema(text)))


def avro_fields(text: str, references: References) -> dict[str, str]:
    """Return the fields of a registered Avro record with their types. Raises SchemaUnfit."""
    try:
        return _record_fields(_schema(text, references))
    except OptionError as error:
        raise SchemaUnfit(str(error).removeprefix("option 'value.schema': ")) from None


def plain_avro(text: str) -> str:
    """Return a schema without logical types that Spark does not have."""
    return json.dumps(_plain(json.loads(text)))


def _schema(text: str, references: References = ()) -> dict[str, Any]:
    fastavro = _fastavro()
    named: dict[str, Any] = {}
    try:
        for _, imported in references:
            fastavro.parse_schema(_plain(json.loads(imported)), named_schemas=named)
        # Expand types that are referenced by name.
        expanded = fastavro.parse_schema(_plain(json.loads(text)), named_schemas=named, expand=True)
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


def _record_fields(schema: dict[str, Any]) -> dict[str, str]:
    return {field["name"]: _type(field["type"]) for field in schema["fields"]}


def _type(given: Any) -> str:
    # One case for each form that a schema may give a type: a name, a union with null, a complex type, a
    # logical type, or one of these once more inside {"type": ...}. The order decides: the last case unwraps.
    match given:
        case str() if given in _TYPES:
            return _TYPES[given]
        case [*options] if len(rest := [option for option in options if option != "null"]) == 1:
            return _type(rest[0])
        case {"type": "record"}:
            return f"STRUCT<{ddl(_record_fields(given))}>"
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


# --- Protobuf

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_LEVELS: Final = 32
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_CPP_TYPES: Final = ("", "INT", "BIGINT", "BIGINT", "DECIMAL(20, 0)", "DOUBLE", "FLOAT", "BOOLEAN", "STRING")
"""Types by the numbers that descriptors give to those of C++; 8 are enums, which are named."""
_CPP_STRING, _CPP_MESSAGE = 9, 10
_MESSAGE, _BYTES, _ENUM = 11, 12, 14


def protobuf_fields(descriptor: Any, level: int = 0) -> dict[str, str]:
    """Return the fields of a message with their types. Raises SchemaUnfit."""
    if level > _MOST_LEVELS:
        raise SchemaUnfit(f"message {descriptor.full_name} contains itself, and columns have an end")
    return {field.name: _field_type(field, level) for field in descriptor.fields}


def _field_type(field: Any, level: int) -> str:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"MAP<{_item_type(key, level)}, {_item_type(value, level)}>"
    item = _item_type(field, level)
    return f"ARRAY<{item}>" if _is_repeated(field) else item


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31, deprecated since


def _item_type(field: Any, level: int) -> str:
    if field.cpp_type == _CPP_STRING:
        return "BINARY" if field.type == _BYTES else "STRING"
    if field.cpp_type != _CPP_MESSAGE:
        return _CPP_TYPES[field.cpp_type]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return "TIMESTAMP"
    if name in _WRAPPERS:
        return _item_type(field.message_type.fields_by_name["value"], level)
    return f"STRUCT<{ddl(protobuf_fields(field.message_type, level + 1))}>"


def protobuf_row(message: Any) -> dict[str, Any]:
    """Return a message as a row; a field that is not set, and could be, is null."""
    return {field.name: _field_value(message, field) for field in message.DESCRIPTOR.fields}


def _field_value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        kind = field.message_type.fields_by_name["value"]
        return [(key, _item_value(value[key], kind)) for key in value]
    if _is_repeated(field):
        return [_item_value(item, field) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _item_value(value, field)


def _item_value(value: Any, field: Any) -> Any:
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.cpp_type != _CPP_MESSAGE:
        return value
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    if name in _WRAPPERS:
        return value.value
    return protobuf_row(value)


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


# --- JSON Schema

_JSON: Final = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_FORMATS: Final = {"date-time": "TIMESTAMP", "date": "DATE"}


def json_fields(text: str) -> dict[str, str]:
    """Return the properties of a JSON Schema with their types. Raises SchemaUnfit."""
    schema = json.loads(text)
    return _properties(schema, schema, 0)


def _properties(schema: Any, root: Any, level: int) -> dict[str, str]:
    found = _resolved(schema, root, level)
    properties = found.get("properties") if isinstance(found, dict) else None
    if not properties:
        raise SchemaUnfit("its JSON Schema has no properties")
    return {name: _json_type(kind, root, level + 1) for name, kind in properties.items()}


def _json_type(given: Any, root: Any, level: int) -> str:
    schema = _resolved(given, root, level)
    kinds = schema.get("type")
    kind = next((name for name in kinds if name != "null"), None) if isinstance(kinds, list) else kinds
    kind = "object" if kind is None and "properties" in schema else kind
    if kind == "array":
        return f"ARRAY<{_json_type(schema.get('items', {}), root, level + 1)}>"
    if (
        kind == "object"
        and not schema.get("properties")
        and isinstance(schema.get("additionalProperties"), dict)
    ):
        return f"MAP<STRING, {_json_type(schema['additionalProperties'], root, level + 1)}>"
    if kind == "object":
        return f"STRUCT<{ddl(_properties(schema, root, level))}>"
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), "STRING")
    if kind in _JSON:
        return _JSON[kind]
    raise SchemaUnfit(f"Spark has no type for {json.dumps(schema)[:120]} of its JSON Schema")


def _resolved(schema: Any, root: Any, level: int) -> Any:
    """Return a schema, or the one that it refers to; of alternatives with null, the other one."""
    while isinstance(schema, dict):
        if level > _MOST_LEVELS:
            raise SchemaUnfit("its JSON Schema contains itself, and columns have an end")
        others = [
            each for each in (schema.get("oneOf") or schema.get("anyOf") or ()) if each != {"type": "null"}
        ]
        if "$ref" in schema:
            schema = _referred(schema["$ref"], root)
        elif len(others) == 1:
            (schema,) = others
        else:
            break
        level += 1
    return schema


def _referred(reference: str, root: Any) -> Any:
    found = root
    steps = (
        reference.removeprefix("#").removeprefix("/").split("/") if reference.startswith("#") else [reference]
    )
    for step in filter(None, steps):
        if not isinstance(found, dict) or step not in found:
            raise SchemaUnfit(f"its JSON Schema refers to {reference!r}, which is not in it")
        found = found[step]
    return found
