"""How a configuration key is declared, parsed, checked and documented.

A key is one field of a value class: its name is the key in snake case, its annotation the type, and
`key()` carries default, check and documentation. Reading, validation, DescribeConfigs and the
reference page are all derived from those fields.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ottla.broker.values import declared, frozen

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1

Update = Literal["read-only", "per-broker", "cluster-wide"]
Check = Callable[[Any], str | None]


class ConfigError(ValueError):
    """A configuration value cannot be used; the message names the key and what it must be."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


@frozen
class Key:
    """What is known of one key: how it is called, what it may hold, and what it is for."""

    name: str
    type: Literal["boolean", "int", "long", "double", "string", "list", "password"]
    nullable: bool
    default: Any
    check: Check | None
    doc: str
    update: Update
    ottla_only: bool

    def parse(self, text: str | None) -> Any:
        """Turn the text of a properties file into a value, or raise `ConfigError`."""
        value = self._convert(text)
        problem = self.check(value) if self.check is not None and value is not None else None
        if problem:
            raise ConfigError(self.name, f"{problem}, not {text!r}")
        return value

    def _convert(self, text: str | None) -> Any:
        stripped = "" if text is None else text.strip()
        if not stripped and self.nullable:
            return None
        try:
            return _PARSERS[self.type](stripped)
        except ValueError:
            raise ConfigError(self.name, f"must be {_ARTICLES[self.type]}, not {stripped!r}") from None

    def show(self, value: Any) -> str | None:
        """Write a value as a properties file or a DescribeConfigs answer would."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _parse_int(text: str) -> int:
    value = int(text)
    if not -(2**31) <= value <= MAX_INT:
        raise ValueError(text)
    return value


def _parse_long(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value <= MAX_LONG:
        raise ValueError(text)
    return value


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": _parse_boolean,
    "int": _parse_int,
    "long": _parse_long,
    "double": float,
    "string": str,
    "list": _parse_list,
    "password": str,
}
_ARTICLES = {
    "boolean": "true or false",
    "int": "a 32-bit integer",
    "long": "a 64-bit integer",
    "double": "a number",
    "string": "a string",
    "list": "a comma-separated list",
    "password": "a string",
}


def key(
    default: Any,
    doc: str,
    check: Check | None = None,
    *,
    name: str | None = None,
    long: bool = False,
    password: bool = False,
    update: Update = "read-only",
    ottla_only: bool = False,
) -> Any:
    """Declare one key as a field."""
    about = {
        "name": name,
        "doc": doc,
        "check": check,
        "long": long,
        "password": password,
        "update": update,
        "ottla_only": ottla_only,
    }
    return dataclasses.field(default=default, metadata=about)


def _type_of(annotation: Any, metadata: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the key's type and whether it may be absent."""
    nullable = False
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
        nullable, annotation = True, options[0]
    if metadata["password"]:
        return "password", nullable
    if annotation is int:
        return ("long" if metadata["long"] else "int"), nullable
    simple: dict[Any, str] = {bool: "boolean", float: "double", str: "string"}
    return simple.get(annotation, "list"), nullable


@functools.cache
def keys_of(cls: type) -> Mapping[str, Key]:
    """List the keys of a configuration class, by Kafka's dotted name, in their order."""
    hints = typing.get_type_hints(cls)
    keys: dict[str, Key] = {}
    for field_name, field in declared(cls).items():
        about = field.metadata
        kind, nullable = _type_of(hints[field_name], about)
        name = about["name"] or field_name.replace("_", ".")
        keys[name] = Key(
            name=name,
            type=kind,
            nullable=nullable,
            default=field.default,
            check=about["check"],
            doc=about["doc"],
            update=about["update"],
            ottla_only=about["ottla_only"],
        )
    return keys


@functools.cache
def field_names_of(cls: type) -> Mapping[str, str]:
    """Map each dotted key of a configuration class to its field."""
    return {
        field.metadata["name"] or field_name.replace("_", "."): field_name
        for field_name, field in declared(cls).items()
    }


def at_least(least: float) -> Check:
    """Accept numbers from `least` up."""
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    """Accept numbers from `least` to `most`, both included."""
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def one_of(*options: str) -> Check:
    """Accept one of the given strings."""
    return lambda value: None if value in options else f"must be one of {', '.join(options)}"


def each_of(*options: str) -> Check:
    """Accept a list of nothing but the given strings, at least one."""
    wanted = f"must be a list of {', '.join(options)}"
    return lambda value: None if value and all(item in options for item in value) else wanted
