"""Python source under construction, in which every line knows the field it serves."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.protocol.fields import Field

FIXED_CODES: Final = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "boolean": "?",
    "uuid": "16s",
}
"""The `struct` code of every kind whose width does not depend on its value."""

PACKED_KINDS: Final = frozenset({"int8", "int16", "uint16", "int32", "uint32", "int64", "float64"})
"""The kinds whose arrays are read and written in one call."""


class Source:
    """Lines of one function, the names they use, and which field each line is for."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.lines: list[str] = []
        self.paths: list[str] = []
        self.path = ""
        self._counter = 0
        self._constants: dict[Any, str] = {}

    def add(self, depth: int, *lines: str) -> None:
        """Append lines at an indentation."""
        for line in lines:
            self.lines.append(" " * depth + line)
            self.paths.append(self.path)

    def run_path(self, paths: Iterable[str]) -> str:
        """Name the fields that one line serves together."""
        return ", ".join(dict.fromkeys(paths))

    def fresh(self, prefix: str) -> str:
        """Return a variable name not used before."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def constant(self, prefix: str, key: Any, value: Any) -> str:
        """Return the name under which the function sees `value`; one name per key."""
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = self.fresh(prefix)
            self.names[name] = value
        return name

    def layout(self, codes: str) -> tuple[str, struct.Struct]:
        """Return a Struct for `codes` and the prefix of the names of its bound methods."""
        layout = struct.Struct(">" + codes)
        name = self.constant("S", codes, layout)
        self.names[f"{name}_pack"] = layout.pack
        self.names[f"{name}_unpack"] = layout.unpack_from
        return name, layout

    def compile(self, function: str, filename: str) -> Callable[..., Any]:
        """Compile the lines and return the function they define."""
        exec(compile("\n".join(self.lines), filename, "exec"), self.names)
        compiled: Callable[..., Any] = self.names[function]
        FIELD_OF_LINE[filename] = self.paths
        return compiled


STEP: Final = 256
"""Elements of arrays in one step, where a message is read or written in steps."""

FIELD_OF_LINE: Final[dict[str, list[str]]] = {}
"""By the name of a compiled source, the field each of its lines serves; asked only after a failure."""


def minimum_size(fields: Iterable[Field], version: int, *, flexible: bool) -> int:
    """Return the fewest bytes a struct takes in a version; at least 1, so that counts stay bounded."""
    size = 1 if flexible else 0
    for field in fields:
        if field.is_in(version) and not (flexible and field.is_tagged(version)):
            size += minimum_size_of(field, version, flexible=flexible)
    return max(size, 1)


def minimum_size_of(field: Field, version: int, *, flexible: bool) -> int:
    """Return the fewest bytes one field takes in a version."""
    if field.kind in FIXED_CODES:
        return struct.calcsize(">" + FIXED_CODES[field.kind])
    if field.kind == "struct":
        if field.is_nullable(version):
            return 1
        return minimum_size(field.element.FIELDS, version, flexible=flexible)
    if flexible:
        return 1
    return 2 if field.kind == "string" else 4
