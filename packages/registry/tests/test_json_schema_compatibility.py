"""Compatibility of JSON Schemas: does each document of a writer fit the reader?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.registry.compatibility import json_schema
from ottla.registry.compatibility.bounds import BadSchema, TooComplex


def found(reader: Any, writer: Any) -> list[str]:
    return json_schema.incompatibilities(
        json_schema.parse_json_schema(json.dumps(reader)), json_schema.parse_json_schema(json.dumps(writer))
    )


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT = {"type": "string"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}, "value": TEXT}}
TREE = {"$ref": "#/definitions/node", "definitions": {"node": NODE}}
FIRST = {"type": "array", "items": [TEXT], "additionalItems": False}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (True, TEXT), ({}, False), ({"title": "x"}, opened(a=TEXT)),
        ({"type": "number"}, {"type": "integer"}), ({"type": ["string", "null"]}, TEXT),
        (closed(a=TEXT, b=TEXT), closed(a=TEXT)),
        (opened(a=TEXT), opened(a=TEXT, b=TEXT)),
        ({**closed(a=TEXT), "required": []}, {**closed(a=TEXT), "required": ["a"]}),
        ({**closed(a={**TEXT, "default": ""}), "required": ["a"]}, closed(a=TEXT)),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}), ({"enum": ["a", "b"]}, {"const": "b"}),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 8}),
        ({"type": "integer", "minimum": 1}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 4}),
        ({"anyOf": [TEXT, {"type": "null"}]}, TEXT),
        ({"oneOf": [TEXT, {"type": "null"}]}, {"anyOf": [{"type": "null"}, TEXT]}),
        ({"allOf": [TEXT]}, {"allOf": [TEXT, {"maxLength": 3}]}), (TEXT, {"allOf": [TEXT, {"maxLength": 3}]}),
        ({"not": {"type": "string", "maxLength": 1}}, {"not": TEXT}),
        ({"type": "array", "items": {"type": "number"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "array", "items": [TEXT]}, FIRST), (TREE, TREE), (TREE,
         NODE | {"definitions": {"node": NODE}}),
        (opened(a=TEXT), closed(a=TEXT)),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a", "maxLength": 3}),
        ({**TEXT, "format": "date"}, TEXT),
        ({"if": {}, **TEXT}, {"if": {}, **TEXT}),
    ],
)  # fmt: skip
def test_a_reader_takes_each_document_of_the_writer(reader: Any, writer: Any) -> None:
    assert found(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "words"),
    [
        (False, TEXT, "takes nothing"), (TEXT, True, "the writer has"),
        ({"type": "integer"}, {"type": "number"}, "the writer has number"),
        (closed(a=TEXT), closed(a=TEXT, b=TEXT), "#/properties/b"),
        (opened(a=TEXT, b=TEXT), opened(a=TEXT), "may have written anything as 'b'"),
        (closed(a=TEXT), opened(a=TEXT), "#/additionalProperties"),
        ({**closed(a=TEXT), "required": ["a"]}, closed(a=TEXT), "'a' is required"),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, 'does not take "b"'), ({"enum": ["a"]}, TEXT,
         "some values only"),
        ({"type": "string", "maxLength": 8}, {"type": "string", "maxLength": 9}, "maxLength is 8"),
        ({"type": "string", "minLength": 1}, TEXT, "minLength is 1"),
        ({"type": "integer", "exclusiveMinimum": 1}, {"type": "integer", "minimum": 1}, "minimum is 1"),
        ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 2}, "multiples of 4"),
        (TEXT, {"anyOf": [TEXT, {"type": "null"}]}, "#/1: the writer has null"),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"type": "integer"}, "no schema of the reader's anyOf"),
        ({"allOf": [{"maxLength": 3}]}, TEXT, "nothing that implies it"),
        ({"not": TEXT}, {"type": ["string", "null"]}, "excludes more"),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, "must be unique"),
        (FIRST, {"type": "array", "items": [TEXT]}, "#/items: the reader takes none beside"),
        ({"type": "string", "pattern": "^a"}, TEXT, "pattern of texts"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object"}, "depends on 'a'"),
        ({"type": "object", "propertyNames": TEXT}, {"type": "object"}, "has 'propertyNames'"),
        (TREE, {"$ref": "#/definitions/node", "definitions": {"node": opened(value={"type": "null"})}},
         "null"),
    ],
)  # fmt: skip
def test_a_reader_that_does_not_take_all_says_where(reader: Any, writer: Any, words: str) -> None:
    messages = found(reader, writer)

    assert any(words in message for message in messages), messages


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strng"}, "not known"), ({"properties": []}, "'properties' cannot be"), (7,
         "an object or a boolean"),
        ({"$ref": "#/nowhere"}, "leads nowhere"), ({"$ref": "http://example.com/x"}, "leads nowhere"),
        ({"$ref": "#"}, "leads to itself"), ({"minLength": "x"}, "'minLength' cannot be"),
        ({"items": [1]}, "an object or a boolean"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_schema_is_refused_with_the_reason(schema: Any, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        json_schema.parse_json_schema(json.dumps(schema))


def test_each_branch_is_compared_together_with_the_keywords_beside_it() -> None:
    branches = [opened(a={"const": number}) for number in range(5)]
    reader = opened(a={"enum": [0, 1, 2, 3]})

    messages = found(reader, {"maxProperties": 5, "anyOf": branches})

    assert [message.partition("/properties")[0] for message in messages] == ["#/4"]


def test_exclusions_within_exclusions_share_the_steps() -> None:
    def nested(depth: int, mark: int) -> Any:
        if depth == 0:
            return {"const": mark}
        return {"not": {"anyOf": [opened(a=nested(depth - 1, mark * 5 + index)) for index in range(5)]}}

    with pytest.raises((TooComplex, BadSchema)):
        found(nested(6, 1), nested(6, 2))


def test_branches_made_to_take_long_are_given_up() -> None:
    def nested(depth: int, mark: int) -> Any:
        if depth == 0:
            return {"const": mark}
        return {"anyOf": [opened(a=nested(depth - 1, mark * 7 + index)) for index in range(7)]}

    with pytest.raises((TooComplex, BadSchema)):
        found(nested(5, 1), nested(5, 2))


def test_imported_schemas_are_followed() -> None:
    parsed = json_schema.parse_json_schema(
        '{"$ref": "item.json#/definitions/x"}', [("item.json", '{"definitions": {"x": {"type": "null"}}}')]
    )

    assert json_schema.incompatibilities(parsed, json_schema.parse_json_schema('{"type": "string"}'))
    assert not json_schema.incompatibilities(parsed, json_schema.parse_json_schema('{"type": "null"}'))


def test_a_part_that_fits_only_within_one_that_does_not_is_compared_again() -> None:
    # The first branch of `anyOf` compares the node while the tree is taken to fit; the tree does not.
    tree = {"type": "object", "properties": {"node": {"$ref": "#/definitions/node"}}, "required": ["id"]}
    node = {"type": "object", "properties": {"tree": {"$ref": "#/definitions/tree"}}}
    reader = {
        **closed(first={"anyOf": [{"$ref": "#/definitions/tree"}, {"type": "object"}]},
                 second={"$ref": "#/definitions/node"}),
        "definitions": {"tree": tree, "node": node},
    }  # fmt: skip
    without = {key: value for key, value in tree.items() if key != "required"}
    writer = {
        **closed(first={"$ref": "#/definitions/tree"}, second={"$ref": "#/definitions/node"}),
        "definitions": {"tree": without, "node": node},
    }

    assert "'id' is required" in found(reader, writer)[0]


NUMBERS = {"type": "integer"}
SAME_REFERENCE = {"contains": {"$ref": "#/definitions/part"}}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ({"patternProperties": {"^[a-z]+$": NUMBERS}}, closed(a=TEXT)),
        ({**closed(a=TEXT), "patternProperties": {"^a": NUMBERS}}, closed(a=TEXT)),
        (opened(a=NUMBERS), {"patternProperties": {"^[a-z]+$": TEXT}, "additionalProperties": False}),
        (closed(), {"patternProperties": {"^a": TEXT}, "additionalProperties": False}),
        ({"patternProperties": {"^ab": NUMBERS}},
         {"patternProperties": {"^a": TEXT}, "additionalProperties": False}),
        ({**SAME_REFERENCE, "definitions": {"part": NUMBERS}},
         {**SAME_REFERENCE, "definitions": {"part": TEXT}}),
    ],
)  # fmt: skip
def test_patterns_and_references_that_may_mean_something_else_do_not_fit(reader: Any, writer: Any) -> None:
    assert found(reader, writer)


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ({**opened(a=TEXT), "patternProperties": {"^[x]": NUMBERS}},
         {**opened(a={**TEXT, "maxLength": 3}), "patternProperties": {"^[x]": NUMBERS}}),
        ({**SAME_REFERENCE, "definitions": {"part": TEXT}}, {**SAME_REFERENCE, "definitions": {"part": TEXT},
         "maxItems": 3}),
        ({"type": "object", "anyOf": [{"type": "object", "minProperties": 1}]},
         {"type": "object", "anyOf": [{"type": "object", "minProperties": 1}], "title": "x"}),
    ],
)  # fmt: skip
def test_what_both_sides_have_fits(reader: Any, writer: Any) -> None:
    assert found(reader, writer) == []
