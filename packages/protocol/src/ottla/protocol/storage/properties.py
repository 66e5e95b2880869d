"""Java's properties format, whole: comments, escapes, continued lines.

Written here and not taken from a library since a broker reads its configuration before it can do anything
else: javaproperties, which the tests compare with, brings XML and HTTP with it and takes longer to import
than all of the configuration does.
"""

import re
from collections.abc import Iterator, Mapping

from ottla.protocol.storage import CorruptStorage

__all__ = ["decode_properties", "encode_properties"]

_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY_AND_VALUE = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_READ = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_SPECIAL = re.compile(r"[\\=:#!]|[^ -~]")


class _MalformedEscape(Exception):
    """No four hexadecimal digits follow a backslash and a u."""


def decode_properties(data: bytes) -> dict[str, str]:
    """The keys and values of a properties file; the last of two equal keys counts, as in Java.

    UTF-8 is read where the file is that (Kafka's tools write plain ASCII), else Latin-1 as the format has it.
    Raises CorruptStorage for a malformed unicode escape; the message has the number of its line, not its
    text, which may be a password.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return dict(_pair(number, line) for number, line in _logical_lines(text))


def encode_properties(values: Mapping[str, str]) -> bytes:
    """A properties file without comments, in the mapping's order, in ASCII."""
    return "".join(f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in values.items()).encode(
        "ascii"
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, and the number of their first line; no comments and no blank ones."""
    pending, continued, first = "", False, 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not continued and line[:1] in ("", "#", "!"):
            continue
        first = first if continued else number
        continued = _continues(line)
        # An escaped line end is nothing at all; the next line's indentation does not count.
        pending += line[:-1] if continued else line
        if not continued and pending:
            yield first, pending
            pending = ""
    if pending:
        yield first, pending


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _pair(number: int, line: str) -> tuple[str, str]:
    parts = _KEY_AND_VALUE.fullmatch(line)
    assert parts is not None, "a logical line does not end within an escape"
    try:
        return _unescape(parts[1]), _unescape(parts[2])
    except _MalformedEscape:
        raise CorruptStorage(f"malformed properties in line {number}: no four digits after \\u") from None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_character, text)
    # Java's characters are UTF-16: one beyond the first 65,536 is written as two escapes, and half of one
    # is nothing that could be encoded again.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _character(escape: re.Match[str]) -> str:
    what = escape[1]
    if what == "u":
        raise _MalformedEscape
    return chr(int(what[1:], 16)) if len(what) == 5 else _READ.get(what, what)


def _escape(text: str) -> str:
    return _SPECIAL.sub(_escaped, text)


def _escape_key(text: str) -> str:
    return _escape(text).replace(" ", "\\ ")


def _escape_value(text: str) -> str:
    escaped = _escape(text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escaped(special: re.Match[str]) -> str:
    character = special[0]
    if character in "\\=:#!":
        return f"\\{character}"
    if character in _WRITTEN:
        return _WRITTEN[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
