"""JSON Schema: whether each document that fits a writer's schema fits a reader's. Pure.

A keyword of the reader that no rule here knows must be in the writer's schema as it is: the answer may be
"incompatible" for schemas that are not, never the other way round. Two exceptions are Confluent's: a property
with a default may become required, and `format` constrains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.registry.compatibility.bounds import MOST_MESSAGES, BadSchema, Steps, compact, json_of

TYPES: Final = ("null", "boolean", "object", "array", "number", "string", "integer")
_DEFINITIONS: Final = ("definitions", "$defs")
_NOTES: Final = frozenset({
    "$schema", "$id", "id", "$anchor", "$comment", "title", "description", "default", "examples", "format",
    "readOnly", "writeOnly", "deprecated", "contentEncoding", "contentMediaType", "$vocabulary",
    *_DEFINITIONS,
})  # fmt: skip
_SUM: Final = ("anyOf", "oneOf")
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
    found = JsonSchema(root, imported, compact(root), compact(_ordered(root)))
    _check(found, root)
    return found


def _ordered(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _ordered(found[key]) for key in sorted(found)}
    return [_ordered(part) for part in found] if isinstance(found, list) else found


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
        self._known: dict[tuple[int, int], list[str]] = {}

    def compare(self, reader: Part, writer: Part, path: str) -> list[str]:
        """Return why values of a part of the writer's schema may not fit one of the reader's."""
        self._steps.take()
        reader, writer = self._reader.follow(reader), self._writer.follow(writer)
        if _is_open(reader) or writer is False or reader is writer:
            return []
        if reader is False:
            return [f"{path}: the reader takes nothing"]
        key = id(reader), id(writer)
        if key not in self._known:
            self._known[key] = []  # of a schema within itself: as good as all of the schema
            self._known[key] = self._found(reader, {} if writer is True else writer, path)
        return self._known[key]

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
        for rule in _RULES:
            messages += [f"{path}: {text}" for text in rule(reader, writer)]
        messages += [
            f"{path}: the reader has {key!r}, the writer has not, or another"
            for key in reader
            if key not in _RULED and key not in _NOTES and writer.get(key) != reader[key] and _constrains(key)
        ]
        if _may_be(reader, writer, "object"):
            messages += self._object(reader, writer, path)
        if _may_be(reader, writer, "array"):
            messages += self._array(reader, writer, path)
        return messages

    def _both(self, rest: dict[str, Any], branch: Part) -> Part:
        """Return a branch of the writer together with the keywords beside the branches."""
        branch = self._writer.follow(branch)
        if not rest or branch is False or (branch is not True and rest.keys() & branch.keys()):
            return branch  # without the rest, the branch is taken to allow more than it does
        self._made.append({**rest, **({} if branch is True else branch)})
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

    # --- objects

    def _object(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        wanted, written = reader.get("properties") or {}, writer.get("properties") or {}
        messages = []
        for name in {**wanted, **written}:
            given = written[name] if name in written else _other(writer, name)
            takes = wanted[name] if name in wanted else _other(reader, name)
            messages += self._property(name, takes, given, f"{path}/properties/{name}")
        messages += self._required(reader, writer, path)
        open_, closed = writer.get("additionalProperties", True), reader.get("additionalProperties", True)
        messages += self._rest("additionalProperties", closed, open_, path)
        for pattern, schema in (reader.get("patternProperties") or {}).items():
            same = (writer.get("patternProperties") or {}).get(pattern)
            given = same if same is not None else writer.get("additionalProperties", True)
            messages += self.compare(schema, given, f"{path}/patternProperties/{pattern}")
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


def _other(part: dict[str, Any], name: str) -> Part:
    """Return the schema of a property that is not named. No pattern is run: schemas are by strangers."""
    patterns = part.get("patternProperties") or {}
    plain = next((schema for pattern, schema in patterns.items() if _begins(pattern, name)), None)
    return part.get("additionalProperties", True) if plain is None else plain


def _begins(pattern: str, name: str) -> bool:
    """Return whether a pattern of letters behind `^` is the beginning of a name."""
    text = pattern[1:].removesuffix(".*") if pattern.startswith("^") else None
    return text is not None and text.replace("_", "").replace("-", "").isalnum() and name.startswith(text)


def _items(part: dict[str, Any]) -> tuple[list[Part], Part]:
    """Return the schemas of the first items, and that of all others."""
    items = part.get("items", True)
    if "prefixItems" in part:
        return part["prefixItems"], items
    return (items, part.get("additionalItems", True)) if isinstance(items, list) else ([], items)


def _types(part: dict[str, Any]) -> set[str]:
    found = part.get("type")
    if found is None:
        values = part.get("enum") or ([part["const"]] if "const" in part else None)
        return set(TYPES) if values is None else {_type_of(value) for value in values}
    return {found} if isinstance(found, str) else set(found)


def _type_of(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _may_be(reader: dict[str, Any], writer: dict[str, Any], kind: str) -> bool:
    return kind in _types(reader) and kind in _types(writer)


def _type_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if "type" not in reader or _sum(writer):
        return []
    given, takes = _types(writer), _types(reader)
    takes |= {"integer"} if "number" in takes else set()
    missing = sorted(given - takes)
    return (
        [f"the writer has {', '.join(missing)}, and the reader takes {', '.join(sorted(takes))}"]
        if missing
        else []
    )


def _enum_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    values = _values(reader)
    if values is None:
        return []
    given = _values(writer)
    if given is None:
        return ["the reader takes some values only, the writer may have written any"]
    missing = sorted(given - values)
    return [f"the reader does not take {', '.join(missing[:5])}"] if missing else []


def _values(part: dict[str, Any]) -> set[str] | None:
    values = part["enum"] if "enum" in part else [part["const"]] if "const" in part else None
    return None if values is None else {compact(_ordered(value)) for value in values}


def _pattern_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if (
        "pattern" not in reader
        or reader["pattern"] == writer.get("pattern")
        or "string" not in _types(writer)
    ):
        return []
    return ["the pattern of texts is another one in the reader"]


def _unique_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if not reader.get("uniqueItems") or writer.get("uniqueItems") or "array" not in _types(writer):
        return []
    return ["items must be unique for the reader"]


def _multiple_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    wanted, given = reader.get("multipleOf"), writer.get("multipleOf")
    if not wanted or not {"number", "integer"} & _types(writer):
        return []
    if given is None or given % wanted != 0:
        return [f"numbers must be multiples of {wanted} for the reader"]
    return []


_DEPENDENCIES: Final = ("dependencies", "dependentRequired")


def _dependency_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if "object" not in _types(writer):
        return []
    messages = []
    for key in _DEPENDENCIES:
        for name, wanted in (reader.get(key) or {}).items():
            given = (writer.get(key) or {}).get(name)
            is_less = (
                isinstance(wanted, list) and isinstance(given, list) and all(part in given for part in wanted)
            )
            if wanted != given and not is_less:
                messages.append(f"what depends on {name!r} is more in the reader")
    return messages


def _bound_rule(kind: str, lower: str, upper: str) -> Callable[[dict[str, Any], dict[str, Any]], list[str]]:
    kinds = {"number", "integer"} if kind == "number" else {kind}

    def rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
        if not kinds & _types(writer):
            return []
        messages = []
        for key, sign in ((lower, 1), (upper, -1)):
            wanted, given = _bound(reader, key), _bound(writer, key)
            if wanted is not None and (
                given is None or (wanted[0] * sign, wanted[1]) > (given[0] * sign, given[1])
            ):
                messages.append(f"the reader's {key} is {wanted[0]}, the writer's {given and given[0]}")
        return messages

    return rule


def _bound(part: dict[str, Any], key: str) -> tuple[float, bool] | None:
    """Return a bound, and whether it is itself excluded."""
    exclusive = "exclusive" + key[0].upper() + key[1:]
    found, apart = part.get(key), part.get(exclusive)
    if isinstance(apart, bool) or apart is None:
        return (
            None
            if found is None or (key.startswith("min") and key != "minimum" and found == 0)
            else (found, bool(apart))
        )
    if found is None:
        return apart, True
    beyond = apart >= found if key == "minimum" else apart <= found
    return (apart, True) if beyond else (found, False)


_RULES: Final = (
    _type_rule, _enum_rule, _pattern_rule, _unique_rule, _multiple_rule, _dependency_rule,
    _bound_rule("string", "minLength", "maxLength"), _bound_rule("number", "minimum", "maximum"),
    _bound_rule("array", "minItems", "maxItems"), _bound_rule("object", "minProperties", "maxProperties"),
)  # fmt: skip
