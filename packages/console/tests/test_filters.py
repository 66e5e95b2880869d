"""Filters of records: texts, patterns, JSONPath and expressions; what they refuse, and what they may skip."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.expressions import BadExpression, Undecided, expression
from ottla.console.records.filters import CompiledFilter, Filter, decoded, wanted_filter
from ottla.console.records.patterns import compiled_pattern
from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import Ambiguous, unambiguous
from ottla.console.web.fields import Unclear

ORDER = {
    "id": 9007199254740993, "user": {"name": "anna", "tags": ["new", "eu"]}, "amount": 12.5, "paid": True,
    "lines": [{"sku": "a-1", "n": 2}, {"sku": "b-2", "n": 1}], "note": None,
}  # fmt: skip


def record(value: Any = ORDER, key: bytes | None = b"eu-7") -> ShownRecord:
    data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return ShownRecord(3, 17, 1_000, key, data, (("x-trace", b"trace-9"),))


def passes(found: ShownRecord, **fields: Any) -> bool:
    return CompiledFilter(Filter(**fields))(found)


@pytest.mark.parametrize(
    ("fields", "is_found"),
    [
        ({"text": "anna"}, True),
        ({"text": "Anna"}, False),
        ({"text": "trace-9"}, True),
        ({"text": "x-trace"}, True),
        ({"text": "eu-7", "place": "key"}, True),
        ({"text": "eu-7", "place": "value"}, False),
        ({"text": "eu-", "place": "key", "how": "is"}, False),
        ({"text": "trace-9", "place": "header", "name": "x-trace"}, True),
        ({"text": "trace-9", "place": "header", "name": "other"}, False),
        ({"place": "header", "name": "x-trace", "how": "exists"}, True),
        ({"place": "header", "name": "other", "how": "exists"}, False),
        ({"text": "(?i)ANNA", "how": "matches"}, True),
        ({"text": "^eu-[0-9]$", "how": "matches", "place": "key"}, True),
        ({"place": "path", "name": "$.lines[?@.n > 1]", "how": "exists"}, True),
        ({"place": "path", "name": "$.lines[?@.n > 2]", "how": "exists"}, False),
        ({"place": "path", "name": "$.lines[?search(@.sku, '^b')]", "how": "exists"}, True),
        ({"place": "path", "name": "$.id", "how": "is", "text": "9007199254740993"}, True),
        ({"place": "path", "name": "$.id", "how": "is", "text": "9007199254740992"}, False),
        ({"place": "path", "name": "$..name", "text": "nn"}, True),
        ({"key": "eu-7"}, True),
        ({"key": "0x65752d37"}, True),
        ({"key": "eu-70"}, False),
        ({"key": "eu-7", "text": "anna", "expression": "value.amount > 13"}, False),
    ],
)
def test_a_filter_finds_the_records_that_it_names(fields: dict[str, str], is_found: bool) -> None:
    found = record()

    assert passes(found, **fields) is is_found


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("value.amount > 12 && value.user.name == 'anna'", True),
        ("value.id == 9007199254740993", True),
        ("value.id == 9007199254740992", False),
        ('key.startsWith("eu-") && offset >= 17', True),
        ("value['user']['tags'][1] == \"eu\"", True),
        ("'eu' in value.user.tags", True),
        ("'name' in value.user", True),
        ("has(value.note) && value.note == null", True),
        ("has(value.nothing)", False),
        ("!has(value.nothing)", True),
        ("value.nothing == 1 || value.paid", True),
        ("value.nothing == 1 && value.paid", False),
        ("value.lines.exists(line, line.sku.matches('^b-') && line.n == 1)", True),
        ("value.lines.all(line, line.n > 1)", False),
        ("value.lines.size() == 2 && size(key) == 4", True),
        ("value.paid == 1", False),
        ("value.amount * 2 - 1 == 24 && -7 / 2 == -3 && -7 % 2 == -1", True),
        ("int('12') + 1 == 13 && double('1.5') < 2 && string(value.id).endsWith('993')", True),
        ("headers['x-trace'] == 'trace-9' && partition in [1, 3] && kind == 'record'", True),
        ("value.user.name.lowerAscii().contains('NN'.lowerAscii())", True),
        ("'a\\'b\\n' == \"a'b\\n\"", True),
        ("time_ms < 1e4 && (false || !false)", True),
    ],
)
def test_an_expression_is_judged_as_cel_does(text: str, is_true: bool) -> None:
    assert passes(record(), expression=text) is is_true


@pytest.mark.parametrize(
    "text",
    ["value.amount > 'a'", "value.user + 1 == 2", "value > 1", "key",
     "1 / 0 == 1", "value.user.name[0] == 'a'",
     "value.lines.exists(line, line)", "int('x') == 1", "9e999 * 10 % 2 == 0", "-value == 1"],
)  # fmt: skip
def test_a_record_of_which_an_expression_makes_no_sense_is_counted_and_not_found(text: str) -> None:
    found = CompiledFilter(Filter(expression=text))

    assert not found(record())
    assert found.undecided == 1


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "value.__class__", "open('/etc/passwd')", "value.format('x')", "lambda: 1",
     "other == 1", "value.", "(1", "1 +", "a b", "value[", "has()", "has(1, 2)", "value.size(1)",
     "'open", "value; key",
     "x" * 3000, "(" * 60 + "1" + ")" * 60, "1 + " * 500 + "1", "value.matches(key)",
     "@", "value.lines.exists(1, true)"],
)  # fmt: skip
def test_whatever_is_not_on_the_list_of_operations_is_refused(text: str) -> None:
    if text == "value.__class__":  # a field of the record like any other: never one of Python's
        assert not passes(record(), expression=text)
        return
    with pytest.raises(BadExpression):
        expression(text, lambda pattern: lambda letters: bool(pattern and letters))


@pytest.mark.parametrize(
    "query",
    [{"find": "(", "how": "matches"}, {"find": "x", "in": "path", "name": "$["}, {"where": "import os"},
     {"in": "elsewhere", "find": "x"}, {"how": "eval", "find": "x"}, {"find": "x" * 5_000}, {"key": "0xzz"},
     {"find": "(?=x)", "how": "matches"}, {"find": "x", "in": "path", "name": "$" + "[?(" * 300}],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_says_what_to_change(query: dict[str, str]) -> None:
    with pytest.raises(Unclear):
        wanted_filter(query)


def test_a_filter_survives_its_address() -> None:
    wanted = Filter("0x00ff", "path", "$.a[?@.b == 'c&d']", "is", "é=1", 'value.x == "y"')

    assert wanted_filter(wanted.parts()) == wanted
    assert wanted_filter({}) == Filter()
    assert Filter().is_empty
    assert not any(Filter().parts().values())


def test_patterns_take_time_that_grows_with_the_text_alone() -> None:
    began_s = process_time()

    assert compiled_pattern("(x+x+)+y").search("x" * 10_000) is None
    path = {"place": "path", "name": "$[?search(@.a, '(x+x+)+y')]", "how": "exists"}
    assert not passes(record([{"a": "x" * 10_000}]), **path)
    assert process_time() - began_s < 10


def test_deep_json_and_bytes_that_are_no_text_are_not_found_and_do_no_harm() -> None:
    deep = record(b"[" * 100_000 + b"]" * 100_000)
    for found in (deep, record(b"\xff\xfe"), record(None, None), record(b"")):
        assert not passes(found, expression="value.a == 1")
        assert not passes(found, place="path", name="$..a", how="exists")
        assert not passes(found, text="[a-z]{3}", how="matches", place="value")


def test_msgpack_is_read_as_json_is() -> None:
    found = record(msgpack.packb({"id": 2**63, "raw": b"\xff"}))

    assert passes(found, expression="value.id == 9223372036854775808")
    assert passes(found, place="path", name="$.id", how="exists")


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("value.user.name == 'anna' && value.amount > 1", {b"anna"}),
        ("'anna' == value.user.name && key.startsWith('eu-')", {b"anna", b"eu-"}),
        ("value.user.name == 'anna' || value.amount > 1", set()),
        ("!(value.user.name == 'anna')", set()),
        ("value.user.name.lowerAscii() == 'anna'", set()),
        ("string(value.id) == '123'", set()),
        ("value.user.name == 'an\"na'", set()),
        ("value.user.name == 'ännä'", set()),
        ("kind == 'aborted'", set()),
        ("value.lines.exists(line, line.sku == 'b-2')", set()),
        ("has(value.user.name == 'anna')", set()),
        ("value.user.name != 'anna'", set()),
    ],
)
def test_an_expression_names_the_texts_without_which_it_is_never_true(text: str, needles: set[bytes]) -> None:
    assert set(CompiledFilter(Filter(expression=text)).needles) == needles


def test_letters_that_json_writes_as_escapes_are_found() -> None:
    found = CompiledFilter(Filter(expression="value.name == 'anna'"))
    data = b'{"name": "\\u0061nna"}'

    assert found(record(data))
    assert found.may_hold(data)
    assert not found.may_hold(b'{"name": "otto"}')


@given(st.binary(max_size=30), st.text(min_size=1, max_size=3), st.sampled_from(["contains", "is"]))
def test_bytes_that_the_first_look_skips_hold_no_record_that_passes(data: bytes, text: str, how: Any) -> None:
    found = CompiledFilter(Filter(how=how, text=text))

    batch = b"before" + data + b"x-trace" + b"trace-9" + b"behind"
    assert found.may_hold(batch) or not found(record(data, None))


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (b'{"a": "\\ud800"}', {"place": "path", "name": "$.a", "text": "x"}),
        (b'{"a": "\\ud800"}', {"expression": "value.a.matches('x')"}),
        (b'{"a": 1%s}' % (b"0" * 400), {"expression": "value.a * 1.5 > 2.0"}),
        (msgpack.packb({"a": {b"k": 1}}), {"place": "path", "name": "$.a", "text": "x"}),
        (msgpack.packb({"a": msgpack.Timestamp(1 << 60)}), {"expression": "value.a == 1"}),
    ],
)
def test_a_record_made_to_harm_ends_no_search(value: bytes, fields: dict[str, str]) -> None:
    test = CompiledFilter(Filter(**fields))  # type: ignore[arg-type]

    assert [test(record(value)), test(record({"a": 1}))] == [False, fields.get("expression", "")[-1:] == "1"]


def test_a_header_whose_name_is_no_text_is_searched_by_its_bytes() -> None:
    found = ShownRecord(3, 17, 1_000, None, b"v", ((b"x-\xff-trace".decode(errors="surrogateescape"), b"1"),))

    assert passes(found, text="-trace")
    assert not passes(found, text="other")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(':"{\\ a\u00e9', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(st.sampled_from(("a", 'b":', "c :")), inner))
    ),
    max_leaves=12,
)


def written(value: Any, colon: str) -> str:
    """Return JSON in which a list of pairs is a map, whose keys may stand twice."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        pairs = (f"{json.dumps(key)}{colon}{written(item, colon)}" for key, item in value)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(item, colon) for item in value) + "]"
    return json.dumps(value)


@given(JSON, st.sampled_from((":", ": ", " : ", "\n:", "\t:")))
def test_json_is_read_as_the_slow_way_reads_it_and_a_key_twice_is_always_noticed(
    value: Any, colon: str
) -> None:
    data = written([value], colon).encode()
    try:
        expected = json.loads(data, object_pairs_hook=unambiguous)
    except Ambiguous:
        with pytest.raises(Undecided):
            decoded(data)
        return

    assert repr(decoded(data)) == repr(expected)


@pytest.mark.parametrize("data", [b"[NaN]", b"[1e400]", b'["\\ud800"]', b"[" * 900 + b"]" * 900, b"[1] x"])
def test_json_that_a_quick_reader_refuses_is_read_as_before(data: bytes) -> None:
    try:
        expected = json.loads(data)
    except ValueError:
        expected = data.decode()

    assert repr(decoded(data)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "is_quick"),
    [("value.n > 1", True), ("key == 'a' && offset > 2", True), ("kind == 'record'", False),
     ("partition == 1 || value.n > 1", False)],
)  # fmt: skip
def test_an_expression_that_asks_for_no_place_is_asked_of_records_as_they_are_decoded(
    text: str, *, is_quick: bool
) -> None:
    assert CompiledFilter(Filter(expression=text)).needs_batch_alone is is_quick
