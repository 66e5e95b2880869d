"""Options as Spark passes them: text, under names without regard to case."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.pipeline.errors import OptionError

_FLAGS = {"true": True, "false": False}
_UNITS_MS = {
    "us": 0.001, "ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_PASSED_ON = "kafka."


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a data source, as the reference shows it."""

    name: str
    default: str | None
    """The default in the form of a value that could be given; None if there is none."""
    meaning: str
    only: str = ""
    """Where the option has an effect: `batch`, `stream`, or both if empty."""


class Options:
    """Parses options and reports errors under the documented names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the text of an option."""
        return self._given.get(name.lower(), default)

    def required(self, name: str, example: str) -> str:
        """Return a required option. Raises OptionError if it is missing."""
        found = self.text(name)
        if found is None or not found.strip():
            raise OptionError(f"option {name!r} is missing: .option({name!r}, {example!r})")
        return found.strip()

    def count(self, name: str, default: int | None = None, *, at_least: int = 1) -> int | None:
        """Return an integer. Raises OptionError for other values, and for one below the minimum."""
        found = self.text(name)
        if found is None:
            return default
        try:
            value = int(found)
        except ValueError:
            raise OptionError(f"option {name!r} must be a whole number, not {found!r}") from None
        if value < at_least:
            raise OptionError(f"option {name!r} must be at least {at_least}, not {value}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean. Raises OptionError for other values."""
        found = self.text(name)
        if found is None:
            return default
        if found.strip().lower() not in _FLAGS:
            raise OptionError(f"option {name!r} must be true or false, not {found!r}")
        return _FLAGS[found.strip().lower()]

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        """Return one of several words, in lower case. Raises OptionError for other values."""
        found = (self.text(name) or default).strip().lower()
        if found not in allowed:
            raise OptionError(f"option {name!r} must be one of {', '.join(allowed)}, not {found!r}")
        return found

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration such as 15m, 30s or 200ms, in milliseconds, which is also the default unit."""
        found = self.text(name, default) or default
        match = _DURATION.fullmatch(found)
        if match is None or match[2].lower() not in _UNITS_MS:
            raise OptionError(f"option {name!r} must be a time such as 15m, 30s or 200ms, not {found!r}")
        return int(int(match[1]) * _UNITS_MS[match[2].lower()])

    def passed_on(self) -> dict[str, str]:
        """Return the options for the client, without the prefix kafka."""
        return {
            name.removeprefix(_PASSED_ON): value
            for name, value in self._given.items()
            if name.startswith(_PASSED_ON)
        }

    def refuse_unknown(self, known: Iterable[Option]) -> None:
        """Raise OptionError for an unknown option, with the most similar known name."""
        names = {each.name.lower(): each.name for each in known}
        for name in self._given:
            if name in names or name.startswith(_PASSED_ON):
                continue
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {names[near[0]]!r}?" if near else ""
            raise OptionError(f"there is no option {name!r}{hint}")


def client_settings(options: Options, taken: Mapping[str, str | None]) -> dict[str, str]:
    """Return Kafka's settings among the options. Raises OptionError for those that no option may set."""
    options.required("kafka.bootstrap.servers", "127.0.0.1:9092")
    settings = options.passed_on()
    for name, instead in taken.items():
        if name in settings and instead is not None:
            raise OptionError(f"option 'kafka.{name}' cannot be set: {instead}")
    settings.pop("group.id", None)  # a label only: nothing is committed and no group is joined
    return settings
