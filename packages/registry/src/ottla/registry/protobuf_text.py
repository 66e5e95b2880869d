"""Descriptors of Protobuf as the source of a `.proto` file. Pure.

Confluent's clients register descriptors in base 64, and other clients want to read a source: a registry makes
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

_TYPES: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group",
    "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
_LABELS: Final = {1: "optional ", 2: "required ", 3: "repeated "}
_MOST_NUMBER: Final = (1 << 29) - 1
_MOST_ENUM: Final = (1 << 31) - 1


def source_of(file: Any) -> str:
    """Return the source of a file of which a FileDescriptorProto is given."""
    return "\n".join(_file(file)) + "\n"


def _file(file: Any) -> Iterator[str]:
    syntax = file.syntax or "proto2"
    if syntax == "editions":
        name = type(file).DESCRIPTOR.fields_by_name["edition"].enum_type.values_by_number[file.edition].name
        yield f'edition = "{name.removeprefix("EDITION_")}";'
    else:
        yield f'syntax = "{syntax}";'
    if file.package:
        yield f"package {file.package};"
    if file.dependency:
        yield ""
    for index, name in enumerate(file.dependency):
        kind = (
            "public " if index in file.public_dependency else "weak " if index in file.weak_dependency else ""
        )
        yield f"import {kind}{quoted(name)};"
    options = [f"option {text};" for text in _options(file.options)]
    yield from ["", *options] if options else []
    for enum in file.enum_type:
        yield from ["", *_enum(enum, "")]
    for message in file.message_type:
        yield from ["", *_message(message, "", syntax)]
    yield from _extensions(file.extension, "", syntax)
    for service in file.service:
        yield from ["", *_service(service)]


def _message(message: Any, indent: str, syntax: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    yield from _body(message, f"{indent}  ", syntax)
    yield f"{indent}}}"


def _body(message: Any, indent: str, syntax: str) -> Iterator[str]:
    yield from (f"{indent}option {text};" for text in _options(message.options))
    apart = _apart(message)
    begun = set[int]()
    for field in message.field:
        if field.HasField("oneof_index") and not field.proto3_optional:
            if field.oneof_index not in begun:
                begun.add(field.oneof_index)
                yield from _oneof(message, field.oneof_index, indent, syntax)
        else:
            yield from _field(field, message, indent, syntax)
    for enum in message.enum_type:
        yield from _enum(enum, indent)
    for nested in message.nested_type:
        if nested.name not in apart:
            yield from _message(nested, indent, syntax)
    for entry in message.extension_range:
        numbers = _range(entry.start, entry.end - 1, _MOST_NUMBER)
        yield f"{indent}extensions {numbers}{_listed(entry.options)};"
    yield from _extensions(message.extension, indent, syntax)
    yield from _reserved(message, indent, 1, _MOST_NUMBER)


def _apart(message: Any) -> set[str]:
    """Return the nested messages that are written as a map or as a group."""
    groups = {field.type_name.rpartition(".")[2] for field in message.field if field.type == 10}
    return groups | {nested.name for nested in message.nested_type if nested.options.map_entry}


def _oneof(message: Any, index: int, indent: str, syntax: str) -> Iterator[str]:
    declared = message.oneof_decl[index]
    yield f"{indent}oneof {declared.name} {{"
    yield from (f"{indent}  option {text};" for text in _options(declared.options))
    for field in message.field:
        if field.HasField("oneof_index") and field.oneof_index == index:
            yield from _field(field, message, f"{indent}  ", syntax, in_oneof=True)
    yield f"{indent}}}"


def _field(field: Any, message: Any, indent: str, syntax: str, *, in_oneof: bool = False) -> Iterator[str]:
    nested = {entry.name: entry for entry in (message.nested_type if message is not None else ())}
    own = nested.get(field.type_name.rpartition(".")[2])
    if field.type == 11 and own is not None and own.options.map_entry:
        key, value = own.field
        kind = f"map<{_type(key)}, {_type(value)}> "
    else:
        is_plain = in_oneof or (field.label == 1 and syntax != "proto2" and not field.proto3_optional)
        kind = ("" if is_plain else _LABELS[field.label]) + _type(field) + " "
    if field.type == 10 and own is not None:
        yield f"{indent}{kind}{own.name} = {field.number}{_field_options(field)} {{"
        yield from _body(own, f"{indent}  ", syntax)
        yield f"{indent}}}"
    else:
        yield f"{indent}{kind}{field.name} = {field.number}{_field_options(field)};"


def _type(field: Any) -> str:
    return field.type_name if field.type in (11, 14) else _TYPES[field.type]


def _field_options(field: Any) -> str:
    texts = _options(field.options)
    if field.HasField("default_value"):
        is_text = field.type in (9, 12)
        # Descriptors have bytes escaped already.
        value = quoted(field.default_value) if field.type == 9 else f'"{field.default_value}"'
        texts.append(f"default = {value if is_text else field.default_value}")
    if field.HasField("json_name") and field.json_name != _json_name(field.name):
        texts.append(f"json_name = {quoted(field.json_name)}")
    return f" [{', '.join(texts)}]" if texts else ""


def _json_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _enum(enum: Any, indent: str) -> Iterator[str]:
    yield f"{indent}enum {enum.name} {{"
    yield from (f"{indent}  option {text};" for text in _options(enum.options))
    for value in enum.value:
        yield f"{indent}  {value.name} = {value.number}{_listed(value.options)};"
    yield from _reserved(enum, f"{indent}  ", 0, _MOST_ENUM)
    yield f"{indent}}}"


def _reserved(found: Any, indent: str, beyond: int, most: int) -> Iterator[str]:
    if found.reserved_range:
        ranges = (_range(entry.start, entry.end - beyond, most) for entry in found.reserved_range)
        yield f"{indent}reserved {', '.join(ranges)};"
    if found.reserved_name:
        yield f"{indent}reserved {', '.join(map(quoted, found.reserved_name))};"


def _range(first: int, last: int, most: int) -> str:
    return str(first) if first == last else f"{first} to {'max' if last >= most else last}"


def _extensions(fields: Any, indent: str, syntax: str) -> Iterator[str]:
    for field in fields:
        yield f"{indent}extend {field.extendee} {{"
        yield from _field(field, None, f"{indent}  ", syntax)
        yield f"{indent}}}"


def _service(service: Any) -> Iterator[str]:
    yield f"service {service.name} {{"
    yield from (f"  option {text};" for text in _options(service.options))
    for method in service.method:
        takes = ("stream " if method.client_streaming else "") + method.input_type
        gives = ("stream " if method.server_streaming else "") + method.output_type
        options = [f"    option {text};" for text in _options(method.options)]
        yield f"  rpc {method.name} ({takes}) returns ({gives})" + (" {" if options else ";")
        yield from [*options, "  }"] if options else []
    yield "}"


def _listed(options: Any) -> str:
    texts = _options(options)
    return f" [{', '.join(texts)}]" if texts else ""


def _options(options: Any) -> list[str]:
    """Return the options that are set; extensions that this process does not know are left out."""
    texts = []
    for described, value in options.ListFields():
        if described.name in ("map_entry", "uninterpreted_option"):
            continue
        name = f"({described.full_name})" if described.is_extension else described.name
        values = value if is_repeated(described) else [value]
        texts += [f"{name} = {_value(described, entry)}" for entry in values]
    return texts


def is_repeated(described: Any) -> bool:
    """Return whether a field, of which a FieldDescriptor is given, has a list of values."""
    if hasattr(described, "is_repeated"):
        return bool(described.is_repeated)
    return bool(described.label == described.LABEL_REPEATED)  # protobuf before 6.31, deprecated since


def _value(described: Any, value: Any) -> str:
    if described.message_type is not None:
        from google.protobuf import text_format

        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if described.enum_type is not None:
        name: str = described.enum_type.values_by_number[value].name
        return name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return quoted(value.decode("latin-1"))
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """Return a text as a literal of Protobuf."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(letter) or _letter(letter) for letter in text) + '"'


def _letter(letter: str) -> str:
    return letter if letter.isprintable() else "".join(f"\\{byte:03o}" for byte in letter.encode())
