"""Line numbers of settings in a declaration file. Pure: text in, line numbers out."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import Any, Protocol

Path = tuple[str | int, ...]
"""The path to a value: keys of tables and indexes of lists."""


class Lines(Protocol):
    """Finds the lines of settings in a file."""

    def of(self, path: Path) -> int:
        """Return the line (from 1) of a value, or of the nearest enclosing table that exists."""


class TomlLines:
    """Lines of a TOML file.

    tomllib reports no positions. But each statement ends where the file up to that line can be parsed, and a
    value is declared by the first statement after which it exists.
    """

    def __init__(self, text: str) -> None:
        self._steps = list(_steps(text))

    def of(self, path: Path) -> int:
        """Return the line of a value, or of the nearest enclosing table that exists."""
        for length in range(len(path), 0, -1):
            for line, values in self._steps:
                if _is_there(values, path[:length]):
                    return line
        return 1


def _steps(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first line of each statement, with the declaration up to its end."""
    lines = text.splitlines()
    begun = 0
    for end in range(1, len(lines) + 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a list or a multi-line text
        if lines[end - 1].strip() and not lines[end - 1].lstrip().startswith("#"):
            yield _first_said(lines, begun) + 1, values
        begun = end


def _first_said(lines: list[str], begun: int) -> int:
    while not lines[begun].strip() or lines[begun].lstrip().startswith("#"):
        begun += 1
    return begun


def _is_there(values: Any, path: Path) -> bool:
    for step in path:
        try:
            values = _under(values, step)
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _under(values: Any, step: str | int) -> Any:
    """Return the value at a path; a dotted name without quotes is a path of nested tables."""
    if isinstance(values, dict) and isinstance(step, str) and step not in values:
        for name, inner in values.items():
            if step.startswith(f"{name}."):
                return _under(inner, step.removeprefix(f"{name}."))
    return values[step]


class PythonLines:
    """Lines of a Python file that contains `pipeline = {...}` or `pipeline = Kind(...)`."""

    def __init__(self, text: str, variable: str) -> None:
        self._line, self._value = _assignment(ast.parse(text), variable)

    def of(self, path: Path) -> int:
        """Return the line of a value, or of the nearest enclosing value that the file writes literally."""
        line, value = self._line, self._value
        for step in path:
            found = _inside(value, step)
            if found is None:
                break
            line, value = found
        return line


def _assignment(module: ast.Module, variable: str) -> tuple[int, ast.expr | None]:
    for node in reversed(module.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == variable:
                return node.lineno, value
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if name == variable:
                return node.lineno, value
    return 1, None


def _inside(value: ast.expr | None, step: str | int) -> tuple[int, ast.expr] | None:
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, each in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == step:
                    return key.lineno, each
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg == step:
                    return keyword.lineno, keyword.value
        case ast.List(elts=items) | ast.Tuple(elts=items) if isinstance(step, int) and step < len(items):
            return items[step].lineno, items[step]
    return None
