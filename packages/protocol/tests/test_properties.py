"""Java's properties files, held against another reader and writer of them."""

import javaproperties
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.properties import decode_properties, encode_properties


def test_java_properties_are_read_with_comments_escapes_and_continued_lines() -> None:
    text = (
        b"# a comment\n! another\n\na=1\nb : two words \nc three\nlong = one,\\\n   two\n"
        b"key\\ with\\=signs=x\nuni=\\u00fc\ntab=\\t|\npath=C:\\\\dir\nempty\na=2\r\n"
    )

    assert decode_properties(text) == {
        "a": "2",
        "b": "two words ",
        "c": "three",
        "long": "one,two",
        "key with=signs": "x",
        "uni": "ü",
        "tab": "\t|",
        "path": "C:\\dir",
        "empty": "",
    }
    assert decode_properties("ü=ä".encode()) == decode_properties("ü=ä".encode("latin-1")) == {"ü": "ä"}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6))
def test_properties_are_read_again(values: dict[str, str]) -> None:
    assert decode_properties(encode_properties(values)) == values


_PIECES = st.sampled_from(
    [
        *("a", "key=value\n", "# said\n", "#", "!", "=", ":", " ", ".", "-", "\\", "u0041"),
        *("\t", "\f", "\n", "\r", "\r\n", "\\u0041", "\\ud83d\\ude00", "\\n", "\u00e9", "\u2028", "\x0b"),
    ]
)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"sasl.password=hunter2\\users", 1),
        (b"# hunter1\r\n\r\nfirst=1\r\nlong=one,\\\r\n  hunter2\\u12\r\nlast=1", 4),
        (b"first=1\n\nhunter2\\u12x", 3),
    ],
)
def test_a_malformed_escape_is_refused_by_line_and_its_text_is_not_shown(data: bytes, line: int) -> None:
    with pytest.raises(CorruptStorage) as caught:
        decode_properties(data)

    assert str(caught.value) == f"malformed properties in line {line}: no four digits after \\u"


@given(st.lists(_PIECES, max_size=12).map("".join))
@example("\\\n# said\n")
@example("\\\n\n# said\n")
@example("\\")
def test_properties_are_read_as_javaproperties_reads_them(text: str) -> None:
    try:
        expected = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError:
        with pytest.raises(CorruptStorage):
            decode_properties(text.encode())
        return
    whole = {_whole(key): _whole(value) for key, value in expected.items()}
    assert decode_properties(text.encode()) == whole


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_CHARACTERS = "a.-# \n\t\r=:!\\\u00e9\U0001f600"


@given(st.dictionaries(st.text(_CHARACTERS, max_size=4), st.text(_CHARACTERS, max_size=4), max_size=3))
def test_properties_are_written_as_javaproperties_writes_them(values: dict[str, str]) -> None:
    written = encode_properties(values)

    assert written == javaproperties.dumps(values, timestamp=False).encode("ascii")
    assert decode_properties(written) == values


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a=1\n! b=2\n\n   \n", {}),
        ("# a comment is not continued\\\na=1", {"a": "1"}),
        ("a=1,\\\n    2,\\\n  3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\na=2", {"a": "2"}),
        ("log.dirs=/tmp/a,/tmp/b", {"log.dirs": "/tmp/a,/tmp/b"}),
        ("listeners=PLAINTEXT://:9092\r\n", {"listeners": "PLAINTEXT://:9092"}),
        ("empty=\nalone", {"empty": "", "alone": ""}),
        ("key\\ with\\=signs=a\\tb \\u0041", {"key with=signs": "a\tb A"}),
        ("path=C\\:\\\\kafka", {"path": "C:\\kafka"}),
        ("a=two  \n", {"a": "two  "}),
    ],
)
def test_lines_are_read_as_java_reads_them(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text.encode()) == properties
