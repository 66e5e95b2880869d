"""Values of records as columns: JSON, MessagePack and Avro after a schema."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ottla.pipeline.errors import OptionError, PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.pipeline.options import Options

Kind = Literal["raw", "json", "msgpack", "avro"]
Mode = Literal["permissive", "dropmalformed", "failfast"]

_KINDS: tuple[Kind, ...] = ("raw", "json", "msgpack", "avro")
_MODES: tuple[Mode, ...] = ("permissive", "dropmalformed", "failfast")


class ValueMalformed(PipelineError):
    """A value that is not what `value.format` says, where `value.mode` is failfast."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(
            f"a value is no {kind} of value.schema: {reason}. With option value.mode=permissive such values "
            "are null, with the reason in value_error; with dropmalformed they are left out"
        )


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values are written, and the columns that they hold."""

    kind: Kind = "raw"
    columns: str | None = None
    """The fields of a value as Spark's DDL: `drink STRING, price DOUBLE`."""
    avro_schema: str | None = None
    """The schema that Avro was written with, as JSON."""
    mode: Mode = "permissive"

    @property
    def ddl(self) -> str:
        """The columns that stand for the value in Spark's DDL."""
        if self.kind == "raw":
            return "value BINARY"
        extra = ", value_raw BINARY, value_error STRING" if self.mode == "permissive" else ""
        return f"value STRUCT<{self.columns}>{extra}"


def value_format(options: Options) -> ValueFormat:
    """Read value.format, value.schema and value.mode. Raises OptionError."""
    chosen = options.choice("value.format", _KINDS, "raw")
    kind = next(each for each in _KINDS if each == chosen)
    worst = options.choice("value.mode", _MODES, "permissive")
    mode = next(each for each in _MODES if each == worst)
    if kind == "raw":
        if "value.schema" in options:
            raise OptionError("option 'value.schema' needs value.format: json, msgpack or avro")
        return ValueFormat()
    if kind == "avro":
        text = options.required("value.schema", '{"type": "record", "name": "Order", "fields": [...]}')
        return ValueFormat(kind, avro_columns(text), text, mode)
    return ValueFormat(kind, options.required("value.schema", "drink STRING, price DOUBLE"), None, mode)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values as a column, and for each that could not be read the reason (None: all could)."""

    values: pa.Array
    errors: list[str | None] | None = None


def decode(given: ValueFormat, values: pa.Array, wanted: pa.DataType) -> Decoded:
    """Decode a column of bytes; null stays null, and so does what cannot be read."""
    import pyarrow as pa

    if given.kind == "json":
        quick = _json_at_once(values, wanted)
        if quick is not None:
            return Decoded(quick)
    read = _reader(given)
    found: list[Any] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        row, error = _one(read, value, wanted)
        found.append(row)
        errors.append(error)
    return Decoded(pa.array(found, wanted), errors if any(errors) else None)


def _one(read: Callable[[bytes], Any], value: bytes | None, wanted: pa.DataType) -> tuple[Any, str | None]:
    import pyarrow as pa

    if value is None:
        return None, None
    try:
        row = read(value)
        if not isinstance(row, dict):
            return None, f"{type(row).__name__} where fields were expected"
        pa.array([row], wanted)  # says what does not fit, for this row alone
    except Exception as error:  # whatever a decoder or Arrow raises is about this one value
        return None, f"{type(error).__name__}: {error}"
    return row, None


def _json_at_once(values: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Read all values as lines of JSON, natively; None where that cannot be done, or one is malformed."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json as arrow_json

    if values.null_count or not len(values):
        return None
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema(list(wanted)), unexpected_field_behavior="ignore", newlines_in_values=False
    )
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), parse_options=options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(values):
        return None  # an empty value, or one of several lines
    columns = [table.column(each.name).combine_chunks() for each in wanted]
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _reader(given: ValueFormat) -> Callable[[bytes], Any]:
    if given.kind == "json":
        return json.loads
    if given.kind == "msgpack":
        import msgpack

        return msgpack.unpackb  # type: ignore[no-any-return]
    return _avro_reader(given.avro_schema or "")


@cache
def _avro_reader(schema: str) -> Callable[[bytes], Any]:
    fastavro = _fastavro()
    parsed = fastavro.parse_schema(json.loads(schema))

    def read(value: bytes) -> Any:
        source = io.BytesIO(value)
        row = fastavro.schemaless_reader(source, parsed)
        if source.read(1):
            raise ValueError("bytes are left over")
        return row

    return read


_AVRO_TYPES = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "bytes": "BINARY", "string": "STRING",
}  # fmt: skip
_AVRO_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
}


def avro_columns(text: str) -> str:
    """Return the fields of an Avro record as Spark's DDL. Raises OptionError for what is not a record."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option 'value.schema' must be an Avro schema, as JSON: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise OptionError("option 'value.schema' must be the Avro schema of a record")
    return _avro_fields(schema)


def _avro_fields(schema: dict[str, Any]) -> str:
    return ", ".join(f"`{each['name']}` {_avro_type(each['type'])}" for each in schema["fields"])


def _avro_type(given: Any) -> str:
    match given:
        case str() if given in _AVRO_TYPES:
            return _AVRO_TYPES[given]
        case [*options] if len(rest := [each for each in options if each != "null"]) == 1:
            return _avro_type(rest[0])
        case {"type": "record"}:
            return f"STRUCT<{_avro_fields(given)}>"
        case {"type": "array"}:
            return f"ARRAY<{_avro_type(given['items'])}>"
        case {"type": "map"}:
            return f"MAP<STRING, {_avro_type(given['values'])}>"
        case {"type": "enum"}:
            return "STRING"
        case {"type": "fixed"}:
            return "BINARY"
        case {"type": str(kind), "logicalType": str(logical)} if (kind, logical) in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[kind, logical]
        case {"type": "bytes", "logicalType": "decimal"}:
            return f"DECIMAL({given['precision']}, {given.get('scale', 0)})"
        case {"type": inner}:
            return _avro_type(inner)
    raise OptionError(f"option 'value.schema': Spark has no type for Avro's {given!r}")


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise OptionError("value.format=avro needs fastavro: pip install 'ottla-pipeline[avro]'") from error
    return fastavro
