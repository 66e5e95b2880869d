"""Mistakes in a declaration, in words for its author. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ottla.pipeline.errors import PipelineError

SettingPath = tuple[str | int, ...]
"""The path to a value: keys of tables and indexes of lists."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, and the path of the setting that it concerns."""

    path: SettingPath
    message: str

    @property
    def where(self) -> str:
        """The path as in TOML: source.topics, rules[1].limit."""
        parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path]
        return "".join(parts).removeprefix(".")


@dataclass(frozen=True, slots=True)
class Located:
    """A mistake with its line in the file."""

    line: int
    mistake: Mistake

    def __str__(self) -> str:
        where = f"{self.mistake.where}: " if self.mistake.path else ""
        return f"line {self.line}: {where}{self.mistake.message}"


class DeclarationError(PipelineError, ValueError):
    """An invalid declaration, with all mistakes in it."""

    def __init__(self, file: str, located: list[Located]) -> None:
        super().__init__("\n".join(f"{file}: {mistake}" for mistake in located))
        self.file = file
        self.located = located


def within(step: str | int, mistakes: Iterable[Mistake]) -> Iterator[Mistake]:
    """Yield the mistakes of a nested table, `step` in front of their paths."""
    for mistake in mistakes:
        yield Mistake((step, *mistake.path), mistake.message)


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> Iterator[Mistake]:
    """Yield pydantic's errors in our words."""
    for found in error.errors(include_url=False):
        path: SettingPath = tuple(found["loc"])
        yield Mistake(path, _said(found, path, model))


def _said(found: Mapping[str, Any], path: SettingPath, model: type[BaseModel]) -> str:
    kind, limits = found["type"], found.get("ctx", {})
    if kind == "missing":
        return f"is missing{_example(model, path)}"
    if kind == "extra_forbidden":
        return f"there is no such setting{_near(model, path)}"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {_shown(found['input'])}"
    if kind in _LIMITS:
        words, name = _LIMITS[kind]
        return f"must be {words} {limits[name]:g}, not {_shown(found['input'])}"
    if kind == "literal_error":
        return f"must be one of {limits['expected']}, not {_shown(found['input'])}"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"must be letters, digits, '.', '_' and '-', not {_shown(found['input'])}"
    return str(found["msg"]).removeprefix("Value error, ")


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number",
    "bool_type": "true or false", "bool_parsing": "true or false",
    "list_type": "a list", "dict_type": "a table",
    "model_type": "a table", "model_attributes_type": "a table", "callable_type": "a function",
}  # fmt: skip

_LIMITS = {
    "greater_than": ("above", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, Mapping) else repr(value)


def _example(model: type[BaseModel], path: SettingPath) -> str:
    field = _fields(model, path[:-1]).get(str(path[-1]))
    if field is None or not field.examples:
        return ""
    return f": {path[-1]} = {_toml(field.examples[0])}"


def _toml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _near(model: type[BaseModel], path: SettingPath) -> str:
    known = sorted(_fields(model, path[:-1]))
    near = difflib.get_close_matches(str(path[-1]), known, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(known)}" if known else ""


def _fields(model: type[BaseModel], path: SettingPath) -> dict[str, Any]:
    """Return the fields of the table at a path; none if there is no such table."""
    found: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int):
            continue  # an item of a list has the fields of the list's item type
        field = found.model_fields.get(step) if found is not None else None
        found = _table_in(field.annotation) if field is not None else None
    fields = found.model_fields if found is not None else {}
    return {field.alias or name: field for name, field in fields.items()}


def _table_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _table_in(inner)
        if found is not None:
            return found
    return None
