"""Java's properties format."""

from __future__ import annotations

import pytest

from ottla.broker.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a=1\n! b=2\n\n   \n", {}),
        ("a=1,\\\n    2,\\\n  3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("log.dirs=/tmp/a,/tmp/b", {"log.dirs": "/tmp/a,/tmp/b"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("empty=\nalone", {"empty": "", "alone": ""}),
        ("key\\ with\\=signs=a\\tb \\u0041", {"key with=signs": "a\tb A"}),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties
