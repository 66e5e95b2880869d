"""Settings of brokers side by side: the value of each key, and where brokers differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.admin import ConfigEntry

OWN_KEYS: Final = frozenset(
    {
        "broker.id",
        "node.id",
        "advertised.listeners",
        "listeners",
        "log.dir",
        "log.dirs",
        "broker.rack",
        "metrics.port",
    }
)
"""Keys that differ between the brokers of a sound cluster."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A key, its value by broker (None where the broker has no such key), and where the values come from."""

    name: str
    values: tuple[str | None, ...]
    sources: tuple[str, ...]
    is_sensitive: bool
    documentation: str | None = None
    is_fixed: bool = True
    """Whether it cannot be changed while brokers run."""

    @property
    def differs(self) -> bool:
        """Whether brokers have different values of a key that should be one for all."""
        return self.name not in OWN_KEYS and not self.is_sensitive and len(set(self.values)) > 1

    @property
    def is_default(self) -> bool:
        """Whether all brokers have the default."""
        return set(self.sources) <= {"default", ""}


def setting_rows(brokers: Mapping[int, Sequence[ConfigEntry]]) -> list[SettingRow]:
    """Return a row for each key of the brokers: those that differ first, then those that were set."""
    by_broker = [{entry.name: entry for entry in entries} for _, entries in sorted(brokers.items())]
    names = sorted({name for entries in by_broker for name in entries})
    rows = [_row(name, [entries.get(name) for entries in by_broker]) for name in names]
    return sorted(rows, key=lambda row: (not row.differs, row.is_default))


def _row(name: str, entries: Sequence[ConfigEntry | None]) -> SettingRow:
    known = [entry for entry in entries if entry is not None]
    return SettingRow(
        name,
        tuple(None if entry is None else entry.value for entry in entries),
        tuple("" if entry is None else entry.source for entry in entries),
        any(entry.sensitive for entry in known),
        next((entry.documentation for entry in known if entry.documentation), None),
        any(entry.read_only for entry in known),
    )
