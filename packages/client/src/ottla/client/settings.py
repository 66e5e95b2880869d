"""Settings of clients: flat keywords, or properties files, into frozen dataclasses that check themselves.

A config class is a frozen dataclass whose fields are settings; where a field is a config class itself, its
settings are given flat all the same. `aliases` of a class say which other names it knows, those of older
Kafkas and of other clients, and what has become of settings that mean nothing any more.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from ottla.client.properties import parse

log = logging.getLogger(__name__)

SETTINGS = "ottla.settings"
"""The entry points that name config classes, so that a setting of another client is known as that."""

T = TypeVar("T")
C = TypeVar("C")


class SettingError(ValueError):
    """A setting that there is not, or that cannot have the value it was given."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a setting: of which one, where it comes from, and how its values are read.

    Without a `field` the setting means nothing any more: it is taken, and a warning says `advice`. With
    `expand` one value sets several fields.
    """

    field: str | None
    source: str
    read: Callable[[Any], Any] | None = None
    expand: Callable[[Any], Mapping[str, Any]] | None = None
    advice: str = ""
    is_secret: bool = False
    """Whether messages must not show its value."""


def setting(
    default: T,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    synonyms: Mapping[Any, Any] = MappingProxyType({}),
) -> T:
    """Declare a field of a config class: its default, its limits, and values that stand for others."""
    metadata = {"at_least": at_least, "at_most": at_most, "synonyms": synonyms}
    return dataclasses.field(default=default, metadata=metadata)


def validate(config: Any) -> None:
    """Check the fields of a config against their types and limits. Raises SettingError naming the first."""
    for name, place in places(type(config)).items():
        if len(place.path) > 1:
            continue
        given = getattr(config, name)
        value = _meant(given, place)
        if value is not given:
            object.__setattr__(config, name, value)
        _check(name, value, place)


def configure(cls: type[C], settings: Mapping[str, Any]) -> C:
    """Make a config of flat settings under any of their names.

    Raises SettingError for a name that is not known, with the nearest that is, and for values that cannot be.
    """
    return _assemble(cls, _translate(cls, settings, dotted=False), None)


def chosen(cls: type[C], config: C | None, settings: Mapping[str, Any]) -> C:
    """Return the config that was given, or the one that single settings make. Raises TypeError for both."""
    _refuse_other_things(cls, config, settings.get("bootstrap_servers"))
    given = {
        name: value for name, value in settings.items() if name != "bootstrap_servers" or value is not None
    }
    if config is None:
        return configure(cls, given)
    if given.keys() - {"bootstrap_servers"}:
        raise TypeError("give a config or single settings, not both")
    return _assemble(cls, given, config) if given else config


def _refuse_other_things(cls: type[Any], config: Any, servers: Any) -> None:
    if isinstance(servers, Mapping) or isinstance(config, Mapping):
        name = cls.__name__
        raise TypeError(f"{name} reads a mapping of settings: give config={name}.from_properties({{...}})")
    if config is not None and not isinstance(config, cls):
        raise TypeError(f"config must be a {cls.__name__}, not {type(config).__name__}")


def from_properties(cls: type[C], source: str | Path | Mapping[str, Any], **settings: Any) -> C:
    """Make a config of a properties file, or of a mapping, with Kafka's dotted names; `settings` win over it.

    Raises SettingError as `configure` does, OSError for a file that cannot be read.
    """
    if not isinstance(source, Mapping):
        source = parse(Path(source).read_text(encoding="utf-8"))
    wanted = _translate(cls, source, dotted=True) | _translate(cls, settings, dotted=False)
    return _assemble(cls, wanted, None)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a flat setting lives: names of the fields that lead to it, and what it may be."""

    path: tuple[str, ...]
    type: Any
    field: dataclasses.Field[Any]


def places(cls: type[Any]) -> Mapping[str, Place]:
    """Return the settings of a config class and of those it holds, by their flat names."""
    if cls not in _places:
        _places[cls] = MappingProxyType(_find_places(cls))
    return _places[cls]


_places: dict[type[Any], Mapping[str, Place]] = {}


def _find_places(cls: type[Any]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        if nested is None:
            found[field.name] = Place((field.name,), _resolve(cls, field.type), field)
        else:
            inner = places(nested).items()
            found |= {name: Place((field.name, *each.path), each.type, each.field) for name, each in inner}
    return found


def aliases(cls: type[Any]) -> Mapping[str, Alias]:
    """Return the other names of a config class's settings; an outer class's win over those it holds."""
    found: dict[str, Alias] = {}
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        if nested is not None:
            found |= aliases(nested)
    return found | dict(getattr(cls, "aliases", {}))


def _nested(field: dataclasses.Field[Any]) -> type[Any] | None:
    factory: Any = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def _resolve(cls: type[Any], annotation: Any) -> Any:
    """Return what an annotation means; `object` where it needs a module that only type checkers load."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[cls.__module__]))
    except NameError:
        return object


def _assemble(cls: type[C], wanted: Mapping[str, Any], base: C | None) -> C:
    own: dict[str, Any] = {}
    for field in dataclasses.fields(cast("Any", cls)):
        nested = _nested(field)
        if nested is None:
            if field.name in wanted:
                own[field.name] = wanted[field.name]
            continue
        whole = wanted.get(field.name, getattr(base, field.name) if base is not None else None)
        own[field.name] = _assemble(nested, wanted, whole)
    return cls(**own) if base is None else dataclasses.replace(cast("Any", base), **own)


def _translate(cls: type[Any], given: Mapping[str, Any], *, dotted: bool) -> dict[str, Any]:
    """Bring settings under their own names, and text of files into their types."""
    known, others, wholes = places(cls), aliases(cls), set(_wholes(cls))
    wanted: dict[str, Any] = {}
    for spelling, value in given.items():
        name = spelling.replace(".", "_") if dotted else spelling
        if name in known or name in wholes:
            pairs: Mapping[str, Any] = {name: value}
        elif name in others:
            pairs = dict(_read_alias(spelling, value, others[name]))
        else:
            raise SettingError(_unknown(spelling, (*known, *others), cls, dotted=dotted))
        for field, one in pairs.items():
            if field in wanted:
                raise SettingError(f"{spelling} sets {field}, which is set already: give one of the two")
            wanted[field] = _of_file(spelling, one, known[field]) if field in known and dotted else one
    return wanted


def _wholes(cls: type[Any]) -> Iterator[str]:
    """Name the fields that hold config classes: one may be given whole."""
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        if nested is not None:
            yield field.name
            yield from _wholes(nested)


def _read_alias(spelling: str, value: Any, alias: Alias) -> Iterator[tuple[str, Any]]:
    try:
        if alias.advice:
            log.warning("%s: %s", spelling, alias.advice)
        if alias.expand is not None:
            yield from alias.expand(value).items()
        elif alias.field is not None:
            yield alias.field, value if alias.read is None else alias.read(value)
    except SettingError:
        raise
    except (ValueError, TypeError) as error:
        raise SettingError(f"{spelling} cannot be {_shown(value, alias.is_secret)}: {error}") from None


def _shown(value: Any, is_secret: bool) -> str:
    return "the value given" if is_secret else repr(value)


def teaching(cls: type[C]) -> type[C]:
    """Let a config class refuse keywords that are no fields with a SettingError that names the nearest."""
    plain: Callable[..., None] = cls.__init__

    @functools.wraps(plain)
    def init(self: C, **given: Any) -> None:
        fields = tuple(each.name for each in dataclasses.fields(cast("Any", cls)))
        for name in given:
            if name not in fields:
                raise SettingError(_unknown(name, fields, cls, dotted=False))
        plain(self, **given)

    cast("Any", cls).__init__ = init
    return cls


def _unknown(spelling: str, known: tuple[str, ...], cls: type[Any], *, dotted: bool) -> str:
    other = _whose(spelling.replace(".", "_"), cls)
    if other is not None:
        return f"{spelling} is a setting of the {other}"
    near = difflib.get_close_matches(spelling.replace(".", "_").lower(), known, 1, 0.7)
    if not near:
        return f"there is no setting {spelling!r}; the reference lists all that there are"
    meant = near[0].replace("_", ".") if dotted else near[0]
    return f"there is no setting {spelling!r}; did you mean {meant!r}?"


def _whose(name: str, cls: type[Any]) -> str | None:
    """Say which other installed client has a setting."""
    for entry in entry_points(group=SETTINGS):
        other = entry.load()
        if other is not cls and dataclasses.is_dataclass(other):
            kind = cast("type[Any]", other)
            if name in places(kind) or name in aliases(kind):
                return entry.name
    return None


def options(kind: Any) -> tuple[Any, ...]:
    """Return what a type consists of: the members of a union, or itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _check(name: str, value: Any, place: Place) -> None:
    kinds = options(place.type)
    if not any(_fits(value, kind) for kind in kinds):
        shown = _shown(value, is_secret=not place.field.repr)
        raise SettingError(f"{name} must be {' or '.join(_words(kind) for kind in kinds)}, not {shown}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_limits(name, value, place.field.metadata)


def _check_limits(name: str, value: float, limits: Mapping[str, Any]) -> None:
    at_least, at_most = limits.get("at_least"), limits.get("at_most")
    if at_least is not None and value < at_least:
        raise SettingError(f"{name} must be at least {at_least:_}, not {value:_}")
    if at_most is not None and value > at_most:
        raise SettingError(f"{name} must be at most {at_most:_}, not {value:_}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(kind))
    if kind is int or kind is float:
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if kind is None or kind is type(None):
        return value is None
    if kind in (bool, str):
        return isinstance(value, kind)
    return True


_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(each) for each in get_args(kind))
    return _WORDS.get(kind, str(kind))


def _meant(value: Any, place: Place) -> Any:
    synonyms = place.field.metadata.get("synonyms", {})
    return synonyms.get(value, value) if synonyms and isinstance(value, str | None) else value


def _of_file(spelling: str, value: Any, place: Place) -> Any:
    """Read a value, and check it under the name that it was given by."""
    found = _meant(_from_text(spelling, value, place), place)
    _check(spelling, found, place)
    return found


def _from_text(spelling: str, value: Any, place: Place) -> Any:
    """Make of the text of a file what a field wants; what is no text stays."""
    if not isinstance(value, str):
        return value
    text = _meant(value.strip(), place)
    kinds = [each for each in options(place.type) if each is not type(None)]
    if len(kinds) < len(options(place.type)) and text in ("", "null"):
        return None
    for each in kinds:
        found = _read_text(text, each)
        if found is not None:
            return found
    wanted = " or ".join(_words(each).replace("True or False", "true or false") for each in kinds)
    raise SettingError(f"{spelling} must be {wanted}, not {value!r}")


def _read_text(text: str, kind: Any) -> Any:
    """Return None where text cannot be of a type."""
    if get_origin(kind) is Literal:
        return {str(each): each for each in get_args(kind)}.get(text)
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower())
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return None
    if get_origin(kind) in (tuple, list, Sequence):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text
