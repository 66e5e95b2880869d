"""Types of columns in Spark's DDL, looked at without Spark, so that an error names the option and the word.

Only what is certainly wrong is reported: Spark's parser has the last word. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

_NAMES = frozenset(
    (
        "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL",
        "DOUBLE", "FLOAT", "GEOGRAPHY", "GEOMETRY", "INT", "INTEGER", "INTERVAL", "LONG", "MAP", "NUMERIC",
        "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ",
        "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT", "VOID",
    )
)  # fmt: skip
_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:`]+))\s*:?\s*(.*)", re.DOTALL)
_TYPE = re.compile(r"\s*(\w+)\s*(?:<(.*)>)?", re.DOTALL)
_OPENING, _CLOSING = "<(", ">)"


def wrong_ddl(columns: str) -> Iterator[str]:
    """Yield what is wrong in columns such as `drink STRING, price DOUBLE`."""
    for part in _parts(columns):
        found = _FIELD.fullmatch(part)
        if found is None:
            yield f"{columns!r} has an empty place between two commas, or names no column"
            continue
        name = found[1] or found[2]
        if not found[3].strip():
            yield f"{name!r} has no type: {name} STRING"
        else:
            yield from (f"{said} (of {name!r})" for said in _wrong_type(found[3]))


def _wrong_type(text: str) -> Iterator[str]:
    found = _TYPE.match(text)
    if found is None:
        yield f"{text.strip()!r} is not a type"
        return
    word, inner = found[1], found[2]
    if word.upper() not in _NAMES:
        near = difflib.get_close_matches(word.upper(), _NAMES, 1)
        yield f"{word!r} is not a type" + (f"; did you mean {near[0]}?" if near else "")
    elif inner is not None and word.upper() == "STRUCT":
        yield from wrong_ddl(inner)
    elif inner is not None:
        for part in _parts(inner):
            yield from _wrong_type(part)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas that are in no brackets and no quotes."""
    depth, begin, quote = 0, 0, ""
    for at, each in enumerate(text):
        if quote:
            quote = "" if each == quote else quote
        elif each in "`'\"":
            quote = each
        elif each == "," and not depth:
            yield text[begin:at]
            begin = at + 1
        else:
            depth += (each in _OPENING) - (each in _CLOSING)
    yield text[begin:]
