"""Masks: fields of JSON and msgpack, headers, keys and values that a viewer may not read."""

from __future__ import annotations

import json
import pickle
from random import Random

import msgpack
import pytest

from ottla.console.logins.access import Grant, Role, Viewer
from ottla.console.records.filters import CompiledFilter, Filter
from ottla.console.records.masking import (
    HIDDEN,
    HIDDEN_CAUSE,
    NO_MASK,
    Mask,
    MaskRule,
    full_mask,
    mask_of,
    masked,
    masked_fields,
)
from ottla.console.records.reading import ShownRecord
from ottla.console.records.scanning import Span, Window, batches, look_through
from ottla.console.records.values import shown_value
from ottla.protocol.records import BatchBuilder

VIEWER = Viewer("anna", (Grant(Role.VIEWER),))


def value_of(value: bytes | None, *fields: str) -> bytes | None:
    return masked(ShownRecord(0, 0, 0, b"k", value), Mask(fields)).value


@pytest.mark.parametrize(
    ("value", "fields", "shown"),
    [
        ('{"card": "4111", "sum": 1}', ["card"], '{"card": "•••", "sum": 1}'),
        ('{"a": {"card": 1}, "b": [{"card": [2, {"x": 3}]}], "n": 2}', ["card"],
         '{"a": {"card": "•••"}, "b": [{"card": "•••"}], "n": 2}'),
        ('{"card":{"number":"4","type":"v"},"number":"5"}', ["card.number"],
         '{"card":{"number":"•••","type":"v"},"number":"5"}'),
        ('[{"p":[{"q":1}]},{"p":{"q":2}}]', ["p.q"], '[{"p":[{"q":"•••"}]},{"p":{"q":"•••"}}]'),
        ('{"a":{"secret":1},"b":{"c":{"secret":2}}}', ["*.secret"],
         '{"a":{"secret":"•••"},"b":{"c":{"secret":2}}}'),
        ('{"a":{"b":{"c":1}},"c":2}', ["a.**.c"], '{"a":{"b":{"c":"•••"}},"c":2}'),
        ('{"c\\u0061rd": "4111"}', ["card"], '{"c\\u0061rd": "•••"}'),
        ('{"card": 1, "card": 2}', ["card"], '{"card": "•••", "card": "•••"}'),
        ('{"card": null, "big": 9007199254740993.10, "e": 1E400}', ["card"],
         '{"card": "•••", "big": 9007199254740993.10, "e": 1E400}'),
        ('{"a":{"card":[1,{"x":{}}]},"b":{},"c":[],"d":{"card":{}} , "card" : true}', ["card"],
         '{"a":{"card":"•••"},"b":{},"c":[],"d":{"card":"•••"} , "card" : "•••"}'),
        ('{"a":1,"b":[1,{"cards":2}]}', ["car*"], '{"a":1,"b":[1,{"cards":"•••"}]}'),
        ('{"a":[{"x":1},{"y":2}],"x":3}', ["a.x"], '{"a":[{"x":"•••"},{"y":2}],"x":3}'),
        ('{"other": "a\\"}, {\\"card\\": 1"}', ["card"], '{"other": "a\\"}, {\\"card\\": 1"}'),
        ('{"card.number": "4", "card.type": "v", "number": 5}', ["card.number"],
         '{"card.number": "•••", "card.type": "v", "number": 5}'),
        ('{"a.b": {"c": 1}, "a": {"b.c": 2, "d": 3}}', ["a.b.c"],
         '{"a.b": {"c": "•••"}, "a": {"b.c": "•••", "d": 3}}'),
        ('{"card.number": "4", "n": {"old.card": 1}}', ["card"],
         '{"card.number": "•••", "n": {"old.card": "•••"}}'),
        ('{"a": {"card": "4"}, "a": 1}', ["card"], '{"a": {"card": "•••"}, "a": 1}'),
    ],
)  # fmt: skip
def test_fields_of_json_are_hidden_and_everything_else_stays(
    value: str, fields: list[str], shown: str
) -> None:
    found = value_of(value.encode(), *fields)

    assert found is not None
    assert found.decode() == shown
    json.loads(found)


@pytest.mark.parametrize(
    "value",
    [b"card=4111", b'{"card": "4111"', b'\xef\xbb\xbf{"card": 1}', b"\0\0\0\0\x05\x084111", b'"4111"',
     b"\xff\xfe4111", b'{"card": "4111"} {"card": "4111"}', b"[" * 70 + b'{"card": 4111}' + b"]" * 70,
     b"[" * 99_999 + b"4111", b'{"a":"' + b"4111" * (2 << 20) + b'"}'],
)  # fmt: skip
def test_a_value_whose_fields_cannot_be_told_apart_is_hidden_whole(value: bytes) -> None:
    assert value_of(value, "card") == HIDDEN.encode()


def test_text_and_objects_are_masked_by_the_same_rule() -> None:
    chance = Random(7)

    def some(depth: int) -> object:
        kind = chance.random()
        if depth == 0 or kind < 0.3:
            return chance.choice([1, None, 's"x', True, 2.5, "card"])
        if kind < 0.65:
            return [some(depth - 1) for _ in range(chance.randrange(4))]
        return {
            chance.choice(["card", "a", "b", "é", "iban"]): some(depth - 1)
            for _ in range(chance.randrange(4))
        }

    for _ in range(500):
        value, ascii_only = [some(4)], chance.random() < 0.5
        fields = chance.choice([["card"], ["a.card"], ["*.b"], ["a.**.iban", "b"], ["c*"]])
        found = value_of(json.dumps(value, ensure_ascii=ascii_only).encode(), *fields)
        assert found is not None
        assert json.loads(found) == masked_fields(value, fields)


def test_fields_of_msgpack_are_hidden() -> None:
    value = {"card": "4111", b"card": 1, 7: {"card": b"\0"}, "at": msgpack.Timestamp(1, 2), "n": 2**60}

    found = value_of(msgpack.packb(value), "card")

    assert found is not None
    assert msgpack.unpackb(found, strict_map_key=False) == {
        "card": HIDDEN, b"card": HIDDEN, 7: {"card": HIDDEN}, "at": msgpack.Timestamp(1, 2), "n": 2**60,
    }  # fmt: skip
    assert value_of(msgpack.packb({"n": 1}), "card") == msgpack.packb({"n": 1})


@pytest.mark.parametrize("data", [
    b"\x82" + msgpack.packb("a") + msgpack.packb({"card": "4111"}) + msgpack.packb("a") + msgpack.packb(1),
    b"\x92\x01\x82" + msgpack.packb("x") + msgpack.packb(["4111"]) + msgpack.packb("x") + b"\x01",
    b"\x82\x01" + msgpack.packb({"card": "4111"}) + b"\xc3\x01",  # 1 and true are one key in Python
])  # fmt: skip
def test_msgpack_with_a_key_twice_is_hidden_whole_and_no_filter_means_one_of_them(data: bytes) -> None:
    passes = CompiledFilter(Filter(place="path", name="$..*", how="exists"))

    assert value_of(data, "card") == HIDDEN.encode()
    assert not passes(ShownRecord(0, 0, 0, None, data))
    assert passes.undecided == 1
    assert "4111" in shown_value(data, "auto").text.replace(".", "") or shown_value(data).form == "hex"


def test_a_filter_means_no_json_with_a_key_twice() -> None:
    passes = CompiledFilter(Filter(expression="value.role != 'root'"))
    values = (b'{"role": "root", "role": "guest"}', b'{"role": "guest"}', b'{"a": [{"b": 1, "b": 2}]}')

    assert [passes(ShownRecord(0, 0, 0, None, value)) for value in values] == [False, True, False]
    assert passes.undecided == 2


@pytest.mark.parametrize("key", [
    b'{"card": "4111"', b"[" * 70 + b'{"card": 4111}' + b"]" * 70, b"\xef\xbb\xbf{\"card\": 4111}",
    b"\0\0\0\0\x05\x084111", msgpack.packb({"card": "4111"})[:-1],
    b'{"a":"' + b"4111" * (2 << 20) + b'"}',
])  # fmt: skip
def test_a_key_that_may_have_the_field_and_cannot_be_read_is_hidden_whole(key: bytes) -> None:
    assert masked(ShownRecord(0, 0, 0, key, None), Mask(("card",))).key == HIDDEN.encode()


@pytest.mark.parametrize("key", [b"user-4", b"", b"42", (42).to_bytes(8), b"\xc3\xa9t\xc3\xa9"])
def test_a_plain_key_is_shown_where_fields_are_masked(key: bytes) -> None:
    assert masked(ShownRecord(0, 0, 0, key, None), Mask(("card",))).key == key


DEAD = (("dead-topic", b"payments"), ("dead-reason", b"cannot read 4111"), ("dead-message", b"4111"))


def test_a_dead_letter_has_the_masks_of_its_topic_and_of_those_it_comes_from() -> None:
    rules = (MaskRule(("card",), topics=("payments",)), MaskRule(("sum",), topics=("dead",)),
             MaskRule(headers=("token",), topics=("orders",)))  # fmt: skip
    value, mask = b'{"card":"4111","sum":1,"n":2}', full_mask(rules, VIEWER, "prod", "dead")
    headers = (("dead-topic", b"orders"), ("token", b"t"), *DEAD)

    found = masked(ShownRecord(0, 0, 0, b"k", value, headers), mask)
    plain = masked(ShownRecord(0, 0, 0, b"k", value, (("token", b"t"),)), mask)

    assert found.value == '{"card":"•••","sum":"•••","n":2}'.encode()
    assert dict(found.headers) == {
        "dead-topic": b"payments", "token": HIDDEN.encode(), "dead-reason": HIDDEN_CAUSE.encode(),
        "dead-message": HIDDEN_CAUSE.encode(),
    }  # fmt: skip
    assert (plain.value, plain.headers) == ('{"card":"4111","sum":"•••","n":2}'.encode(), (("token", b"t"),))


@pytest.mark.parametrize(("origin", "cause"), [
    ("__connect.errors.topic", "__connect.errors.exception.message"),
    ("__streams.errors.topic", "__streams.errors.stacktrace"),
    ("kafka_dlt-original-topic", "kafka_dlt-exception-message"),
])  # fmt: skip
def test_dead_letters_of_connect_streams_and_spring_are_masked_too(origin: str, cause: str) -> None:
    mask = full_mask((MaskRule(("card",), topics=("payments",)),), VIEWER, "prod", "any")
    headers = ((origin, b"payments"), (cause, b"4111"))

    found = masked(ShownRecord(0, 0, 0, None, b'{"card":"4111"}', headers), mask)

    assert found.value == '{"card":"•••"}'.encode()
    assert found.headers[1] == (cause, HIDDEN_CAUSE.encode())


def test_a_dead_letter_is_found_by_that_which_its_viewer_may_read() -> None:
    mask = full_mask((MaskRule(("card",), topics=("payments",)),), VIEWER, "prod", "dead")
    builder = BatchBuilder(1 << 20)
    for headers in (DEAD, (("dead-topic", b"orders"),)):
        builder.append(b"k", b'{"card":"4111"}', 1, headers=list(headers))
    part = batches(builder.build(base_offset=0))
    assert part is not None
    window = Window(Span(0, 0, 2), [part])

    def found(text: str) -> list[int]:
        looked = look_through(window, CompiledFilter(Filter(text=text)), pickle.loads(pickle.dumps(mask)))
        return [record.offset for record in looked.found]

    assert (found("4111"), found("card"), found("payments")) == ([1], [0, 1], [0])


def test_no_rule_is_left_for_those_who_may_read_all() -> None:
    rules = (MaskRule(("card",)), MaskRule(headers=("token",), clusters=("test",)))

    assert full_mask(rules, Viewer("root", (Grant(Role.ADMINISTRATOR),)), "prod", "dead") == NO_MASK
    assert full_mask(rules[1:], VIEWER, "prod", "dead") == NO_MASK


def test_a_record_without_a_masked_part_is_the_same_and_a_tombstone_stays_one() -> None:
    record = ShownRecord(0, 0, 0, b"key", b'{"n": 1}', (("h", b"1"),))

    assert masked(record, Mask(("card",), ("token",))) is record
    assert masked(record, NO_MASK) is record
    assert value_of(None, "card") is None


def test_keys_and_headers_are_hidden() -> None:
    record = ShownRecord(0, 0, 0, b'{"card": 1}', b"v", (("Auth-Token", b"s"), ("null", None), ("h", b"1")))

    found = masked(record, Mask(headers=("auth-*", "null")))
    assert (found.key, found.value, found.is_masked) == (b'{"card": 1}', b"v", True)
    assert found.headers == (("Auth-Token", HIDDEN.encode()), ("null", None), ("h", b"1"))
    assert masked(record, Mask(key=True)).key == HIDDEN.encode()
    assert masked(record, Mask(("card",))).key == '{"card": "•••"}'.encode()


def test_rules_are_of_topics_and_clusters_and_of_those_below_a_role() -> None:
    rules = (
        MaskRule(("card",), topics=("pay*",)),
        MaskRule(headers=("token",), clusters=("prod",), readers=Role.OPERATOR),
    )
    operator = Viewer("bob", (Grant(Role.OPERATOR, topics=("pay-1",)), Grant(Role.VIEWER)))

    assert mask_of(rules, VIEWER, "prod", "payments") == Mask(("card",), ("token",))
    assert mask_of(rules, VIEWER, "test", "orders") == NO_MASK
    assert mask_of(rules, operator, "prod", "pay-1") == Mask(("card",))
    assert mask_of(rules, operator, "prod", "pay-2") == Mask(("card",), ("token",))
    assert mask_of(rules, Viewer("root", (Grant(Role.ADMINISTRATOR),)), "prod", "pay-1") == NO_MASK
    assert pickle.loads(pickle.dumps(Mask(("card",)))) == Mask(("card",))


def test_decoded_values_are_masked_too() -> None:
    assert masked_fields({"a": [{"card": 1, "n": 2}]}, ["card"]) == {"a": [{"card": HIDDEN, "n": 2}]}
