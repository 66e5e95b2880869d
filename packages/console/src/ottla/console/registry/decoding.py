"""Decode values by the schemas of a registry: Avro, Protobuf and JSON Schema, each into JSON text.

Schemas and values are by anybody. This module bounds what it can see; a decoder that is written in C can
still take all memory or never end, so `workers` runs it in a process with limits.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from ottla.console.records.values import set_out
from ottla.registry.framing import NotFramed
from ottla.registry.json_schema import validator_of
from ottla.registry.protobuf_files import MAIN, BadSchema, descriptors, message_name

MOST_DEPTH: Final = 100
MOST_DIGITS: Final = 10_000
_MOST_REASON: Final = 300
_ONLY: Final = "only"


class Undecodable(ValueError):
    """A schema or a value cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value as JSON text, and a note where there is more to know of it."""

    text: str
    note: str = ""


Decode = Callable[[bytes, Sequence[int]], Decoded]
References = Sequence[tuple[str, str]]


def decoder(kind: str, text: str, references: References) -> Decode:
    """Return the function that decodes values of a schema. Raises Undecodable.

    `references` are the names and texts of the schemas that it imports, each behind those that it imports
    itself.
    """
    make = {"AVRO": _avro, "PROTOBUF": _protobuf, "JSON": _json_schema}.get(kind)
    if make is None:
        raise Undecodable(f"schemas of type {kind!r} are not known here")
    try:
        return make(text, references)
    except Undecodable:
        raise
    except RecursionError:
        raise Undecodable("the schema is too deep") from None
    except Exception as error:  # of libraries, each with errors of its own
        raise Undecodable(f"the schema cannot be read: {reason(error)}") from None


def decode(by: Decode, data: bytes, place: Sequence[int]) -> Decoded:
    """Return a value as text. Raises Undecodable."""
    try:
        return by(data, place)
    except (Undecodable, NotFramed) as error:
        raise Undecodable(str(error)) from None
    except RecursionError:
        raise Undecodable("the value is too deep") from None
    except EOFError:
        raise Undecodable("the value does not fit its schema: it ends too early") from None
    except MemoryError:
        raise Undecodable("the value is too large once decoded") from None
    except Exception as error:  # of libraries, each with errors of its own
        raise Undecodable(f"the value does not fit its schema: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return the words of an error, in one bounded line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:_MOST_REASON]


# --- Avro


def _avro(text: str, references: References) -> Decode:
    from fastavro import parse_schema, schemaless_reader

    named: dict[str, Any] = {}
    for _, imported in references:
        parse_schema(_schema_json(imported), named_schemas=named)
    schema = _schema_json(text)
    if schema in ("bytes", {"type": "bytes"}):  # serializers write such values as they are
        return lambda data, _: Decoded(json_text(data))
    # A record of one field has the bytes of that field, and its parsed form knows the imported names.
    whole = {"type": "record", "name": "OttlaValue", "fields": [{"name": _ONLY, "type": schema}]}
    parsed = parse_schema(whole, named_schemas=dict(named))
    plain = parse_schema(_without_logical_types(whole), named_schemas=dict(named))

    def read(schema: Any, data: bytes) -> Any:
        source = io.BytesIO(data)
        found = schemaless_reader(source, schema, None, return_record_name=True,
                                  return_record_name_override=True)  # fmt: skip
        if (left := len(data) - source.tell()) > 0:
            raise Undecodable(f"the value does not fit its schema: {left} bytes are left over")
        return found[_ONLY]

    def decode_avro(data: bytes, _: Sequence[int]) -> Decoded:
        try:
            return Decoded(json_text(read(parsed, data)))
        except (OverflowError, ValueError, ArithmeticError) as error:
            if isinstance(error, Undecodable):
                raise
            found = read(plain, data)
            return Decoded(json_text(found), "dates and decimals are shown as stored: one is out of range")

    return decode_avro


def _schema_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # Old serializers register the name of a primitive type without quotes.
        if text.strip().isalpha():
            return text.strip()
        raise


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(part) for key, part in schema.items() if key != "logicalType"}
    return [_without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


# --- Protobuf


def _protobuf(text: str, references: References) -> Decode:
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError:
        raise Undecodable(
            "values in Protobuf need `python -m pip install 'ottla-console[protobuf]'`"
        ) from None
    try:
        files = descriptors(text, references)
    except BadSchema as error:
        raise Undecodable(str(error)) from None
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    main = next(file for file in files if file.name == MAIN)
    classes: dict[tuple[int, ...], Any] = {}

    def decode_protobuf(data: bytes, place: Sequence[int]) -> Decoded:
        key = tuple(place)
        if key not in classes:
            descriptor = pool.FindMessageTypeByName(_message_name(main, key))
            classes[key] = message_factory.GetMessageClass(descriptor)
        return _message_text(classes[key].FromString(data), pool)

    return decode_protobuf


def _message_name(file: Any, place: Sequence[int]) -> str:
    try:
        return message_name(file, place)
    except BadSchema as error:
        raise Undecodable(str(error)) from None


def _message_text(message: Any, pool: Any) -> Decoded:
    from google.protobuf import json_format, text_format, unknown_fields

    try:
        text = json_format.MessageToJson(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True,
            ensure_ascii=False, descriptor_pool=pool,
        )  # fmt: skip
    except (ValueError, TypeError, json_format.Error):  # a type of Any that is not there, a date out of range
        text = text_format.MessageToString(message, as_utf8=True, descriptor_pool=pool)
    unknown = len(unknown_fields.UnknownFieldSet(message))
    return Decoded(text, f"{unknown} fields are not in its schema" if unknown else "")


# --- JSON Schema


def _json_schema(text: str, references: References) -> Decode:
    validator = validator_of(text, references)

    def decode_json(data: bytes, _: Sequence[int]) -> Decoded:
        shown = data.decode()
        value = json.loads(shown)
        return Decoded(set_out(shown), _faults(validator, value))

    return decode_json


def _faults(validator: Any, value: Any) -> str:
    try:
        first = next(iter(validator.iter_errors(value)), None)
    except Exception as error:  # a reference that leads nowhere, a pattern that is none
        return f"not checked against its schema: {reason(error)}"
    if first is None:
        return ""
    words = " ".join(str(first.message).split())
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first.absolute_path)
    return f"does not fit its schema at ${path}: {words}"[:_MOST_REASON]


# --- JSON text


def json_text(value: object) -> str:
    """Return a value in lines of JSON, numbers with all their digits. Raises Undecodable for a deep one."""
    parts: list[str] = []
    _write(value, parts, 0)
    return "".join(parts)


def _write(value: object, parts: list[str], depth: int) -> None:
    if depth > MOST_DEPTH:
        raise Undecodable(f"the value is more than {MOST_DEPTH} levels deep")
    if isinstance(value, tuple):  # the record of a union, with its name
        name, value = value
        value = {name: value}
    if isinstance(value, dict):
        items = [(f"{json.dumps(str(key), ensure_ascii=False)}: ", part) for key, part in value.items()]
        _write_all("{", "}", items, parts, depth)
    elif isinstance(value, list):
        _write_all("[", "]", [("", part) for part in value], parts, depth)
    else:
        parts.append(_scalar(value))


def _write_all(
    begin: str, end: str, items: Sequence[tuple[str, object]], parts: list[str], depth: int
) -> None:
    parts.append(begin)
    for index, (name, part) in enumerate(items):
        parts += ["," if index else "", "\n", "  " * (depth + 1), name]
        _write(part, parts, depth + 1)
    parts.append(f"\n{'  ' * depth}{end}" if items else end)


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Decimal):
        if value.is_finite() and abs(value.adjusted()) < MOST_DIGITS:
            return f"{value:f}"
        return json.dumps(str(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps(str(value))
    if isinstance(value, bytes):
        return f'"0x{value.hex()}"'
    if isinstance(value, datetime | date | time):
        return json.dumps(value.isoformat())
    return json.dumps(str(value), ensure_ascii=False)
