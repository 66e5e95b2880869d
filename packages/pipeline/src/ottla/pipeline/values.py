"""Values of records as columns: JSON, MessagePack and Avro with a schema, or as a registry has it.

Columns are declared in Spark's DDL, which is looked at without Spark, so that an error names the option and
the word. Only certain mistakes are reported: Spark's parser has the last word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.json_values import Decoded, decode_each, decode_json
from ottla.pipeline.lazy import pa
from ottla.pipeline.options import option, required
from ottla.pipeline.registry_values import RegistrySettings, columns_of_subject, decode_registered
from ottla.pipeline.schema_columns import avro_columns, avro_reader

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


Kind = Literal["raw", "json", "msgpack", "avro", "registry"]
Mode = Literal["permissive", "dropmalformed", "failfast"]

_AS_DATETIME = 3
"""For msgpack: decode timestamps as aware datetimes."""
_NOT_NULL = re.compile(r"\bnot\s+null\b", re.IGNORECASE)


_NAMED = {"registry": "of the schema registry"}


class ValueMalformed(PipelineError):
    """A value that does not match `value.format`, with `value.mode` failfast."""

    def __init__(self, kind: str, reason: str) -> None:
        named = _NAMED.get(kind, f"{kind} of value.schema")
        super().__init__(
            f"a value is not {named}: {reason}. With option value.mode=permissive such values "
            "are null, with the reason in value_error; with dropmalformed their rows are dropped"
        )


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The format of values, and their columns."""

    kind: Kind = "raw"
    columns: str | None = None
    """The fields of a value as Spark's DDL: `drink STRING, price DOUBLE`; None: those of a registry."""
    avro_schema: str | None = None
    """The Avro schema of the writer, as JSON."""
    mode: Mode = "permissive"
    registry: RegistrySettings | None = None
    """The schema registry of values that name their schemas."""

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
        "the format of values: `json`, `msgpack`, `avro`, `registry` for Avro, Protobuf and JSON that name "
        "their schema in `value.registry`, or `raw` for bytes. The others become a column `value` with the "
        "fields of `value.schema`",
    )  # fmt: skip
    value_schema: str | None = option(
        "value.schema", None,
        "the fields of values, in Spark's form, `drink STRING, price DOUBLE`; for Avro its schema "
        "as JSON. With `registry` the default are those of the latest version of `value.subject`",
    )  # fmt: skip
    value_registry: str | None = option(
        "value.registry", None,
        "the address of the schema registry, `http://127.0.0.1:8081`; the login is that of the profile which "
        "has this address as `schema_registry_url`",
    )  # fmt: skip
    value_subject: str | None = option(
        "value.subject", None,
        "the subject whose fields values have; the default is that of the topic, `orders-value`",
    )  # fmt: skip
    value_mode: Mode = option(
        "value.mode", "permissive",
        "the handling of a malformed value: `permissive`: it is null, `value_raw` has its bytes and "
        "`value_error` the reason; `dropmalformed`: its row is dropped; `failfast`: the query fails",
    )  # fmt: skip
    include_headers: bool = option("includeHeaders", False, "whether there is a column `headers`")


def value_format(options: RowOptions, profile: str | None = None) -> ValueFormat:
    """Return the format that the options describe. Raises OptionError.

    A `profile` may have the login of the registry.
    """
    kind, mode = options.value_format, options.value_mode
    if kind != "registry":
        _refuse_registry(options)
    if kind == "raw":
        if options.value_schema is not None:
            raise OptionError("option 'value.schema' needs value.format: json, msgpack, avro or registry")
        return ValueFormat()
    if kind == "registry":
        url = required("value.registry", options.value_registry, "http://127.0.0.1:8081")
        columns = None if options.value_schema is None else _columns(options.value_schema)
        return ValueFormat(kind, columns, None, mode, RegistrySettings.of(url, profile))
    if kind == "avro":
        example = '{"type": "record", "name": "Order", "fields": [...]}'
        text = required("value.schema", options.value_schema, example)
        return ValueFormat(kind, avro_columns(text), text, mode)
    text = required("value.schema", options.value_schema, "drink STRING, price DOUBLE")
    return ValueFormat(kind, _columns(text), None, mode)


def _refuse_registry(options: RowOptions) -> None:
    given = {"value.registry": options.value_registry, "value.subject": options.value_subject}
    for name, text in given.items():
        if text is not None:
            raise OptionError(f"option {name!r} needs value.format: registry")


def with_columns(format_: ValueFormat, subject: str | None) -> ValueFormat:
    """Return the format with its columns; where none are given, the registry is asked for a subject's.

    Raises OptionError, RegistryFailed, SchemaUnfit.
    """
    if format_.registry is None or format_.columns is not None:
        return format_
    if subject is None:
        raise OptionError(
            "option 'value.subject' is missing: it names the schema with the fields of several topics; or "
            "list the fields in value.schema"
        )
    return replace(format_, columns=columns_of_subject(format_.registry, subject).ddl)


def _columns(text: str) -> str:
    if _NOT_NULL.search(text):
        raise OptionError("option 'value.schema': any field may be missing in a value; remove NOT NULL")
    for said in wrong_ddl(text):
        raise OptionError(f"option 'value.schema': {said}")
    return text


def decode(
    given: ValueFormat, values: pa.Array, wanted: pa.StructType, headers: pa.Array | None = None
) -> Decoded:
    """Decode a column of bytes; null stays null, and a malformed value becomes null.

    `headers` of the records may name the schemas of a registry. Raises RegistryFailed.
    """
    if given.registry is not None:
        return decode_registered(given.registry, values, headers, wanted)
    if given.kind == "json":
        return decode_json(values, wanted)
    if given.kind == "msgpack":
        return decode_each(_unpack, values, wanted)
    return decode_each(avro_reader(given.avro_schema or ""), values, wanted)


def _unpack(value: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(value, timestamp=_AS_DATETIME)
