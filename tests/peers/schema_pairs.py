"""Pairs of schemas, an older and a newer one, by the change between them: for verdicts of registries."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Pair = tuple[str, str, str]
"""The name of a change, the older schema, and the newer one."""


def avro_pairs(seed: int, rounds: int) -> Iterator[Pair]:
    """Yield pairs of Avro schemas: each change at a place that is drawn."""
    for number in range(rounds):
        for name, change in _AVRO.items():
            chance = random.Random(f"{seed} {number} {name}")
            older = _record(chance)
            newer = json.loads(json.dumps(older))
            change(newer, chance)
            yield name, json.dumps(older), json.dumps(newer)


def _record(chance: random.Random) -> dict[str, Any]:
    types: list[Any] = [
        "int", "long", "float", "string", "bytes", ["null", "string"], {"type": "array", "items": "int"},
        {"type": "map", "values": "long"}, {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]},
    ]  # fmt: skip
    chosen = chance.sample(types, chance.randrange(3, len(types) + 1))
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(chosen)]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


def _retype(old: str, new: Any) -> Callable[[dict[str, Any], random.Random], None]:
    def change(schema: dict[str, Any], chance: random.Random) -> None:
        for field in schema["fields"]:
            if field["type"] == old:
                field["type"] = new

    return change


def _set(kind: str, **more: Any) -> Callable[[dict[str, Any], random.Random], None]:
    def change(schema: dict[str, Any], chance: random.Random) -> None:
        for field in schema["fields"]:
            if isinstance(field["type"], dict) and field["type"]["type"] == kind:
                field["type"].update(more)

    return change


_AVRO: dict[str, Callable[[dict[str, Any], random.Random], object]] = {
    "nothing": lambda schema, chance: None,
    "field added": lambda schema, chance: schema["fields"].append({"name": "new", "type": "int"}),
    "field with default added": lambda schema, chance: schema["fields"].insert(
        chance.randrange(len(schema["fields"])), {"name": "new", "type": "int", "default": 1}
    ),
    "field removed": lambda schema, chance: schema["fields"].pop(chance.randrange(len(schema["fields"]))),
    "fields reordered": lambda schema, chance: chance.shuffle(schema["fields"]),
    "record renamed": lambda schema, chance: schema.update(name="Purchase"),
    "record renamed with alias": lambda schema, chance: schema.update(name="Purchase", aliases=["Order"]),
    "namespace changed": lambda schema, chance: schema.update(namespace="store"),
    "field renamed": lambda schema, chance: schema["fields"][0].update(name="other"),
    "field renamed with alias": lambda schema, chance: schema["fields"][0].update(name="other",
     aliases=["f0"]),
    "documented": lambda schema, chance: schema.update(doc="words"),
    "int to long": _retype("int", "long"), "long to int": _retype("long", "int"),
    "int to double": _retype("int", "double"), "float to long": _retype("float", "long"),
    "string to bytes": _retype("string", "bytes"), "bytes to string": _retype("bytes", "string"),
    "int to union": _retype("int", ["null", "int"]), "string to union of long": _retype("string", ["null",
     "long"]),
    "string to int": _retype("string", "int"),
    "enum extended": _set("enum", symbols=["A", "B", "C"]), "enum narrowed": _set("enum", symbols=["A"]),
    "enum narrowed with default": _set("enum", symbols=["A"], default="A"),
    "fixed grown": _set("fixed", size=5), "items promoted": _set("array", items="long"),
    "items changed": _set("array", items="string"), "values demoted": _set("map", values="int"),
    "inner field added": _set("record", fields=[{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]),
    "inner field with default added": _set(
        "record", fields=[{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}]
    ),
    "logical type added": _retype("long", {"type": "long", "logicalType": "timestamp-millis"}),
}  # fmt: skip


def json_pairs() -> Iterator[Pair]:
    """Yield pairs of JSON Schemas, each with open and with closed content."""
    for content in ("open", "closed"):
        for name, (older, newer) in _JSON.items():
            more = {"additionalProperties": False} if content == "closed" else {}
            yield f"{name}, {content}", _object(older, more), _object(newer, more)
    for name, (old, new) in _BARE.items():
        yield name, json.dumps(_DRAFT | old), json.dumps(_DRAFT | new)


def _object(properties: dict[str, Any], more: dict[str, Any]) -> str:
    listed = {name: schema for name, schema in properties.items() if name != "required"}
    required = {"required": properties["required"]} if "required" in properties else {}
    return json.dumps({**_DRAFT, "type": "object", "properties": listed, **more, **required})


_TEXT = {"type": "string"}
_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}
"""Without it Apicurio's registry does not take most texts for a JSON Schema."""
_JSON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({"a": _TEXT}, {"a": _TEXT}),
    "property added": ({"a": _TEXT}, {"a": _TEXT, "b": {"type": "integer"}}),
    "property removed": ({"a": _TEXT, "b": _TEXT}, {"a": _TEXT}),
    "required property added": ({"a": _TEXT}, {"a": _TEXT, "b": _TEXT, "required": ["b"]}),
    "required property with default added": (
        {"a": _TEXT}, {"a": _TEXT, "b": {**_TEXT, "default": ""}, "required": ["b"]},
    ),
    "property becomes required": ({"a": _TEXT}, {"a": _TEXT, "required": ["a"]}),
    "property becomes optional": ({"a": _TEXT, "required": ["a"]}, {"a": _TEXT}),
    "any property added": ({"a": _TEXT}, {"a": _TEXT, "b": {}}),
    "type widened": ({"a": {"type": "integer"}}, {"a": {"type": "number"}}),
    "type narrowed": ({"a": {"type": "number"}}, {"a": {"type": "integer"}}),
    "null allowed": ({"a": _TEXT}, {"a": {"type": ["string", "null"]}}),
    "type changed": ({"a": _TEXT}, {"a": {"type": "integer"}}),
    "nested property added": (
        {"a": {"type": "object", "properties": {}}}, {"a": {"type": "object", "properties": {"x": _TEXT}}},
    ),
}  # fmt: skip
_BARE: dict[str, tuple[Any, Any]] = {
    "enum extended": ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    "enum narrowed": ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    "maxLength raised": ({**_TEXT, "maxLength": 3}, {**_TEXT, "maxLength": 4}),
    "maxLength lowered": ({**_TEXT, "maxLength": 4}, {**_TEXT, "maxLength": 3}),
    "maxLength added": (_TEXT, {**_TEXT, "maxLength": 3}),
    "minLength removed": ({**_TEXT, "minLength": 3}, _TEXT),
    "pattern added": (_TEXT, {**_TEXT, "pattern": "^a"}),
    "pattern removed": ({**_TEXT, "pattern": "^a"}, _TEXT),
    "pattern changed": ({**_TEXT, "pattern": "^a"}, {**_TEXT, "pattern": "^b"}),
    "minimum lowered": ({"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 2}),
    "minimum raised": ({"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 4}),
    "multiple divided": ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}),
    "multiple grown": ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 4}),
    "maxItems lowered": ({"type": "array", "maxItems": 4}, {"type": "array", "maxItems": 3}),
    "items become unique": ({"type": "array"}, {"type": "array", "uniqueItems": True}),
    "items widened": (
        {"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "number"}},
    ),
    "items narrowed": (
        {"type": "array", "items": {"type": "number"}}, {"type": "array", "items": {"type": "integer"}},
    ),
    "closed": ({"type": "object"}, {"type": "object", "additionalProperties": False}),
    "opened": ({"type": "object", "additionalProperties": False}, {"type": "object"}),
    "branch added": ({"anyOf": [_TEXT]}, {"anyOf": [_TEXT, {"type": "null"}]}),
    "branch removed": ({"anyOf": [_TEXT, {"type": "null"}]}, {"anyOf": [_TEXT]}),
    "condition added": ({"allOf": [_TEXT]}, {"allOf": [_TEXT, {"maxLength": 3}]}),
    "condition removed": ({"allOf": [_TEXT, {"maxLength": 3}]}, {"allOf": [_TEXT]}),
    "title changed": ({**_TEXT, "title": "a"}, {**_TEXT, "title": "b"}),
}  # fmt: skip


def protobuf_pairs() -> Iterator[Pair]:
    """Yield pairs of files of Protobuf."""
    for name, (older, newer) in _PROTOBUF.items():
        yield name, f'syntax = "proto3"; package shop; {older}', f'syntax = "proto3"; package shop; {newer}'
    yield (
        "package changed",
        'syntax = "proto3"; package a; message A {}',
        'syntax = "proto3"; package b; message A {}',
    )


_PROTOBUF: dict[str, tuple[str, str]] = {
    "nothing": ("message A { int32 x = 1; }", "message A { int32 x = 1; }"),
    "field added": ("message A { int32 x = 1; }", "message A { int32 x = 1; string y = 2; }"),
    "field removed": ("message A { int32 x = 1; string y = 2; }", "message A { int32 x = 1; }"),
    "field removed, number reserved": ("message A { int32 x = 1; string y = 2; }",
                                       'message A { int32 x = 1; reserved 2; reserved "y"; }'),
    "field renamed": ("message A { int32 x = 1; }", "message A { int32 z = 1; }"),
    "int32 to int64": ("message A { int32 x = 1; }", "message A { int64 x = 1; }"),
    "int32 to uint32": ("message A { int32 x = 1; }", "message A { uint32 x = 1; }"),
    "int32 to bool": ("message A { int32 x = 1; }", "message A { bool x = 1; }"),
    "int32 to sint32": ("message A { int32 x = 1; }", "message A { sint32 x = 1; }"),
    "int32 to string": ("message A { int32 x = 1; }", "message A { string x = 1; }"),
    "int32 to fixed32": ("message A { int32 x = 1; }", "message A { fixed32 x = 1; }"),
    "fixed32 to sfixed32": ("message A { fixed32 x = 1; }", "message A { sfixed32 x = 1; }"),
    "string to bytes": ("message A { string x = 1; }", "message A { bytes x = 1; }"),
    "float to double": ("message A { float x = 1; }", "message A { double x = 1; }"),
    "enum to int32": ("message A { E x = 1; } enum E { U = 0; }",
     "message A { int32 x = 1; } enum E { U = 0; }"),
    "string repeated": ("message A { string x = 1; }", "message A { repeated string x = 1; }"),
    "int32 repeated": ("message A { int32 x = 1; }", "message A { repeated int32 x = 1; }"),
    "message added": ("message A {}", "message A {} message B {}"),
    "message removed": ("message A {} message B {}", "message A {}"),
    "nested message removed": ("message A { message I {} }", "message A { }"),
    "message renamed": ("message A { int32 x = 1; }", "message B { int32 x = 1; }"),
    "enum value added": ("message A { enum E { U = 0; } }", "message A { enum E { U = 0; V = 1; } }"),
    "enum value removed": ("message A { enum E { U = 0; V = 1; } }", "message A { enum E { U = 0; } }"),
    "number changed": ("message A { int32 x = 1; }", "message A { int32 x = 2; }"),
    "field into new oneof": ("message A { int32 x = 1; }", "message A { oneof o { int32 x = 1; } }"),
    "fields into new oneof": ("message A { int32 x = 1; int32 y = 2; }",
     "message A { oneof o { int32 x = 1; int32 y = 2; } }"),
    "field into old oneof": ("message A { int32 x = 1; oneof o { int32 y = 2; } }",
     "message A { oneof o { int32 x = 1; int32 y = 2; } }"),
    "oneof field removed": ("message A { oneof o { int32 x = 1; int32 y = 2; } }",
     "message A { oneof o { int32 x = 1; } }"),
    "oneof field added": ("message A { oneof o { int32 x = 1; } }",
     "message A { oneof o { int32 x = 1; int32 y = 2; } }"),
    "message type changed": ("message A { B x = 1; } message B {} message C {}",
     "message A { C x = 1; } message B {} message C {}"),
    "map value changed": ("message A { map<string, int32> m = 1; }",
     "message A { map<string, string> m = 1; }"),
    "service added": ("message A {}", "message A {} service S { rpc X(A) returns (A); }"),
}  # fmt: skip
