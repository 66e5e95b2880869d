"""Protobuf: whether messages of a writer's file can be read by a reader's file. Pure.

Fields are known by their numbers, so names of fields may change. The rules are those of Confluent's registry:
a message may not vanish, a type may only change to another one with the same bytes, and a field may not move
into or out of a oneof with others. Beyond these, a number must not become repeated, for its bytes are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.registry.compatibility.bounds import MOST_MESSAGES, BadSchema, Steps

MOST_NESTING: Final = 32
_REPEATED: Final = 3
_REQUIRED: Final = 2
_KINDS: Final[Mapping[int, str]] = {
    1: "double", 2: "float", 3: "number", 4: "number", 5: "number", 6: "fixed64", 7: "fixed32", 8: "number",
    9: "text", 10: "group", 11: "message", 12: "text", 13: "number", 14: "number", 15: "fixed32",
    16: "fixed64", 17: "zigzag", 18: "zigzag",
}  # fmt: skip
"""Groups of types with the same bytes, by the numbers that descriptors have for types."""
_NAMES: Final = (
    "", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group",
    "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProtoField:
    """A field of a message; a map has the types of its keys and values."""

    name: str
    number: int
    type: int
    label: int
    type_name: str = ""
    oneof: str | None = None
    map_of: tuple[ProtoField, ProtoField] | None = None

    @property
    def shown(self) -> str:
        """Its type, as messages name it."""
        if self.map_of is not None:
            return f"map<{self.map_of[0].shown}, {self.map_of[1].shown}>"
        return self.type_name or _NAMES[self.type]


@dataclass(slots=True)
class ProtoMessage:
    """A message: its fields by their numbers, and the messages within it."""

    fields: dict[int, ProtoField] = field(default_factory=dict)
    nested: dict[str, ProtoMessage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A file that was read: its package, and its messages by their names."""

    package: str
    messages: Mapping[str, ProtoMessage]


def schema_of(file: Any) -> ProtobufSchema:
    """Read the descriptor of a file, a FileDescriptorProto. Raises BadSchema."""
    return ProtobufSchema(file.package, {message.name: _message(message, 1) for message in file.message_type})


def _message(descriptor: Any, depth: int) -> ProtoMessage:
    if depth > MOST_NESTING:
        raise BadSchema(f"messages are nested more than {MOST_NESTING} levels deep")
    maps = {nested.name: nested for nested in descriptor.nested_type if nested.options.map_entry}
    found = ProtoMessage()
    for described in descriptor.field:
        found.fields[described.number] = _field(described, descriptor, maps)
    for nested in descriptor.nested_type:
        if nested.name not in maps:
            found.nested[nested.name] = _message(nested, depth + 1)
    return found


def _field(described: Any, message: Any, maps: Mapping[str, Any]) -> ProtoField:
    oneof = None
    if described.HasField("oneof_index") and not described.proto3_optional:
        oneof = message.oneof_decl[described.oneof_index].name
    entry = maps.get(described.type_name.rpartition(".")[2]) if described.type == 11 else None
    map_of = None
    if entry is not None and len(entry.field) == 2:
        key, value = (_field(part, entry, {}) for part in entry.field)
        map_of = key, value
    return ProtoField(
        described.name, described.number, described.type, described.label, described.type_name, oneof, map_of
    )


def incompatibilities(reader: ProtobufSchema, writer: ProtobufSchema) -> list[str]:
    """Return why messages of `writer` cannot be read as `reader`; empty if they can. Raises TooComplex."""
    messages = []
    if reader.package != writer.package:
        messages.append(f"the package changed from {writer.package!r} to {reader.package!r}")
    steps = Steps()
    for message in _messages(reader.messages, writer.messages, "", steps):
        messages.append(message)
        if len(messages) >= MOST_MESSAGES:
            break
    return messages


def _messages(
    reader: Mapping[str, ProtoMessage], writer: Mapping[str, ProtoMessage], path: str, steps: Steps
) -> Iterator[str]:
    for name, written in writer.items():
        steps.take(1 + len(written.fields))
        at = f"{path}{name}"
        if name not in reader:
            yield f"{at}: the reader has no such message"
            continue
        yield from _fields(reader[name], written, at)
        yield from _oneofs(reader[name], written, at)
        yield from _messages(reader[name].nested, written.nested, f"{at}.", steps)


def _fields(reader: ProtoMessage, writer: ProtoMessage, at: str) -> Iterator[str]:
    for number, written in writer.fields.items():
        wanted = reader.fields.get(number)
        if wanted is not None:
            yield from _field_changes(wanted, written, f"{at}.{written.name} ({number})")
        elif written.label == _REQUIRED:
            yield f"{at}.{written.name} ({number}): a required field was removed"
    for number, wanted in reader.fields.items():
        if number not in writer.fields and wanted.label == _REQUIRED:
            yield f"{at}.{wanted.name} ({number}): a required field was added"


def _field_changes(reader: ProtoField, writer: ProtoField, at: str) -> Iterator[str]:
    if not _is_same_type(reader, writer):
        yield f"{at}: the type changed from {writer.shown} to {reader.shown}"
    elif (reader.label == _REPEATED) != (writer.label == _REPEATED) and _KINDS[writer.type] not in (
        "text", "message", "group",
    ):  # fmt: skip
        yield f"{at}: the field became {'repeated' if reader.label == _REPEATED else 'single'}"


def _is_same_type(reader: ProtoField, writer: ProtoField) -> bool:
    if reader.map_of is not None and writer.map_of is not None:
        pairs = zip(reader.map_of, writer.map_of, strict=True)
        return all(_is_same_type(wanted, written) for wanted, written in pairs)
    if (reader.map_of is None) != (writer.map_of is None) or _KINDS[reader.type] != _KINDS[writer.type]:
        return False
    is_message = _KINDS[reader.type] in ("message", "group")
    return reader.type_name == writer.type_name if is_message else True


def _oneofs(reader: ProtoMessage, writer: ProtoMessage, at: str) -> Iterator[str]:
    wanted, written = _by_oneof(reader), _by_oneof(writer)
    for name, numbers in written.items():
        if name in wanted and (lost := numbers - wanted[name]):
            yield f"{at}.{name}: the oneof lost the fields {_shown(lost)}"
    for name, numbers in wanted.items():
        outside = {number for number in numbers if number in writer.fields}
        if name in written and (moved := outside - written[name]):
            yield f"{at}.{name}: the fields {_shown(moved)} moved into a oneof that was there"
        elif (
            name not in written
            and not any(outside <= known for known in written.values())
            and len(outside) > 1
        ):
            yield f"{at}.{name}: the fields {_shown(outside)} moved into one oneof"


def _by_oneof(message: ProtoMessage) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for number, described in message.fields.items():
        if described.oneof is not None:
            found.setdefault(described.oneof, set()).add(number)
    return found


def _shown(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
