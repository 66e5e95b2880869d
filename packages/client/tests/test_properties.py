from __future__ import annotations

import pytest

from ottla.client.properties import parse


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# no\n! no\n\n  e.f=x=y  \n", {"e.f": "x=y"}),
        ("long=one,\\\n    two,\\\n    three\nnext=1", {"long": "one,two,three", "next": "1"}),
        ("path=C:\\\\temp\\tx\nname=\\u016flu", {"path": "C:\\temp\tx", "name": "ůlu"}),
        ("empty=\nalone", {"empty": "", "alone": ""}),
        ("last=open\\", {"last": "open"}),
        ("key\\ with\\=signs=1", {"key with=signs": "1"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str]) -> None:
    assert parse(text) == pairs
