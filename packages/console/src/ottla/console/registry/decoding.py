"""Decode values by the schemas of a registry: Avro, Protobuf and JSON Schema, each into JSON text.

Schemas and values are by anybody. This module bounds what it can see; a decoder that is written in C can
still take all memory or never end, so `workers` runs it in a process with limits.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ottla.console.records.values import set_out
from ottla.registry.framing import NotFramed

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

_BUILT_IN: Final[Mapping[str, str]] = {
    "confluent/meta.proto": (
        'syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto"; '
        "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; } "
        "extend google.protobuf.FileOptions { Meta file_meta = 1088; } "
        "extend google.protobuf.MessageOptions { Meta message_meta = 1088; } "
        "extend google.protobuf.FieldOptions { Meta field_meta = 1088; } "
        "extend google.protobuf.EnumOptions { Meta enum_meta = 1088; } "
        "extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }"
    ),
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type; '
        "message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"
    ),
}
"""Files that a registry imports by itself, and lists nowhere."""
_MAIN: Final = "schema.proto"
_LOG_LINES: Final = ("WARNING: All log messages", "E0000", "W0000", "I0000")


def _protobuf(text: str, references: References) -> Decode:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise Undecodable(
            "values in Protobuf need `python -m pip install 'ottla-console[protobuf]'`"
        ) from None
    content = _file_set(text, references)
    files = descriptor_pb2.FileDescriptorSet.FromString(content).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    main = next(file for file in files if file.name == _MAIN)
    classes: dict[tuple[int, ...], Any] = {}

    def decode_protobuf(data: bytes, place: Sequence[int]) -> Decoded:
        key = tuple(place)
        if key not in classes:
            descriptor = pool.FindMessageTypeByName(_message_name(main, key))
            classes[key] = message_factory.GetMessageClass(descriptor)
        return _message_text(classes[key].FromString(data), pool)

    return decode_protobuf


def _message_name(file: Any, place: Sequence[int]) -> str:
    names, messages = [file.package] if file.package else [], file.message_type
    for index in place:
        if index >= len(messages):
            raise Undecodable(f"the schema has no message at {list(place)}: the value names another one")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


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


def _file_set(text: str, references: References) -> bytes:
    """Compile files into their descriptors. Raises Undecodable with the compiler's words."""
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        raise Undecodable(
            "values in Protobuf need `python -m pip install 'ottla-console[protobuf]'`"
        ) from None
    included = Path(str(grpc_tools.__file__)).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="ottla-console-") as folder:
        given = {**_BUILT_IN, **dict(references), _MAIN: text}
        described, output = Path(folder, "given-descriptors"), Path(folder, "descriptors")
        with described.open("wb") as file:
            for name, source in given.items():
                path = Path(folder, _checked_name(name))
                if (included / name).exists():
                    continue
                if (content := _described(name, source)) is not None:
                    file.write(content)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(source, encoding="utf-8")
        status, said = _quietly(
            lambda: protoc.main(
                ["protoc", f"-I{folder}", f"-I{included}", "--include_imports",
                 f"--descriptor_set_in={described}", f"--descriptor_set_out={output}", _MAIN]
            ),
            Path(folder, "said"),
        )  # fmt: skip
        if status != 0:
            raise Undecodable(f"the schema cannot be read: {said.replace(folder + '/', '')[:_MOST_REASON]}")
        return output.read_bytes()


def _described(name: str, text: str) -> bytes | None:
    """Return a set of one descriptor for a file that was registered as such, in base 64; None for a source.

    Confluent's Python client registers files so, and not every registry makes a source of them.
    """
    from google.protobuf import descriptor_pb2

    try:
        content = base64.b64decode(text.strip(), validate=True)
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
    except Exception:  # DecodeError is no ValueError; a source is neither base 64 nor a descriptor
        return None
    if not content:
        return None
    file.name = name
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return found


def _checked_name(name: str) -> str:
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or len(name) > 250:
        raise Undecodable(f"the schema imports {name[:100]!r}, which is no name of a file")
    return name


def _quietly(call: Callable[[], int], said: Path) -> tuple[int, str]:
    """Call the compiler, which writes to descriptor 2 by itself; return its status and its words."""
    kept = os.dup(2)
    try:
        with said.open("wb") as file:
            os.dup2(file.fileno(), 2)
            status = call()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    return status, next((line for line in lines if not line.startswith(_LOG_LINES)), "no reason given")


# --- JSON Schema


def _json_schema(text: str, references: References) -> Decode:
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(text)
    resources = [
        (name, Resource.from_contents(json.loads(imported), default_specification=DRAFT7))
        for name, imported in references
    ]
    # A registry of resources without a way to retrieve others: nothing is ever loaded from an address.
    found = validator_for(schema, default=Draft7Validator)
    validator = found(schema, registry=Registry().with_resources(resources))

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
