"""Column types of Delta tables, compared with those of rows and of declarations. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Shape = str | tuple[Any, ...]
"""A Delta type without what rows may leave open: whether elements and fields may be null."""

_OF_DDL = {
    "STRING": "string", "BOOLEAN": "boolean", "TINYINT": "byte", "SMALLINT": "short", "INT": "integer",
    "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double", "BINARY": "binary", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP_NTZ": "timestamp_ntz",
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)


def shape_of(kind: Any) -> Shape:
    """Return the shape of a type of the library deltalake."""
    if kind.type == "array":
        return "array", shape_of(kind.element_type)
    if kind.type == "map":
        return "map", shape_of(kind.key_type), shape_of(kind.value_type)
    if kind.type == "struct":
        return "struct", *((field.name, shape_of(field.type)) for field in kind.fields)
    return str(kind.type)


def shapes_of(schema: Any) -> dict[str, Shape]:
    """Return the shape of each column of a schema of the library deltalake."""
    return {field.name: shape_of(field.type) for field in schema.fields}


def shape_of_ddl(kind: str) -> Shape | None:
    """Return the shape of a declared type; None for nested ones, which only Spark can read."""
    if found := _DECIMAL.fullmatch(kind.strip()):
        return f"decimal({found[1]},{found[2] or 0})"
    return _OF_DDL.get(kind)


def other_types(there: Mapping[str, Shape], given: Mapping[str, Shape | None]) -> Iterator[tuple[str, str]]:
    """Yield the columns that have another type in the table, and what to say. None: the type is unknown."""
    for name, shape in given.items():
        if shape is not None and name in there and there[name] != shape:
            yield name, f"has {name!r} as {_shown(there[name])}, and the rows have it as {_shown(shape)}"


def _shown(shape: Shape) -> str:
    if isinstance(shape, str):
        return shape
    if shape[0] == "struct":
        return f"struct<{', '.join(f'{name}: {_shown(inner)}' for name, inner in shape[1:])}>"
    return f"{shape[0]}<{', '.join(_shown(inner) for inner in shape[1:])}>"
