"""Options of the data sources: fields of config classes, declared and parsed as settings of the clients are.

Spark passes options as text, under names without regard to case. A class of options declares each of them
with `option()`, and keeps the values that are derived from several options beside them.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_origin

from ottla.client.config_definition import Check, Setting, SettingError, define, setting
from ottla.client.profiles import Profile, read_profile
from ottla.client.settings import aliases, owner_of, settings_of
from ottla.pipeline.connector_options import CONSUMER, PRODUCER
from ottla.pipeline.errors import OptionError

log = logging.getLogger(__name__)

T = TypeVar("T")

_PASSED_ON = "kafka."
PROFILE = "profile"
"""The option that names a profile; only the process that plans a query reads its secrets."""

Only = Literal["", "batch", "stream"]


class Option(NamedTuple):
    """An option of a data source, as the reference shows it."""

    name: str
    field: str
    default: str | None
    """The default in the form of a value that could be given; None if there is none."""
    meaning: str
    only: Only = ""
    """Where the option has an effect: `batch`, `stream`, or both if empty."""


def option(
    name: str,
    default: T,
    meaning: str,
    *checks: Check,
    only: Only = "",
    at_least: int | None = None,
) -> T:
    """Declare a field of an options class as the option with Spark's name."""
    declared = cast("dataclasses.Field[T]", setting(default, meaning, *checks, at_least=at_least))
    metadata = {**declared.metadata, "name": name, "only": only}
    return dataclasses.field(default=default, metadata=metadata)


def options_of(cls: type[Any]) -> Iterator[Option]:
    """Yield the declared options of a class, in order. Options of the client, `kafka.*`, are not declared."""
    for name, declared, only in _declared(cls).values():
        yield Option(name, declared.field, declared.show(declared.default), declared.doc, only)


def given_options(
    cls: type[Any],
    given: Mapping[str, str],
    without_effect: Mapping[str, str] | None = None,
    *,
    only_own: bool = True,
) -> dict[str, Any]:
    """Return the values of the given options by their fields. Raises OptionError for the first invalid one.

    `without_effect` has further names, in lower case, that are accepted with a note, and the reason for each.
    Unless `only_own`, other options are left to the classes that have them.
    """
    declared, found = _declared(cls), dict[str, Any]()
    for spelling, text in given.items():
        name = spelling.lower()
        if name in declared:
            found[declared[name].setting.field] = _value(*declared[name][:2], str(text))
        elif without_effect is not None and name in without_effect:
            log.warning("option has no effect", extra={"option": spelling, "reason": without_effect[name]})
        elif only_own and not name.startswith(_PASSED_ON):
            near = difflib.get_close_matches(name, declared, 1)
            hint = f"; did you mean {declared[near[0]].name!r}?" if near else ""
            raise OptionError(f"there is no option {name!r}{hint}")
    return found


def required(name: str, text: str | None, example: str) -> str:
    """Return the text of an option that must be given. Raises OptionError if it is missing or blank."""
    if text is None or not text.strip():
        raise OptionError(f"option {name!r} is missing: .option({name!r}, {example!r})")
    return text.strip()


def client_settings(
    given: Mapping[str, str], taken: Mapping[str, str | None], config: type[Any]
) -> dict[str, str]:
    """Return the client's settings among options. Raises OptionError for those that no option may set.

    Options are often shared by reads and writes, so settings of another client are left out with a note, as
    Java's clients do it.
    """
    settings = over_profile(_profile_of(given), passed_on(given))
    required("kafka.bootstrap.servers", settings.get("bootstrap.servers"), "127.0.0.1:9092")
    for name, instead in taken.items():
        if name in settings and instead is not None:
            raise OptionError(f"option 'kafka.{name}' cannot be set: {instead}")
    labels = {name for name, instead in taken.items() if instead is None}  # no group is joined
    return {
        name: text
        for name, text in settings.items()
        if name not in labels and not _is_of_another(name, config)
    }


def _is_of_another(name: str, config: type[Any]) -> bool:
    owner = _other_owner(name, config)
    if owner is not None:
        log.warning(
            "option has no effect here",
            extra={"option": f"kafka.{name}", "reason": f"it is a setting of the {owner}"},
        )
    return owner is not None


def _other_owner(name: str, config: type[Any]) -> str | None:
    field = name.replace(".", "_")
    if field in settings_of(config) or field in aliases(config):
        return None
    own = config.__name__.removesuffix("Config").lower()
    only = {"producer": PRODUCER - CONSUMER, "consumer": CONSUMER - PRODUCER}
    known = (client for client, names in only.items() if client != own and name in names)
    return next(known, None) or owner_of(field, config)


class Treatment(NamedTuple):
    """The effect of a setting of Kafka's client that a data source is given as an option `kafka.*`."""

    kind: Literal["accepted", "ignored", "refused"]
    why: str = ""


NOTES: Mapping[str, str] = {
    **dict.fromkeys(
        ("ssl.keystore.location", "ssl.truststore.location"),
        "a PEM or PKCS#12 file, on each worker; a JKS file is refused with the line that converts it",
    ),
    **dict.fromkeys(
        ("ssl.keystore.type", "ssl.truststore.type"), "`PEM` or `PKCS12`; `JKS` is refused: convert the file"
    ),
    **dict.fromkeys(("ssl.keystore.password", "ssl.truststore.password"), "the password of a PKCS#12 file"),
    **dict.fromkeys(
        ("sasl.login.class", "sasl.login.callback.handler.class", "sasl.client.callback.handler.class"),
        "only Kafka's own classes, for which there are settings: no class of Java runs here",
    ),
    **dict.fromkeys(
        ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
        "the level, where `kafka.compression.type` is this codec",
    ),
}
"""Limits of settings that are accepted."""


def treatment(name: str, config: type[Any], refused: Mapping[str, str | None]) -> Treatment:
    """Return the effect of a setting of Kafka's clients, given the settings that its data source refuses."""
    field, alias = name.replace(".", "_"), aliases(config).get(name.replace(".", "_"))
    if name in refused:
        instead = refused[name]
        return Treatment("refused", instead) if instead else Treatment("ignored", "no group is joined")
    if (owner := _other_owner(name, config)) is not None:
        return Treatment("ignored", f"it is a setting of the {owner}")
    if alias is not None and alias.field is None and alias.expand is None:
        return Treatment("ignored", alias.advice)
    if field in settings_of(config) or alias is not None or name in NOTES:
        return Treatment("accepted", NOTES.get(name, ""))
    return Treatment("refused", "there is no such setting")


REFUSED_BY_ALL = {
    "ssl.engine.factory.class": "no class of Java runs here; other options kafka.ssl.* configure TLS"
}
"""Settings that neither the source nor the sink can follow, and the reason."""


def over_profile(name: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings, and below them those of a profile with its secrets. Raises OptionError."""
    if name is None:
        return dict(settings)
    try:
        return _over(_profile(name).resolved(), settings)
    except SettingError as error:
        raise OptionError(f"option {PROFILE!r}: {error}") from None


def checkable(given: Mapping[str, str]) -> dict[str, str]:
    """Return options with the settings of their profile, and something in place of its secrets.

    For checks, which must not read secrets. Raises OptionError.
    """
    name = _profile_of(given)
    if name is None:
        return dict(given)
    settings = _over(_profile(name).without_secrets(), passed_on(given))
    others = {
        key: text
        for key, text in given.items()
        if key.lower() != PROFILE and not key.lower().startswith(_PASSED_ON)
    }
    return others | {f"{_PASSED_ON}{key}": text for key, text in settings.items()}


def _profile_of(given: Mapping[str, str]) -> str | None:
    return next((text for key, text in given.items() if key.lower() == PROFILE), None)


def _profile(name: str) -> Profile:
    try:
        return read_profile(name)
    except SettingError as error:
        raise OptionError(f"option {PROFILE!r}: {error}") from None


def _over(profile: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, str]:
    own = {key.replace(".", "_") for key in settings}
    found = {key.replace("_", "."): value for key, value in profile.items()}
    below = {key: value for key, value in found.items() if key.replace(".", "_") not in own}
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in below.items()
    } | dict(settings)


def passed_on(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options for the client, without the prefix kafka."""
    lower = {name.lower(): str(value) for name, value in given.items()}
    return {
        name.removeprefix(_PASSED_ON): text for name, text in lower.items() if name.startswith(_PASSED_ON)
    }


class _Declared(NamedTuple):
    name: str
    setting: Setting
    only: Only


def _declared(cls: type[Any]) -> dict[str, _Declared]:
    """Return the declared options of a class by their names in lower case."""
    if cls not in _known:
        fields = {field.name: field for field in dataclasses.fields(cls) if "name" in field.metadata}
        names = {field: fields[field].metadata["name"] for field in fields}
        _known[cls] = {
            names[field].lower(): _Declared(names[field], declared, fields[field].metadata["only"])
            for field, declared in define(cls, fields, null_texts=()).items()
        }
    return _known[cls]


_known: dict[type[Any], dict[str, _Declared]] = {}


def _value(name: str, declared: Setting, text: str) -> Any:
    is_word = get_origin(declared.annotation) is Literal
    try:
        value = declared.convert(text.lower() if is_word else text, f"option {name!r}")
        declared.check(value, f"option {name!r}")
    except SettingError as error:
        raise OptionError(str(error)) from None
    return value
