"""Compatibility of Avro schemas: Avro's rules of resolution, names, bounds, and the canonical text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.registry.compatibility import avro
from ottla.registry.compatibility.bounds import BadSchema, TooComplex

RECORD = {"type": "record", "name": "Order", "namespace": "shop"}


def record(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**RECORD, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def found(reader: Any, writer: Any) -> list[str]:
    return avro.incompatibilities(avro.parse_avro(json.dumps(reader)), avro.parse_avro(json.dumps(writer)))


ID = field("id", "long")
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
MORE = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
TREE = record(field("next", ["null", "Order"], default=None), field("value", "int"))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("long", "int"), ("float", "long"), ("double", "float"), ("bytes", "string"), ("string", "bytes"),
        (record(ID), record(ID, field("old", "string"))),
        (record(ID, field("new", "string", default="")), record(ID)),
        (record(field("number", "long", aliases=["id"])), record(ID)),
        (record(ID, name="Purchase", aliases=["Order"]), record(ID)),
        (record(ID, namespace="store"), record(ID)),
        (["null", "long"], "int"), (["null", "string", "long"], ["null", "int"]),
        (MORE, ENUM), ({**ENUM, "default": "A"}, MORE),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}),
        (record(field("next", ["null", "Order"], default=None), field("value", "long")), TREE),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
    ],
)  # fmt: skip
def test_a_reader_reads_what_avro_resolves(reader: Any, writer: Any) -> None:
    assert found(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "words"),
    [
        ("int", "long", "long cannot be read as int"),
        (record(ID, field("new", "string")), record(ID), "'new' has no default"),
        (record(field("id", "int")), record(ID), "/fields/0/type: long cannot be read as int"),
        (record(ID, name="Purchase"), record(ID), "another name"),
        ("int", ["null", "int"], "/0: null cannot be read as int"),
        (["null", "string"], "int", "has no type for int"),
        (ENUM, MORE, "lacks C"),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "5 bytes"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "map cannot be read as array"),
        (
            record(field("next", ["null", "Order"], default=None), field("value", "string")),
            TREE,
            "int cannot",
        ),
    ],
)
def test_a_reader_that_cannot_read_says_where(reader: Any, writer: Any, words: str) -> None:
    messages = found(reader, writer)

    assert any(words in message for message in messages), messages


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"type": "nope"}', "'nope' is not defined"),
        ("{", "no JSON"),
        ('{"type": "record", "name": "R"}', "needs a list of 'fields'"),
        ('{"type": "record", "name": "R R", "fields": []}', "is no name of a type"),
        ('["null", "null"]', "has 'null' twice"),
        ('["null", ["int"]]', "has a union in it"),
        ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', "a symbol twice"),
        ('{"type": "fixed", "name": "F", "size": -1}', "needs a 'size'"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}',
            "default",
        ),
        ('{"type": "array"}', "needs 'items'"),
        ("17", "is a name, a list or an object"),
        ("[" * 5_000 + "]" * 5_000, "deep"),
        ('{"type": "array", "items": ' * 150 + '"int"' + "}" * 150, "more than 100 levels"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        avro.parse_avro(text)


def test_equal_schemas_have_one_text() -> None:
    first = (
        '{ "fields": [{"type": {"type": "string"}, "name": "id"}], "name": "shop.Order", "type": "record" }'
    )
    second = '{"type":"record","namespace":"shop","name":"Order","fields":[{"name":"id","type":"string"}]}'

    assert avro.parse_avro(first).text == avro.parse_avro(second).text
    assert json.loads(avro.parse_avro(first).text)["namespace"] == "shop"
    assert avro.parse_avro("string").text == avro.parse_avro('{"type": "string"}').text == '"string"'


def test_imported_names_are_known() -> None:
    item = json.dumps({"type": "record", "name": "shop.Item", "fields": [ID]})

    parsed = avro.parse_avro(json.dumps(record(field("item", "Item"))), [("shop.Item", item)])

    assert parsed.type.fields[0].type.name == "shop.Item"


def test_unions_made_to_take_long_are_given_up() -> None:
    def nested(depth: int, leaf: str) -> Any:
        records = [
            {"type": "record", "name": f"R{depth}_{index}_{leaf}", "fields": []} for index in range(150)
        ]
        return [*records]

    reader, writer = nested(0, "a"), nested(0, "b")
    wide = [record(field(f"f{index}", "int"), name=f"X{index}") for index in range(400)]

    assert found(reader, writer)
    with pytest.raises(TooComplex, match="more than 100000 steps"):
        found(wide, [{**entry, "name": f"Y{entry['name']}"} for entry in wide])


def test_a_type_that_fits_only_within_one_that_does_not_is_compared_again() -> None:
    # The first type of the union compares Node while Tree is taken to fit. It does not, and Node has a Tree.
    def schema(tree: list[dict[str, Any]], first: Any) -> dict[str, Any]:
        node = {"type": "record", "name": "Node", "fields": [field("tree", ["null", "Tree"])]}
        trees = {"type": "record", "name": "Tree", "fields": [field("node", node), *tree]}
        fields = [field("first", first(trees)), field("second", "Node")]
        return {"type": "record", "name": "Both", "fields": fields}

    other = {"type": "record", "name": "Tree2", "aliases": ["Tree"], "fields": []}
    reader = schema([field("id", "int")], lambda tree: [tree, other])
    writer = schema([], lambda tree: tree)

    assert "the reader's union has no type for record Tree" in found(reader, writer)[0]
