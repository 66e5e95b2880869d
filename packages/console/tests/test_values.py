"""Keys and values as text: in the form that fits, with all their digits, and cut where they are long."""

from __future__ import annotations

import json
from time import process_time

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.console.records.values import set_out, shown_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (None, "null", "null"),
        (b"", "text", ""),
        (
            b'{"id": 9007199254740993, "price": 1.10}',
            "json",
            '{\n  "id": 9007199254740993,\n  "price": 1.10\n}',
        ),
        (b"12345678901234567890.50", "json", "12345678901234567890.50"),
        (b"plain text", "text", "plain text"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
        ("Zürich".encode(), "text", "Zürich"),
        (b"\xff\xfe", "hex", "00000000  ff fe                                            .."),
        (b"a\x1b[31mb", "text", "a\\x1b[31mb"),
        (msgpack.packb({"a": [1, b"\x01"]}), "msgpack", '{\n  "a": [\n    1,\n    "0x01"\n  ]\n}'),
    ],
)
def test_a_value_is_shown_in_the_first_form_that_fits(data: bytes | None, form: str, text: str) -> None:
    shown = shown_value(data)

    assert (shown.form, shown.text) == (form, text)


@given(JSON, st.sampled_from([None, 1]))
def test_json_that_is_set_out_is_the_same_json(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)

    assert json.loads(set_out(text)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_shown_without_control_characters(data: bytes) -> None:
    shown = shown_value(data)

    assert all(letter.isprintable() or letter in "\n\t" for letter in shown.text)
    assert shown.length == len(data)


def test_deep_json_is_shown_without_a_recursion() -> None:
    data = b"[" * 100_000 + b"]" * 100_000

    assert shown_value(data, most=len(data)).form == "text"
    assert set_out("[" * 500 + "]" * 500).count("\n") < 130


@pytest.mark.parametrize(
    "text", ["[" * 61 + "1," * 900_000 + "1" + "]" * 61, '{"a": "' + '\\"' * 900_000], ids=["deep", "cut"]
)
def test_the_time_for_json_grows_with_its_length_alone(text: str) -> None:
    began_s = process_time()

    shown_value(text.encode(), most=len(text) - 1)

    assert process_time() - began_s < 30


def test_json_that_is_cut_within_a_string_keeps_the_beginning_of_that_string() -> None:
    assert shown_value(b'{"a": [{ }, "b \\" c"]}', most=19).text == '{\n  "a": [\n    {},\n    "b \\" c'


def test_a_long_value_is_cut_between_letters_and_says_how_much_is_left() -> None:
    shown = shown_value("é".encode() * 5_000, most=101)

    assert (shown.text, shown.left_bytes, shown.length) == ("é" * 50, 9_899, 10_000)


def test_the_form_can_be_chosen_and_falls_back_to_hexadecimal() -> None:
    assert shown_value(b'{"a":1}', "text").text == '{"a":1}'
    assert shown_value(b"not json", "json").form == "hex"
    assert shown_value(b"ab", "hex").text.startswith("00000000  61 62")


def test_the_id_of_a_registrys_schema_is_named() -> None:
    assert shown_value(b"\0\0\0\x01\x00abc").schema_id == 256
    assert shown_value(b"abc").schema_id is None
