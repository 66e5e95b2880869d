from __future__ import annotations

from pathlib import Path

import pytest

from ottla.client.settings import SettingError, read_properties


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
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text, encoding="utf-8")

    assert read_properties(file) == pairs


def test_a_malformed_file_is_a_setting_error_that_shows_no_value(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("acks=all\nsasl.password=hunter2\\users", encoding="utf-8")

    with pytest.raises(SettingError) as caught:
        read_properties(file)

    assert str(caught.value) == f"{file}: malformed properties in line 2: no four digits after \\u"
