from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.commands.record_lines import from_json, json_bytes, json_headers, unescape

PAYLOADS = st.none() | st.binary() | st.text().map(str.encode)


@given(PAYLOADS, PAYLOADS, st.lists(st.tuples(st.text(), PAYLOADS)))
def test_json_and_back_loses_nothing(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = json.dumps(
        {"topic": "t", "partition": 3, "offset": 9, "timestamp_ms": 5, "key": json_bytes(key)}
        | {"value": json_bytes(value), "headers": json_headers(headers)}
    )

    assert from_json(line.encode()) == (key, value, headers, 3, 5)


def test_text_stays_text_and_other_bytes_are_base64() -> None:
    assert json_bytes("Zürau".encode()) == "Zürau"
    assert json_bytes(b"\xff\x00") == {"base64": "/wA="}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"key": "a"}', "has no value; a tombstone has the value null"),
        ('{"vlue": "a"}', "'vlue' is not a field of a record"),
        ('{"value": 5}', "value must be text"),
        ('{"value": {"base64": "?"}}', "value is not base64"),
        ('{"value": {"base64": "", "x": 1}}', "value must be text"),
        ('{"value": "a", "partition": -1}', "partition must be a whole number"),
        ('{"value": "a", "partition": true}', "partition must be a whole number"),
        ('{"value": "a", "headers": {"a": "b"}}', "headers must be a list"),
        ('{"value": "a", "headers": [["a", 1]]}', "header a must be text"),
        ('{"value": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_a_wrong_line_is_refused_with_its_field(line: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_json(line.encode())


def test_escapes_stand_for_what_a_shell_cannot_write() -> None:
    assert unescape(r"{key}\t{value}\n") == "{key}\t{value}\n"
    assert unescape(r"C:\\temp \d") == r"C:\temp \d"
