"""Types of columns in declarations, checked without Spark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

_SIMPLE = (
    "STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip
_OTHER_NAMES = {"INTEGER": "INT", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT", "REAL": "FLOAT"}
_NESTED = re.compile(
    r"(ARRAY|MAP|STRUCT)\s*<.+>|DECIMAL\s*\(\s*\d+\s*(,\s*\d+\s*)?\)", re.IGNORECASE | re.DOTALL
)


def _upper(given: Any) -> Any:
    return {name: _named(kind) for name, kind in given.items()} if isinstance(given, Mapping) else given


def _named(kind: Any) -> Any:
    if not isinstance(kind, str) or _NESTED.fullmatch(kind.strip()):
        return kind
    name = kind.strip().upper()
    return _OTHER_NAMES.get(name, name)


Types = Annotated[dict[str, str], BeforeValidator(_upper)]
"""Columns and their types, in Spark's DDL."""


def wrong_types(types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the columns with invalid types, and the error of each."""
    for name, kind in types.items():
        if kind not in _SIMPLE and not _NESTED.fullmatch(kind.strip()):
            yield (
                name,
                (
                    f"{kind!r} is not a type; the types are {', '.join(_SIMPLE)}, ARRAY<>, MAP<>, "
                    "STRUCT<>, DECIMAL()"
                ),
            )
        elif not _is_balanced(kind):
            yield name, f"{kind!r} has unbalanced brackets"


def _is_balanced(kind: str) -> bool:
    return kind.count("<") == kind.count(">") and kind.count("(") == kind.count(")")


def time_typed(kind: str) -> bool:
    """Whether values of a type have a date and a time."""
    return kind in ("TIMESTAMP", "TIMESTAMP_NTZ")
