"""Rules of data contracts in schemas: found, and refused, because nothing here executes them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from ottla.client.errors import ClientError

_KINDS: Final = ("domainRules", "encodingRules")
_MODES: Final = {"write": {"WRITE", "WRITEREAD"}, "read": {"READ", "WRITEREAD"}}


class RulesNotSupported(ClientError):
    """A schema has rules of a data contract that must be executed here, and are not."""

    def __init__(self, schema: str, verb: Literal["read", "write"], rules: list[str]) -> None:
        self.rules = rules
        names = ", ".join(rules)
        super().__init__(
            f"schema {schema} has rules that must be executed to {verb} it, which is not supported: {names}; "
            f"use a version without them, or disable them in the registry"
        )


def check_rules(schema: str, rule_set: Any, verb: Literal["read", "write"], *, evolves: bool = False) -> None:
    """Refuse rules that a reader or a writer would execute, with `evolves` those of migrations.

    Raises RulesNotSupported.
    """
    if rules := list(_rules(rule_set, _MODES[verb], evolves)):
        raise RulesNotSupported(schema, verb, rules)


def _rules(rule_set: Any, modes: set[str], evolves: bool) -> Iterator[str]:
    if not isinstance(rule_set, dict):
        return
    for kind in (*_KINDS, *(("migrationRules",) if evolves else ())):
        for rule in rule_set.get(kind) or ():
            if not isinstance(rule, dict) or rule.get("disabled"):
                continue
            if kind == "migrationRules" or str(rule.get("mode") or "WRITEREAD").upper() in modes:
                yield str(rule.get("name") or "a rule without a name")[:100]
