"""JSON Schema: whether each document that fits a writer's schema fits a reader's. Pure.

A keyword of the reader that no rule here knows must be in the writer's schema as it is: the answer may be
"incompatible" for schemas that are not, never the other way round. Three exceptions are Confluent's: a
property with a default may become required, `format` constrains nothing, and `oneOf` takes what `anyOf` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from ottla.registry.compatibility.bounds import (
    MOST_MESSAGES,
    BadSchema,
    Found,
    Steps,
    compact,
    json_of,
    ordered,
)
from ottla.registry.compatibility.json_schema_rules import RULES, TYPES, may_be, types_of

_DEFINITIONS: Final = ("definitions", "$defs")
_NOTES: Final = frozenset({
    "$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "format",
    "readOnly", "writeOnly", "deprecated", "contentEncoding", "contentMediaType", "$vocabulary",
    *_DEFINITIONS,
})  # fmt: skip
_SUM: Final = ("anyOf", "oneOf")
_DEPENDENCIES: Final = ("dependencies", "dependentRequired")
_RULED: Final = frozenset({
    "$ref", "type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "properties", "patternProperties",
    "additionalProperties", "required", "minProperties", "maxProperties", "dependencies", "dependentRequired",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "minLength",
    "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
})  # fmt: skip
_MOST_REFERENCES: Final = 50
Part = Any
"""A schema within a schema: an object, or a boolean."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A schema that was read, and those that it imports, by their names."""

    root: Any
    imported: Mapping[str, Any]
    text: str
    normalized: str

    def follow(self, part: Part, document: Any = None) -> Part:
        """Return the schema that a `$ref` leads to. Raises BadSchema."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(part, dict) or "$ref" not in part:
                return part
            part = self._target(part["$ref"])
        raise BadSchema("a $ref leads to itself")

    def _target(self, reference: Any) -> Part:
        if not isinstance(reference, str):
            raise BadSchema("a $ref is no text")
        name, _, fragment = reference.partition("#")
        document = self.root if not name else self.imported.get(name, self._by_id(name))
        if document is None:
            raise BadSchema(f"the $ref {reference[:100]!r} leads nowhere")
        if fragment and not fragment.startswith("/"):
            return self._anchor(document, fragment)
        return _pointed(document, fragment, reference)

    def _by_id(self, name: str) -> Any:
        documents = (self.root, *self.imported.values())
        return next(
            (found for found in documents if isinstance(found, dict) and found.get("$id") == name), None
        )

    def _anchor(self, document: Any, name: str) -> Part:
        for key in _DEFINITIONS:
            for part in (document.get(key) or {}).values() if isinstance(document, dict) else ():
                if isinstance(part, dict) and (part.get("$anchor") == name or part.get("$id") == f"#{name}"):
                    return part
        raise BadSchema(f"the $ref '#{name[:100]}' leads nowhere")


def _pointed(document: Any, pointer: str, reference: str) -> Part:
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~").replace("%25", "%").replace("%20", " ")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and key.isascii() and key.isdigit() and int(key) < len(document):
            document = document[int(key)]
        else:
            raise BadSchema(f"the $ref {reference[:100]!r} leads nowhere")
    return document


def parse_json_schema(text: str, references: Sequence[tuple[str, str]] = ()) -> JsonSchema:
    """Read a schema and those that it imports. Raises BadSchema."""
    root = json_of(text)
    imported = {name: json_of(source) for name, source in references}
    found = JsonSchema(root, imported, compact(root), compact(ordered(root)))
    _check(found, root)
    return found


def _check(schema: JsonSchema, part: Part) -> None:
    """Check the keywords that are followed, so that a comparison need not. Raises BadSchema."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise BadSchema(f"a schema is an object or a boolean, not {compact(part)[:60]}")
        if "$ref" in part:
            schema.follow(part)
        for key, kinds in _KINDS.items():
            if key in part and (not isinstance(part[key], kinds) or _is_wrong_bool(part[key], kinds)):
                raise BadSchema(f"{key!r} cannot be {compact(part[key])[:60]}")
        types = part.get("type", [])
        if bad := [kind for kind in ([types] if isinstance(types, str) else types) if kind not in TYPES]:
            raise BadSchema(f"the type {compact(bad[0])[:60]} is not known")
        waiting += _parts(part)


def _is_wrong_bool(found: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(found, bool) and bool not in kinds


def _parts(part: dict[str, Any]) -> list[Part]:
    found = [part[key] for key in ("not", "additionalProperties", "additionalItems") if key in part]
    for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
        found += part.get(key, [])
    for key in ("properties", "patternProperties", *_DEFINITIONS):
        found += part.get(key, {}).values()
    if "items" in part:
        found += part["items"] if isinstance(part["items"], list) else [part["items"]]
    found += [entry for entry in part.get("dependencies", {}).values() if not isinstance(entry, list)]
    return found


_NUMBER: Final = (int, float)
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "type": (str, list), "enum": (list,), "properties": (dict,), "patternProperties": (dict,),
    "required": (list, bool), "allOf": (list,), "anyOf": (list,), "oneOf": (list,), "prefixItems": (list,),
    "definitions": (dict,), "$defs": (dict,), "dependencies": (dict,), "dependentRequired": (dict,),
    "minLength": _NUMBER, "maxLength": _NUMBER, "minItems": _NUMBER, "maxItems": _NUMBER,
    "minProperties": _NUMBER, "maxProperties": _NUMBER, "minimum": _NUMBER, "maximum": _NUMBER,
    "exclusiveMinimum": (*_NUMBER, bool), "exclusiveMaximum": (*_NUMBER, bool), "multipleOf": _NUMBER,
    "pattern": (str,), "uniqueItems": (bool,), "title": (str,), "description": (str,), "$id": (str,),
    "$schema": (str,),
}  # fmt: skip


def incompatibilities(reader: JsonSchema, writer: JsonSchema) -> list[str]:
    """Return why documents of `writer` may not fit `reader`; empty if all do. Raises BadSchema."""
    if (reader.normalized, reader.imported) == (writer.normalized, writer.imported):
        return []
    try:
        return _Comparison(reader, writer).compare(reader.root, writer.root, "#")[:MOST_MESSAGES]
    except RecursionError:
        raise BadSchema("the schemas are too deep to be compared") from None


class _Comparison:
    """Compares parts of two schemas, each pair once: a schema that contains itself ends."""

    def __init__(self, reader: JsonSchema, writer: JsonSchema, steps: Steps | None = None) -> None:
        self._reader = reader
        self._writer = writer
        self._steps = steps or Steps()
        self._made: list[Part] = []
        """Schemas made here: pairs are known by the ids of objects, which must live as long."""
        self._known = Found()

    def compare(self, reader: Part, writer: Part, path: str) -> list[str]:
        """Return why values of a part of the writer's schema may not fit one of the reader's."""
        self._steps.take()
        reader, writer = self._reader.follow(reader), self._writer.follow(writer)
        if _is_open(reader) or writer is False or reader is writer:
            return []
        if reader is False:
            return [f"{path}: the reader takes nothing"]
        given = {} if writer is True else writer
        return self._known.of((id(reader), id(writer)), lambda: self._found(reader, given, path))

    def _found(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        if branches := _sum(writer):
            rest = _without_sum(writer)
            return [
                message
                for index, branch in enumerate(branches)
                for message in self.compare(reader, self._both(rest, branch), f"{path}/{index}")
            ]
        if any(not self.compare(reader, part, path) for part in writer.get("allOf") or ()):
            return []  # a part of the writer's implies all of the reader's
        messages = self._reader_sum(reader, writer, path) + self._product(reader, writer, path)
        for rule in RULES:
            messages += [f"{path}: {text}" for text in rule(reader, writer)]
        messages += [f"{path}: {text}" for text in self._dependencies(reader, writer)]
        messages += [
            f"{path}: the reader has {key!r}, the writer has not, or another"
            for key in reader
            if key not in _RULED
            and key not in _NOTES
            and _constrains(key)
            and not (key in writer and self._is_same(reader[key], writer[key]))
        ]
        if may_be(reader, writer, "object"):
            messages += self._object(reader, writer, path)
        if may_be(reader, writer, "array"):
            messages += self._array(reader, writer, path)
        return messages

    def _both(self, rest: dict[str, Any], branch: Part) -> Part:
        """Return a branch of the writer together with the keywords beside the branches."""
        branch = self._writer.follow(branch)
        if not rest or branch is False:
            return branch
        taken = {} if branch is True else branch
        self._made.append({"allOf": [rest, taken]} if rest.keys() & taken.keys() else {**rest, **taken})
        return self._made[-1]

    def _reader_sum(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        for key in _SUM:
            branches = reader.get(key)
            if branches and not any(not self.compare(branch, writer, path) for branch in branches):
                return [f"{path}: no schema of the reader's {key} takes all that the writer's does"]
        return []

    def _product(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        messages = []
        given = [writer, *(writer.get("allOf") or ())]
        for index, wanted in enumerate(reader.get("allOf") or ()):
            if not any(not self.compare(wanted, part, path) for part in given):
                messages.append(f"{path}/allOf/{index}: the writer has nothing that implies it")
        if "not" in reader and (
            "not" not in writer
            or _Comparison(self._writer, self._reader, self._steps).compare(
                writer["not"], reader["not"], path
            )
        ):
            messages.append(f"{path}/not: the reader excludes more than the writer")
        return messages

    def _is_same(self, reader: Any, writer: Any) -> bool:
        """Return whether two parts say the same: a `$ref` may be to another schema in each document."""
        waiting, seen = [(reader, writer)], set()
        while waiting:
            self._steps.take()
            ours, theirs = waiting.pop()
            if isinstance(ours, dict) and isinstance(theirs, dict) and "$ref" in ours and "$ref" in theirs:
                ours, theirs = self._reader.follow(ours), self._writer.follow(theirs)
                if (id(ours), id(theirs)) in seen:
                    continue
                seen.add((id(ours), id(theirs)))
            if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
                waiting += [(ours[key], theirs[key]) for key in ours]
            elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
                waiting += zip(ours, theirs, strict=True)
            elif type(ours) is not type(theirs) or ours != theirs:
                return False
        return True

    # --- objects

    def _object(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        wanted, written = reader.get("properties") or {}, writer.get("properties") or {}
        messages = []
        common = (writer.get("patternProperties") or {}).keys()
        for name in {**wanted, **written}:
            at = f"{path}/properties/{name}"
            for given in _given(writer, name):
                for takes in _wanted(reader, name, common):
                    messages += self._property(name, takes, given, at)
        messages += self._required(reader, writer, path)
        open_, closed = writer.get("additionalProperties", True), reader.get("additionalProperties", True)
        messages += self._rest("additionalProperties", closed, open_, path)
        return messages + self._patterns(reader, writer, path)

    def _patterns(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        """Compare the patterns: a name that fits one that only one side has may fit any of the other's."""
        takes, gives = reader.get("patternProperties") or {}, writer.get("patternProperties") or {}
        rest = [*gives.values(), writer.get("additionalProperties", True)]
        messages = []
        for pattern, schema in takes.items():
            for given in [gives[pattern]] if pattern in gives else rest:
                messages += self.compare(schema, given, f"{path}/patternProperties/{pattern}")
        for pattern, schema in gives.items():
            if pattern not in takes:
                closed = reader.get("additionalProperties", True)
                messages += self.compare(closed, schema, f"{path}/patternProperties/{pattern}")
        return messages

    def _property(self, name: str, takes: Part, given: Part, path: str) -> list[str]:
        if takes is False and given is not False:
            return [f"{path}: the reader takes no property {name!r}, and the writer has it"]
        found = self.compare(takes, given, path)
        if found and given is True:
            return [
                f"{path}: the writer may have written anything as {name!r}, and the reader takes only some"
            ]
        return found

    def _rest(self, key: str, takes: Part, given: Part, path: str) -> list[str]:
        if takes is False and self._writer.follow(given) is not False:
            return [
                f"{path}/{key}: the reader takes none beside those that it names, the writer may have some"
            ]
        return self.compare(takes, given, f"{path}/{key}")

    def _required(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        wanted, given = reader.get("required"), writer.get("required")
        wanted, given = (found if isinstance(found, list) else [] for found in (wanted, given))
        properties = reader.get("properties") or {}
        messages = []
        for name in wanted:
            schema = self._reader.follow(properties.get(name, True)) if isinstance(name, str) else True
            has_default = isinstance(schema, dict) and "default" in schema
            if name not in given and not has_default:
                messages.append(f"{path}/required: {name!r} is required by the reader, and has no default")
        return messages

    def _dependencies(self, reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
        if "object" not in types_of(writer):
            return []
        messages = []
        for key in _DEPENDENCIES:
            for name, wanted in (reader.get(key) or {}).items():
                given = (writer.get(key) or {}).get(name)
                is_less = isinstance(wanted, list) and isinstance(given, list) and set(wanted) <= set(given)
                if not is_less and not self._is_same(wanted, given):
                    messages.append(f"what depends on {name!r} is more in the reader")
        return messages

    # --- arrays

    def _array(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        wanted, takes_rest = _items(reader)
        written, gives_rest = _items(writer)
        messages = []
        for index in range(max(len(wanted), len(written))):
            takes = wanted[index] if index < len(wanted) else takes_rest
            given = written[index] if index < len(written) else gives_rest
            at = f"{path}/items/{index}"
            if takes is False and given is not False:
                messages.append(f"{at}: the reader takes no item here, and the writer has one")
            else:
                messages += self.compare(takes, given, at)
        return messages + self._rest("items", takes_rest, gives_rest, path)


def _is_open(part: Part) -> bool:
    return part is True or (isinstance(part, dict) and not part.keys() - _NOTES)


def _constrains(key: str) -> bool:
    """Return whether a keyword constrains documents: those with an `x` in front, and Confluent's, do not."""
    return not key.startswith(("x-", "confluent:", "connect.", "javaType"))


def _sum(part: dict[str, Any]) -> list[Part]:
    return next((part[key] for key in _SUM if part.get(key)), [])


def _without_sum(part: dict[str, Any]) -> dict[str, Any]:
    taken = next(key for key in _SUM if part.get(key))
    return {key: found for key, found in part.items() if key != taken and key not in _NOTES}


def _given(writer: dict[str, Any], name: str) -> list[Part]:
    """Return the schemas of which one holds for a property.

    No pattern is run, as schemas are by strangers: one that is not plain may be of the name, or not.
    """
    if name in (properties := writer.get("properties") or {}):
        return [properties[name]]
    patterns = writer.get("patternProperties") or {}
    matches = [pattern for pattern in patterns if _matches(pattern, name)]
    if matches:
        return [patterns[matches[0]]]
    others = [schema for pattern, schema in patterns.items() if _matches(pattern, name) is None]
    return [*others, writer.get("additionalProperties", True)]


def _wanted(reader: dict[str, Any], name: str, common: Set[str]) -> list[Part]:
    """Return the schemas that all hold for a property, or may.

    A pattern that both sides have (`common`) is left out: their schemas of it are compared by themselves.
    """
    patterns = reader.get("patternProperties") or {}
    matches = {pattern: _matches(pattern, name) for pattern in patterns}
    found = [
        patterns[pattern]
        for pattern, is_of in matches.items()
        if is_of is not False and pattern not in common
    ]
    if name in (properties := reader.get("properties") or {}):
        return [properties[name], *found]
    return found if True in matches.values() else [*found, reader.get("additionalProperties", True)]


def _matches(pattern: str, name: str) -> bool | None:
    """Return whether a pattern matches a name; None if it is more than letters behind `^`."""
    text = pattern[1:].removesuffix(".*") if pattern.startswith("^") else ""
    is_plain = text.replace("_", "").replace("-", "").isalnum()
    return name.startswith(text) if is_plain else None


def _items(part: dict[str, Any]) -> tuple[list[Part], Part]:
    """Return the schemas of the first items, and that of all others."""
    items = part.get("items", True)
    if "prefixItems" in part:
        return part["prefixItems"], items
    return (items, part.get("additionalItems", True)) if isinstance(items, list) else ([], items)
