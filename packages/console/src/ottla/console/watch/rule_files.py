"""Rules of alerts, and the TOML file that they stand in. Pure but for reading it.

[[rule]]
name = "billing lags"
kind = "lag"
match = "billing*"
above = 10000
for_minutes = 5
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ottla.client.config_definition import SettingError

KINDS: Final = (
    "lag", "lag_growing", "no_members", "silent_topic", "under_replicated", "no_leader", "broker_away",
    "disk",
)  # fmt: skip


GROUP_KINDS: Final = ("lag", "lag_growing", "no_members")
"""The kinds whose subjects are groups."""


class RuleError(SettingError):
    """A file of rules cannot be read; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. It raises an alert once it has held for `for_minutes`, and clears it when it does not hold.

    `match` and `cluster` are patterns of names with `*`. `above` is a number of records for lag, a percentage
    for disks, a number of partitions for the others.
    """

    name: str
    kind: str
    match: str = "*"
    cluster: str = "*"
    above: float = 0.0
    for_minutes: float = 0.0
    silent: bool = False
    """Whether its alerts are kept and shown, and not sent."""


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file. Raises RuleError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{path} is not TOML: {error}") from None
    given = table.get("rule", [])
    if not isinstance(given, list) or set(table) - {"rule", "webhook"}:
        raise RuleError(f"{path} must consist of [[rule]] tables, and `webhook` above them")
    rules = tuple(_rule(path, number, entry) for number, entry in enumerate(given, 1))
    names = [rule.name for rule in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RuleError(f"{path}: two rules are named {twice[0]!r}")
    return rules


def read_webhook(path: Path) -> str | None:
    """Return the address to which alerts are posted; None where the file has none. Raises RuleError."""
    found = tomllib.loads(path.read_text(encoding="utf-8")).get("webhook")
    if found is not None and not (isinstance(found, str) and found.startswith(("http://", "https://"))):
        raise RuleError(f"{path}: webhook must be an address, https://…")
    return found


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "name": str, "kind": str, "match": str, "cluster": str, "above": (int, float),
    "for_minutes": (int, float),
    "silent": bool,
}  # fmt: skip


def _rule(path: Path, number: int, entry: Any) -> Rule:
    where = f"{path}, rule {number}"
    if not isinstance(entry, dict):
        raise RuleError(f"{where} must be a table, [[rule]]")
    known = [field.name for field in fields(Rule)]
    for key, value in entry.items():
        if key not in known:
            raise RuleError(f"{where} has no key {key!r}: it has {', '.join(known)}")
        if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and key != "silent"):
            raise RuleError(f"{where}: {key} = {value!r} is of the wrong type")
    if missing := [key for key in ("name", "kind") if not entry.get(key)]:
        raise RuleError(f"{where} has no {missing[0]}")
    if entry["kind"] not in KINDS:
        raise RuleError(f"{where}: {entry['kind']!r} is no kind: {', '.join(KINDS)}")
    return Rule(**entry)
