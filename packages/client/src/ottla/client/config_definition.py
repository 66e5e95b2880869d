"""How one setting of the broker or of a client is declared, parsed, checked and documented (ConfigDef).

A setting is one field of a config class. Its name is Kafka's in snake case, its annotation the type, and
`setting()` carries default, checks and documentation; `define` makes the field a `Setting`, which parses text
and checks values. Properties files, keywords, dynamic configs, DescribeConfigs and the reference pages are
derived from those. `ottla.broker.config` and `ottla.client.settings` say where values are looked for and what
an unknown name means; `docs/design/settings.md` says why those two differ.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from ottla.protocol.primitives import MAX_STRING_BYTES

MAX_LONG = 2**63 - 1
MAX_INT = 2**31 - 1

T = TypeVar("T")

Update = Literal["read-only", "per-broker", "cluster-wide"]
Check = Callable[[Any], str | None]
"""Returns what a value must be, worded to follow the setting's name, or None for a valid value."""

_NO_SYNONYMS: Mapping[Any, Any] = MappingProxyType({})


class SettingError(ValueError):
    """A setting does not exist, or cannot have the value it was given."""


class ConfigError(SettingError):
    """A setting cannot have a value; the message names the setting and says what the value must be."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


class ValueType(NamedTuple):
    """One type a setting may have: how text is parsed, and which Python values it accepts."""

    name: str
    """Kafka's name of the type, as DescribeConfigs has it."""
    parse: Callable[[str], Any]
    """Converts text; raises ValueError or KeyError for invalid text."""
    accepts: Callable[[Any], bool]
    words: str
    """The type's name in messages about Python values."""
    text_words: str
    """The type's name in messages about text."""


def setting(
    default: T,
    doc: str = "",
    *checks: Check,
    at_least: float | None = None,
    at_most: float | None = None,
    synonyms: Mapping[Any, Any] = _NO_SYNONYMS,
    long: bool = False,
    is_secret: bool = False,
    update: Update = "read-only",
    ottla_only: bool = False,
) -> T:
    """Declare a field of a config class as a setting.

    `synonyms` maps text or None to the values they stand for. `long` makes a Kafka int a Kafka long. A
    secret is never shown. `update` says how a running broker applies a change. Without `doc` the docstring
    behind the field is the documentation.
    """
    metadata = {
        "doc": doc,
        "checks": (*checks, *_limits(at_least, at_most)),
        "synonyms": synonyms,
        "long": long,
        "is_secret": is_secret,
        "update": update,
        "ottla_only": ottla_only,
    }
    # A broker has three hundred: what is not said takes no memory.
    metadata = {name: value for name, value in metadata.items() if value and value != "read-only"}
    return dataclasses.field(default=default, repr=not is_secret, metadata=metadata)


class Setting(NamedTuple):
    """One declared setting: its names, types, default, checks and documentation."""

    field: str
    annotation: Any
    types: tuple[ValueType, ...]
    nullable: bool
    null_texts: tuple[str, ...]
    default: Any
    checks: tuple[Check, ...]
    synonyms: Mapping[Any, Any]
    is_secret: bool
    doc: str
    update: Update
    ottla_only: bool

    @property
    def name(self) -> str:
        """Kafka's dotted name."""
        return dotted(self.field)

    @property
    def type(self) -> str:
        """Kafka's name of the type."""
        return "password" if self.is_secret else self.types[0].name

    def parse(self, text: str | None) -> Any:
        """Convert the text of a properties file and check the value. Raises ConfigError."""
        value = self.convert(text or "")
        self.check_limits(value, shown=repr(text and text.strip()))
        return value

    def convert(self, text: str, name: str | None = None) -> Any:
        """Convert text without checking limits. Raises ConfigError under `name`, else the dotted name."""
        stripped = self.meant(text.strip())
        if stripped is None or (self.nullable and stripped in self.null_texts):
            return None
        for kind in self.types:
            try:
                return kind.parse(stripped)
            except (ValueError, KeyError):
                continue
        wanted = " or ".join(kind.text_words for kind in self.types)
        raise ConfigError(name or self.name, f"must be {wanted}, not {self.shown(text.strip())}")

    def check(self, value: Any, name: str | None = None) -> None:
        """Check the type and limits of a Python value. Raises ConfigError as `convert` does."""
        if not (value is None and self.nullable) and not any(kind.accepts(value) for kind in self.types):
            words = [kind.words for kind in self.types] + ["None"] * self.nullable
            raise ConfigError(name or self.name, f"must be {' or '.join(words)}, not {self.shown(value)}")
        self.check_limits(value, name)

    def check_limits(self, value: Any, name: str | None = None, *, shown: str | None = None) -> None:
        """Raise ConfigError for a value that fails a check; None passes all checks."""
        if value is None:
            return
        for check in self.checks:
            if problem := check(value):
                given = self.shown(value) if self.is_secret else shown or _grouped(value)
                raise ConfigError(name or self.name, f"{problem}, not {given}")

    def meant(self, value: Any) -> Any:
        """Return the value of a synonym, or the value itself."""
        if self.synonyms and isinstance(value, str | None):
            return self.synonyms.get(value, value)
        return value

    def show(self, value: Any) -> str | None:
        """Write a value as a properties file or a DescribeConfigs response would."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def shown(self, value: Any) -> str:
        """Write a value for a message; hide secrets."""
        return "the value given" if self.is_secret else repr(value)


def dotted(field: str) -> str:
    """Return Kafka's name of a field."""
    return field.replace("_", ".")


def _grouped(value: Any) -> str:
    return f"{value:_}" if _is_number(value) else repr(value)


# --- types


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _integer(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(text)
        return value

    return parse


def _list(text: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in text.split(",")) if item)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_anything(_: Any) -> bool:
    return True


BOOLEAN = ValueType("boolean", _boolean, _is_boolean, "True or False", "true or false")
WHOLE_NUMBER = ValueType("long", int, _is_integer, "a whole number", "a whole number")
INT = ValueType("int", _integer(32), _is_integer, "a 32-bit integer", "a 32-bit integer")
LONG = ValueType("long", _integer(64), _is_integer, "a 64-bit integer", "a 64-bit integer")
DOUBLE = ValueType("double", float, _is_number, "a number", "a number")
STRING = ValueType("string", str, _is_text, "text", "text")
LIST = ValueType("list", _list, _is_anything, "a list", "a comma-separated list")
ANY = ValueType("string", str, _is_anything, "a value", "text")


def _one_of(options: tuple[Any, ...]) -> ValueType:
    words = " or ".join(map(repr, options))
    return ValueType(
        "string",
        {str(option): option for option in options}.__getitem__,
        lambda value: any(value == option and type(value) is type(option) for option in options),
        words,
        words,
    )


def _type_of(kind: Any, integer: ValueType) -> ValueType:
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind))
    if get_origin(kind) in (tuple, list, Sequence):
        return LIST
    return {bool: BOOLEAN, int: integer, float: DOUBLE, str: STRING}.get(kind, ANY)


# --- definitions


def define(
    cls: type[Any],
    fields: Mapping[str, Any],
    *,
    integer: ValueType = WHOLE_NUMBER,
    null_texts: tuple[str, ...] = ("",),
) -> dict[str, Setting]:
    """Return the settings of a config class by field, in order.

    `fields` maps each field to its `dataclasses.Field` or its plain default. `integer` is the type of an int
    that is not declared `long`; `null_texts` are the texts that mean None for optional settings.
    """
    return {name: _define(cls, name, field, integer, null_texts) for name, field in fields.items()}


def _define(
    cls: type[Any], name: str, field: Any, integer: ValueType, null_texts: tuple[str, ...]
) -> Setting:
    is_field = isinstance(field, dataclasses.Field)
    about: Mapping[str, Any] = field.metadata if is_field else {}
    owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", ()))
    annotation = _resolve(owner, owner.__annotations__[name])
    kinds = [kind for kind in options(annotation) if kind is not type(None)]
    whole = LONG if about.get("long") else integer
    return Setting(
        field=name,
        annotation=annotation,
        types=tuple(_type_of(kind, whole) for kind in kinds),
        nullable=len(kinds) < len(options(annotation)),
        null_texts=null_texts,
        default=field.default if is_field else field,
        checks=about.get("checks", ()),
        synonyms=about.get("synonyms", _NO_SYNONYMS),
        is_secret=is_field and not field.repr,
        doc=about.get("doc", ""),
        update=about.get("update", "read-only"),
        ottla_only=about.get("ottla_only", False),
    )


def options(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _resolve(cls: type[Any], annotation: Any) -> Any:
    """Return the type that an annotation names; `object` when it needs a module only type checkers import."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]))
    except NameError:
        return object


def documentation(cls: type[Any]) -> dict[str, str]:
    """Return the docstring behind each field of a config class, for the reference pages; needs its source."""
    import ast
    import inspect
    import textwrap

    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


# --- checks


@cache
def at_least(least: float) -> Check:
    """Accept numbers from `least` up, not NaN, and all values that are not numbers."""
    return lambda value: f"must be at least {least:_}" if _is_number(value) and not value >= least else None


@cache
def at_most(most: float) -> Check:
    """Accept numbers up to `most`, not NaN, and all values that are not numbers."""
    return lambda value: f"must be at most {most:_}" if _is_number(value) and not value <= most else None


@cache
def between(least: float, most: float) -> Check:
    """Accept numbers from `least` to `most`, both included."""
    return lambda value: None if least <= value <= most else f"must be between {least:_} and {most:_}"


def one_of(*accepted: str) -> Check:
    """Accept one of the given strings."""
    return lambda value: None if value in accepted else f"must be one of {', '.join(accepted)}"


def each_of(*accepted: str) -> Check:
    """Accept a list of nothing but the given strings; it may be empty."""
    wanted = f"must be a list of {', '.join(accepted)}"
    return lambda value: None if all(item in accepted for item in value) else wanted


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name to listen on, and connects from such an address.

    Of names only `localhost` is one; an empty host stands for every interface.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def check_string(name: str, text: str | None) -> None:
    """Check that a request may hold the text of a setting. Raises ConfigError, which leaves the text out."""
    size_bytes = 0 if text is None else len(text.encode(errors="surrogatepass"))
    if size_bytes > MAX_STRING_BYTES:
        raise ConfigError(name, f"has {size_bytes} bytes, at most {MAX_STRING_BYTES}")


def _limits(least: float | None, most: float | None) -> Iterator[Check]:
    if least is not None:
        yield at_least(least)
    if most is not None:
        yield at_most(most)
