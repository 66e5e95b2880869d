"""Drawn JSON Schemas: what the comparison calls compatible holds for drawn documents, by `jsonschema`."""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any, Final

import jsonschema
import pytest

from ottla.registry.compatibility import json_schema
from ottla.registry.compatibility.bounds import BadSchema

SCHEMAS: Final = int(os.environ.get("OTTLA_DRAWN_SCHEMAS", "400"))
NAMES: Final = ("a", "b", "ab")
PATTERNS: Final = ("^a", "^[a-z]+$", "b$")
PLAIN: Final[tuple[Any, ...]] = (
    True, False, {}, {"type": "string"}, {"type": "integer"}, {"type": "null"}, {"type": ["integer", "null"]},
    {"enum": ["a", 1]}, {"const": 1}, {"type": "number", "minimum": 2}, {"exclusiveMaximum": 2},
    {"type": "string", "minLength": 1}, {"type": "integer", "multipleOf": 2},
    {"$ref": "#/definitions/n"}, {"$ref": "#/definitions/m"},
)  # fmt: skip
VALUES: Final = ("", "a", "ab", "abc", -1, 0, 1, 2, 3, 6, 1.5, None, True)


class Draw:
    """Draws schemas, changes of them and documents."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def schema(self, depth: int) -> Any:
        if depth <= 0 or self.chance(0.2):
            return self.random.choice(PLAIN)
        return self.random.choice((self.object, self.object, self.array, self.sum))(depth - 1)

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object"} if self.chance(0.8) else {}
        found["properties"] = {
            name: self.schema(depth) for name in self.random.sample(NAMES, self.random.randint(0, 2))
        }
        if self.chance(0.6):
            found["patternProperties"] = {self.random.choice(PATTERNS): self.schema(depth)}
        if self.chance(0.6):
            found["additionalProperties"] = self.schema(depth) if self.chance(0.5) else False
        if self.chance(0.3):
            found["required"] = self.random.sample(NAMES, 1)
        return found

    def array(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "array"} if self.chance(0.8) else {}
        found["items"] = [self.schema(depth), self.schema(depth)] if self.chance(0.5) else self.schema(depth)
        if isinstance(found["items"], list) and self.chance(0.5):
            found["additionalItems"] = self.schema(depth)
        if self.chance(0.2):
            found["contains"] = self.schema(depth)
        return found

    def sum(self, depth: int) -> dict[str, Any]:
        found = {self.random.choice(("anyOf", "allOf")): [self.schema(depth), self.schema(depth)]}
        return found | (self.object(depth) if self.chance(0.3) else {})

    def root(self) -> dict[str, Any]:
        return {"allOf": [self.object(1)], "definitions": {"n": self.schema(1), "m": self.schema(0)}}

    def changed(self, root: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with one or two parts drawn again."""
        copy: dict[str, Any] = json.loads(json.dumps(root))
        for _ in range(self.random.randint(1, 2)):
            holder, key = self.random.choice(list(parts(copy)))
            holder[key] = self.schema(1)
        return copy

    def document(self, schema: Any, root: dict[str, Any], depth: int = 5) -> Any:
        """Return a document that is likely to fit."""
        if depth <= 0 or not isinstance(schema, dict) or not schema or self.chance(0.1):
            return self.random.choice((*VALUES, {"b": 1}, {"ab": "a", "c": None}, [1, "a"]))
        if "$ref" in schema:
            return self.document(root["definitions"][schema["$ref"][-1]], root, depth - 1)
        for key in ("anyOf", "allOf"):
            if key in schema and self.chance(0.7):
                return self.document(self.random.choice(schema[key]), root, depth)
        guessed = "array" if "items" in schema else "object" if "properties" in schema else ""
        kind = schema.get("type") or guessed
        if kind == "object":
            names = [name for name in (*NAMES, "c") if self.chance(0.5) or name in schema.get("required", ())]
            return {name: self.document(of_name(schema, name), root, depth - 1) for name in names}
        if kind == "array":
            items = schema.get("items", True)
            given = items if isinstance(items, list) else [items] * self.random.randint(0, 3)
            return [self.document(part, root, depth - 1) for part in given]
        return self.random.choice(VALUES)


def parts(schema: Any) -> Any:
    """Iterate over (holder, key) of all schemas within a schema."""
    for key, found in schema.items() if isinstance(schema, dict) else ():
        if key in ("properties", "patternProperties", "definitions"):
            yield from ((found, name) for name in found)
            for inner in found.values():
                yield from parts(inner)
        elif isinstance(found, list) and key in ("anyOf", "allOf", "items"):
            yield from ((found, index) for index in range(len(found)))
            for inner in found:
                yield from parts(inner)
        elif key in ("additionalProperties", "additionalItems", "items", "contains"):
            yield schema, key
            yield from parts(found)


def of_name(schema: dict[str, Any], name: str) -> Any:
    patterns = schema.get("patternProperties", {})
    rest = schema.get("additionalProperties", True)
    other = next((patterns[of] for of in patterns if re.search(of, name)), rest)
    return schema.get("properties", {}).get(name, other)


def is_valid(schema: Any, document: Any) -> bool | None:
    """Return whether a document fits; None of a schema that is defined by itself without an end."""
    try:
        return bool(jsonschema.Draft7Validator(schema).is_valid(document))
    except RecursionError:
        return None


@pytest.mark.parametrize("seed", range(4))
def test_documents_of_the_writer_fit_a_reader_that_is_called_compatible(seed: int) -> None:
    draw, checked = Draw(seed), 0
    for _ in range(SCHEMAS // 4):
        writer = draw.root()
        reader = draw.changed(writer)
        reader, writer = (reader, writer) if draw.chance(0.5) else (writer, reader)
        try:
            ours, theirs = (json_schema.parse_json_schema(json.dumps(schema)) for schema in (reader, writer))
            if json_schema.incompatibilities(ours, theirs):
                continue
        except BadSchema:
            continue
        for document in [draw.document(writer, writer) for _ in range(30)]:
            if is_valid(writer, document):
                checked += 1
                assert is_valid(reader, document) is not False, (reader, writer, document)
    assert checked > SCHEMAS // 4
