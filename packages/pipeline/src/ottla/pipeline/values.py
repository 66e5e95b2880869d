"""Values of records as columns: JSON, MessagePack and Avro with a schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ottla.pipeline.avro_values import avro_columns, avro_reader
from ottla.pipeline.ddl_types import wrong_ddl
from ottla.pipeline.decoded import Decoded, decode_each
from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.json_values import decode_json

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.pipeline.options import Options

Kind = Literal["raw", "json", "msgpack", "avro"]
Mode = Literal["permissive", "dropmalformed", "failfast"]

_KINDS: tuple[Kind, ...] = ("raw", "json", "msgpack", "avro")
_MODES: tuple[Mode, ...] = ("permissive", "dropmalformed", "failfast")
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


def value_format(options: Options) -> ValueFormat:
    """Parse value.format, value.schema and value.mode. Raises OptionError."""
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
    return ValueFormat(
        kind, _columns(options.required("value.schema", "drink STRING, price DOUBLE")), None, mode
    )


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
