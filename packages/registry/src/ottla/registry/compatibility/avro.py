"""Avro: schemas as types, their canonical text, and whether a reader can read a writer's values. Pure.

The rules are those of schema resolution in Avro's specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.registry.compatibility.bounds import MOST_MESSAGES, BadSchema, Found, Steps, compact, json_of

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED: Final = ("record", "error", "enum", "fixed")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READS: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}
"""The types whose values a reader of a type can read beside its own."""
_RESERVED: Final = frozenset({
    "type", "name", "namespace", "doc", "fields", "aliases", "symbols", "default", "size", "items", "values",
    "order",
})  # fmt: skip


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    has_default: bool
    aliases: tuple[str, ...]


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of Avro. A named type is one object wherever it is used, so types may contain themselves."""

    kind: str
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    has_default: bool = False
    size: int = 0
    items: AvroType | None = None
    branches: list[AvroType] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema that was read: its type, and its text as all equal schemas have it."""

    type: AvroType
    text: str
    normalized: str


def parse_avro(text: str, references: Sequence[tuple[str, str]] = ()) -> AvroSchema:
    """Read a schema and those that it imports, each behind those that it imports itself. Raises BadSchema."""
    parser = _Parser()
    for _, imported in references:
        parser.parse(_json(imported), "")
    found = _json(text)
    type_, canonical = parser.parse(found, "")
    return AvroSchema(type_, compact(canonical), compact(_sorted(canonical)))


def _json(text: str) -> Any:
    # Old serializers register the name of a type without quotes.
    return text.strip() if _NAME.fullmatch(text.strip()) else json_of(text)


def _sorted(found: Any) -> Any:
    """Return a canonical schema with properties that Avro does not know in the order of their names."""
    if isinstance(found, list):
        return [_sorted(part) for part in found]
    if not isinstance(found, dict):
        return found
    known = {key: _sorted(part) for key, part in found.items() if key in _RESERVED}
    return known | {key: found[key] for key in sorted(found) if key not in _RESERVED}


class _Parser:
    """Reads JSON into types; returns each with its canonical JSON."""

    def __init__(self) -> None:
        self._types: dict[str, AvroType] = {}

    def parse(self, found: Any, space: str) -> tuple[AvroType, Any]:
        """Read a schema within a namespace. Raises BadSchema."""
        if isinstance(found, str):
            return self._by_name(found, space)
        if isinstance(found, list):
            return self._union(found, space)
        if not isinstance(found, dict):
            raise BadSchema(f"a type of Avro is a name, a list or an object, not {compact(found)[:60]}")
        kind = found.get("type")
        if isinstance(kind, dict | list):
            return self.parse(kind, space)
        if kind in ("array", "map"):
            return self._collection(found, kind, space)
        if kind in _NAMED:
            return self._named(found, kind, space)
        if not isinstance(kind, str):
            raise BadSchema("an object of Avro needs a 'type'")
        type_, name = self._by_name(kind, space)
        properties = _properties(found)
        return type_, {"type": name, **properties} if properties and kind in PRIMITIVES else name

    def _by_name(self, name: str, space: str) -> tuple[AvroType, str]:
        if name in PRIMITIVES:
            return AvroType(name), name
        full = name if "." in name or not space else f"{space}.{name}"
        type_ = self._types.get(full) or self._types.get(name)
        if type_ is None:
            raise BadSchema(f"the type {name[:100]!r} is not defined")
        return type_, _short(type_.name, space)

    def _union(self, found: list[Any], space: str) -> tuple[AvroType, Any]:
        union, texts, seen = AvroType("union"), [], set[str]()
        for branch in found:
            type_, text = self.parse(branch, space)
            if type_.kind == "union":
                raise BadSchema("a union has a union in it")
            key = type_.name or type_.kind
            if key in seen:
                raise BadSchema(f"a union has {key!r} twice")
            seen.add(key)
            union.branches.append(type_)
            texts.append(text)
        return union, texts

    def _collection(self, found: dict[str, Any], kind: str, space: str) -> tuple[AvroType, Any]:
        key = "items" if kind == "array" else "values"
        if key not in found:
            raise BadSchema(f"an Avro {kind} needs {key!r}")
        items, text = self.parse(found[key], space)
        return AvroType(kind, items=items), {"type": kind, key: text, **_properties(found)}

    def _named(self, found: dict[str, Any], kind: str, space: str) -> tuple[AvroType, Any]:
        name, own_space = _full_name(found, space)
        if name in self._types:
            raise BadSchema(f"the type {name!r} is defined twice")
        type_ = self._types[name] = AvroType(kind, name, _aliases(found, own_space))
        text: dict[str, Any] = {"type": kind, "name": name.rpartition(".")[2]}
        if own_space and own_space != space:
            text["namespace"] = own_space
        if isinstance(found.get("doc"), str):
            text["doc"] = found["doc"]
        if kind == "enum":
            text |= self._enum(found, type_)
        elif kind == "fixed":
            text |= _fixed(found, type_)
        else:
            text["fields"] = self._fields(found, type_, own_space)
        aliases = {"aliases": found["aliases"]} if found.get("aliases") else {}
        return type_, text | _properties(found) | aliases

    def _enum(self, found: dict[str, Any], type_: AvroType) -> dict[str, Any]:
        symbols = found.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise BadSchema(f"the enum {type_.name!r} needs a list of 'symbols'")
        if bad := next((symbol for symbol in symbols if not _NAME.fullmatch(symbol)), None):
            raise BadSchema(f"the enum {type_.name!r} has {bad[:100]!r}, which is no name")
        if len(set(symbols)) < len(symbols):
            raise BadSchema(f"the enum {type_.name!r} has a symbol twice")
        type_.symbols = tuple(symbols)
        default = found.get("default")
        if default is not None and default not in type_.symbols:
            raise BadSchema(f"the enum {type_.name!r} has a default that is none of its symbols")
        type_.has_default = default is not None
        return {"symbols": symbols} | ({"default": default} if type_.has_default else {})

    def _fields(self, found: dict[str, Any], type_: AvroType, space: str) -> list[Any]:
        fields = found.get("fields")
        if not isinstance(fields, list):
            raise BadSchema(f"the record {type_.name!r} needs a list of 'fields'")
        seen, texts = set[str](), []
        for entry in fields:
            name = entry.get("name") if isinstance(entry, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name) or "type" not in entry:
                raise BadSchema(f"a field of {type_.name!r} needs a 'name' and a 'type'")
            if name in seen:
                raise BadSchema(f"the record {type_.name!r} has the field {name!r} twice")
            seen.add(name)
            texts.append(self._field(entry, type_, space))
        return texts

    def _field(self, entry: dict[str, Any], record: AvroType, space: str) -> dict[str, Any]:
        name = entry["name"]
        field_type, text = self.parse(entry["type"], space)
        aliases = entry.get("aliases") or ()
        if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
            raise BadSchema(f"the aliases of field {name!r} are no list of names")
        if "default" in entry and not _fits(entry["default"], field_type):
            shown = compact(entry["default"])[:60]
            raise BadSchema(f"the default {shown} of field {name!r} does not fit its type")
        record.fields.append(AvroField(name, field_type, "default" in entry, tuple(aliases)))
        written: dict[str, Any] = {"name": name, "type": text}
        written |= {key: entry[key] for key in ("doc", "default") if key in entry}
        if entry.get("order") not in (None, "ascending"):
            written["order"] = entry["order"]
        written |= {"aliases": list(aliases)} if aliases else {}
        return written | _properties(entry)


def _fixed(found: dict[str, Any], type_: AvroType) -> dict[str, Any]:
    size = found.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadSchema(f"the fixed {type_.name!r} needs a 'size'")
    type_.size = size
    return {"size": size}


def _full_name(found: dict[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a type, and its namespace. Raises BadSchema."""
    name, own = found.get("name"), found.get("namespace", space)
    if not isinstance(name, str) or not isinstance(own, str | None):
        raise BadSchema("a record, an enum and a fixed need a 'name'")
    if "." in name:
        own, _, name = name.rpartition(".")
    full = f"{own}.{name}" if own else name
    if name in PRIMITIVES or not all(_NAME.fullmatch(part) for part in full.split(".")):
        raise BadSchema(f"{full[:100]!r} is no name of a type")
    return full, own or ""


def _aliases(found: dict[str, Any], space: str) -> frozenset[str]:
    aliases = found.get("aliases") or ()
    if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
        raise BadSchema("aliases are a list of names")
    return frozenset(alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases)


def _properties(found: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in found.items() if key not in _RESERVED}


def _short(name: str, space: str) -> str:
    own, _, last = name.rpartition(".")
    return last if own == space else name


def _fits(default: Any, type_: AvroType) -> bool:
    match type_.kind:
        case "null":
            return default is None
        case "boolean":
            return isinstance(default, bool)
        case "int" | "long":
            bits = 31 if type_.kind == "int" else 63
            is_whole = isinstance(default, int) and not isinstance(default, bool)
            return is_whole and -(1 << bits) <= default < 1 << bits
        case "float" | "double":
            is_number = isinstance(default, int | float) and not isinstance(default, bool)
            return is_number or default in ("NaN", "Infinity", "-Infinity")
        case "bytes" | "string" | "fixed":
            return isinstance(default, str)
        case "enum":
            return default in type_.symbols
        case "array":
            return isinstance(default, list) and all(_fits(part, _items(type_)) for part in default)
        case "map":
            return isinstance(default, dict) and all(_fits(part, _items(type_)) for part in default.values())
        case "union":
            return any(_fits(default, branch) for branch in type_.branches)
        case _:
            return isinstance(default, dict) and all(
                _fits(default[part.name], part.type) if part.name in default else part.has_default
                for part in type_.fields
            )


def _items(type_: AvroType) -> AvroType:
    assert type_.items is not None
    return type_.items


def incompatibilities(reader: AvroSchema, writer: AvroSchema) -> list[str]:
    """Return why values of `writer` cannot be read as `reader`; empty if they can. Raises TooComplex."""
    return _Comparison().compare(reader.type, writer.type, "")[:MOST_MESSAGES]


class _Comparison:
    """Compares two types, each pair of named types once: a type that contains itself ends."""

    def __init__(self) -> None:
        self._steps = Steps()
        self._known = Found()

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        self._steps.take()
        if writer.kind == "union":
            return [
                message
                for index, branch in enumerate(writer.branches)
                for message in self.compare(reader, branch, f"{path}/{index}")
            ]
        if reader.kind == "union":
            if any(not self.compare(branch, writer, path) for branch in reader.branches):
                return []
            return [f"{_at(path)}: the reader's union has no type for {_shown(writer)}"]
        if reader.kind != writer.kind:
            if writer.kind in _READS.get(reader.kind, ()):
                return []
            return [f"{_at(path)}: {_shown(writer)} cannot be read as {_shown(reader)}"]
        if reader.items is not None and writer.items is not None:
            return self.compare(reader.items, writer.items, f"{path}/{_ITEMS[reader.kind]}")
        return self._named(reader, writer, path) if reader.name else []

    def _named(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        return self._known.of((id(reader), id(writer)), lambda: self._found(reader, writer, path))

    def _found(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        # By the specification the names must be the same without their namespaces.
        same = reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2]
        if not same and writer.name not in reader.aliases:
            return [
                f"{_at(path)}: {_shown(writer)} cannot be read as {_shown(reader)}, which has another name"
            ]
        if reader.kind == "fixed" and reader.size != writer.size:
            return [f"{_at(path)}: {writer.size} bytes of {writer.name} cannot be read as {reader.size}"]
        if reader.kind == "enum":
            missing = [symbol for symbol in writer.symbols if symbol not in set(reader.symbols)]
            if missing and not reader.has_default:
                shown = ", ".join(missing[:5])
                return [f"{_at(path)}: the reader's enum {reader.name} lacks {shown}, and has no default"]
            return []
        return self._record(reader, writer, path)

    def _record(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        written = {field_.name: field_ for field_ in writer.fields}
        messages = []
        for index, wanted in enumerate(reader.fields):
            self._steps.take()
            names = (wanted.name, *wanted.aliases)
            found = next((written[name] for name in names if name in written), None)
            at = f"{path}/fields/{index}"
            if found is not None:
                messages += self.compare(wanted.type, found.type, f"{at}/type")
            elif not wanted.has_default:
                text = f"field {wanted.name!r} has no default in the reader, and the writer has no such field"
                messages.append(f"{at}: {text}")
            if len(messages) > MOST_MESSAGES:
                break
        return messages


_ITEMS: Final = {"array": "items", "map": "values"}


def _at(path: str) -> str:
    return path or "/"


def _shown(type_: AvroType) -> str:
    return f"{type_.kind} {type_.name}" if type_.name else type_.kind
