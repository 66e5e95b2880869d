"""Read settings of clients: flat keywords and properties files into config classes, frozen dataclasses.

A config class is a frozen dataclass whose fields are settings (`ottla.client.config_definition`). A field may
hold another config class; its settings are given flat all the same. `aliases` of a class are further names of
settings, those of older Kafkas and of other clients, and say what replaces settings that have no effect.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.client.config_definition import Setting, SettingError, check_string, define, setting

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Alias",
    "SettingError",
    "aliases",
    "check_string",
    "config_from",
    "configure",
    "from_properties",
    "owner_of",
    "read_properties",
    "setting",
    "settings_of",
    "suggest_names",
    "validate",
]

log = logging.getLogger(__name__)

SETTINGS = "ottla.settings"
"""The entry-point group of config classes; errors use it to name the client that a setting belongs to."""

T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of the setting `field`, used by `source`; `read` converts its values.

    Without a `field` the setting has no effect: it is accepted, and a warning says `advice`. With `expand`
    one value sets several fields.
    """

    field: str | None
    source: str
    read: Callable[[Any], Any] | None = None
    expand: Callable[[Any], Mapping[str, Any]] | None = None
    advice: str = ""
    is_secret: bool = False
    """Whether messages hide its value."""


def validate(config: Any) -> None:
    """Check the fields of a config against their types and limits. Raises SettingError naming the first."""
    for name, own in _own_settings(type(config)).items():
        given = getattr(config, name)
        value = own.meant(given)
        if value is not given:
            object.__setattr__(config, name, value)
        own.check(value, name)


def configure(cls: type[C], settings: Mapping[str, Any]) -> C:
    """Make a config of flat settings under any of their names.

    Raises SettingError for an unknown name, suggesting the nearest known one, and for invalid values.
    """
    return _assemble(cls, _translate(cls, settings, dotted=False), None)


def config_from(cls: type[C], config: C | None, settings: Mapping[str, Any]) -> C:
    """Return the given config, or make one of the given settings. Raises TypeError for both."""
    _reject_mappings(cls, config, settings.get("bootstrap_servers"))
    given = {
        name: value for name, value in settings.items() if name != "bootstrap_servers" or value is not None
    }
    if config is None:
        return configure(cls, given)
    if given.keys() - {"bootstrap_servers"}:
        raise TypeError("give a config or single settings, not both")
    return _assemble(cls, given, config) if given else config


def _reject_mappings(cls: type[Any], config: Any, servers: Any) -> None:
    if isinstance(servers, Mapping) or isinstance(config, Mapping):
        name = cls.__name__
        raise TypeError(f"{name} reads a mapping of settings: give config={name}.from_properties({{...}})")
    if config is not None and not isinstance(config, cls):
        raise TypeError(f"config must be a {cls.__name__}, not {type(config).__name__}")


def from_properties(cls: type[C], source: str | Path | Mapping[str, Any], **settings: Any) -> C:
    """Make a config of a properties file or a mapping with Kafka's dotted names; `settings` win over it.

    Raises SettingError as `configure` does, OSError for a file that cannot be read.
    """
    given = source if isinstance(source, Mapping) else read_properties(source)
    wanted = _translate(cls, given, dotted=True) | _translate(cls, settings, dotted=False)
    return _assemble(cls, wanted, None)


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a properties file as the broker does, and strip the ends of values. Raises SettingError."""
    # Imported here: the storage formats are many modules, and most programs give keywords.
    from ottla.protocol.storage import CorruptStorage
    from ottla.protocol.storage.properties import decode_properties

    try:
        with open(path, "rb") as file:
            pairs = decode_properties(file.read())
    except CorruptStorage as error:
        raise SettingError(f"{path}: {error}") from None
    return {name: value.rstrip() for name, value in pairs.items()}


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """Return the settings of a config class and of the config classes it holds, by their flat names."""
    own, found = _own_settings(cls), dict[str, Setting]()
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        found |= settings_of(nested) if nested is not None else {field.name: own[field.name]}
    return MappingProxyType(found)


def _own_settings(cls: type[Any]) -> Mapping[str, Setting]:
    if cls not in _defined:
        fields = {field.name: field for field in dataclasses.fields(cls) if _nested(field) is None}
        _defined[cls] = define(cls, fields, null_texts=("", "null"))
    return _defined[cls]


_defined: dict[type[Any], Mapping[str, Setting]] = {}


def aliases(cls: type[Any]) -> Mapping[str, Alias]:
    """Return further names of a config class's settings; an outer class's win over those it holds."""
    found: dict[str, Alias] = {}
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        if nested is not None:
            found |= aliases(nested)
    return found | dict(getattr(cls, "aliases", {}))


def _nested(field: dataclasses.Field[Any]) -> type[Any] | None:
    factory: Any = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


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
    """Resolve aliases, and convert the text of files to the types of the settings."""
    known, others, wholes = settings_of(cls), aliases(cls), set(_nested_names(cls))
    wanted: dict[str, Any] = {}
    for spelling, value in given.items():
        name = spelling.replace(".", "_") if dotted else spelling
        if name in known or name in wholes:
            pairs: Mapping[str, Any] = {name: value}
        elif name in others:
            pairs = dict(_read_alias(spelling, value, others[name]))
        else:
            raise SettingError(_unknown(spelling, (*known, *others), cls, dotted=dotted))
        for field, meant in pairs.items():
            if field in wanted:
                raise SettingError(f"{spelling} sets {field}, which is set already: give one of the two")
            wanted[field] = _of_file(spelling, meant, known[field]) if field in known and dotted else meant
    return wanted


def _nested_names(cls: type[Any]) -> Iterator[str]:
    """Yield the names of fields that hold config classes; a caller may give one whole."""
    for field in dataclasses.fields(cls):
        nested = _nested(field)
        if nested is not None:
            yield field.name
            yield from _nested_names(nested)


def _read_alias(spelling: str, value: Any, alias: Alias) -> Iterator[tuple[str, Any]]:
    try:
        if alias.advice:
            event = f"{spelling}: {alias.advice}"  # for people who move: they see it by any formatter
            log.warning(event, extra={"setting": spelling})
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


def suggest_names(cls: type[C]) -> type[C]:
    """Make a config class raise SettingError for an unknown keyword, suggesting the nearest known one."""
    plain: Callable[..., None] = cls.__init__

    @functools.wraps(plain)
    def init(self: C, **given: Any) -> None:
        fields = tuple(field.name for field in dataclasses.fields(cast("Any", cls)))
        for name in given:
            if name not in fields:
                raise SettingError(_unknown(name, fields, cls, dotted=False))
        plain(self, **given)

    cast("Any", cls).__init__ = init
    return cls


def _unknown(spelling: str, known: tuple[str, ...], cls: type[Any], *, dotted: bool) -> str:
    """Return the sentence about an unknown name; a class's `instead_of` has what its users mean by some."""
    instead = getattr(cls, "instead_of", {}).get(spelling.replace(".", "_"))
    if instead is not None:
        return f"{spelling} is no setting of a {cls.__name__.removesuffix('Config')}: {instead}"
    other = owner_of(spelling.replace(".", "_"), cls)
    if other is not None:
        return f"{spelling} is {_setting_of(other)}"
    import difflib  # for a mistake only

    owners = dict.fromkeys(known, "")
    for owner, names in _settings_of_others(cls):
        owners = dict.fromkeys(names, owner) | owners
    near = difflib.get_close_matches(spelling.replace(".", "_").lower(), owners, 1, 0.7)
    if not near:
        return f"there is no setting {spelling!r}; the reference lists all settings"
    meant = near[0].replace("_", ".") if dotted else near[0]
    owner = owners[near[0]]
    of_owner = f", {_setting_of(owner)}" if owner else ""
    return f"there is no setting {spelling!r}; did you mean {meant!r}{of_owner}?"


def _setting_of(owner: str) -> str:
    """Return where a setting belongs, with the page that has all of them."""
    return f"a setting of the {owner} (docs/reference/{owner}-settings.md)"


def owner_of(name: str, cls: type[Any]) -> str | None:
    """Return the name of another installed client that has a setting, or None."""
    return next((owner for owner, names in _settings_of_others(cls) if name in names), None)


def _settings_of_others(cls: type[Any]) -> Iterator[tuple[str, set[str]]]:
    """Yield the other installed clients, and the names of their settings."""
    from importlib.metadata import entry_points  # 20 ms: most programs do not come here

    for entry in entry_points(group=SETTINGS):
        other = entry.load()
        if other is not cls and dataclasses.is_dataclass(other):
            kind = cast("type[Any]", other)
            yield entry.name, {*settings_of(kind), *aliases(kind)}


def _of_file(spelling: str, value: Any, kind: Setting) -> Any:
    """Convert a value that may be text, and check it; errors carry the name it was given by."""
    found = kind.meant(kind.convert(value, spelling) if isinstance(value, str) else value)
    kind.check(found, spelling)
    return found
