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
from ottla.pipeline.options import option, required

if TYPE_CHECKING:
    import pyarrow as pa

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
