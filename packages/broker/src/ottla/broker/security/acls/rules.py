"""The rules of all patterns, in memory: which of them are about a resource, and what they say.

A lookup takes as many steps as there are different lengths of prefixes, however many patterns there are, and
one look for each principal, operation and host that a rule may name, however many rules a pattern has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from ottla.broker.security.acls.bindings import (
    ANY_PRINCIPAL,
    WILDCARD,
    Entry,
    Pattern,
    PatternType,
    PermissionType,
)
from ottla.broker.security.authorizer import Operation, Resource, ResourceType, plain_address
from ottla.protocol.acls import IMPLIED_BY

Operations = tuple[Operation, ...]
Principals = tuple[str, ...]

ITSELF: Final[Mapping[Operation, Operations]] = {
    operation: (operation, Operation.ALL) for operation in Operation
}
"""The operations of rules that are about an operation."""
ALLOWED_BY: Final[Mapping[Operation, Operations]] = {
    operation: (*ITSELF[operation], *sorted(IMPLIED_BY.get(operation, ()))) for operation in Operation
}
"""The operations of rules that allow an operation."""


class Rules:
    """The rules of one pattern."""

    __slots__ = ("_said", "entries")

    def __init__(self, entries: frozenset[Entry]) -> None:
        self.entries = entries
        self._said: dict[tuple[PermissionType, str], set[tuple[Operation, str]]] = {}
        for entry in entries:
            said = self._said.setdefault((entry.permission, entry.principal), set())
            said.add((entry.operation, plain_address(entry.host)))

    def say(
        self, permission: PermissionType, principals: Principals, operations: Operations, host: str
    ) -> bool:
        """Return whether a rule denies, or allows, one of these operations."""
        for principal in principals:
            said = self._said.get((permission, principal))
            if said is not None and any(
                (operation, WILDCARD) in said or (operation, host) in said for operation in operations
            ):
                return True
        return False


class UnreadableRules(Rules):
    """Rules that could not be read: they stop everybody, for they may be about anybody."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(frozenset())

    def say(
        self, permission: PermissionType, principals: Principals, operations: Operations, host: str
    ) -> bool:
        """Deny everything."""
        return permission is PermissionType.DENY


class RulesByPattern:
    """The rules of all patterns."""

    def __init__(self) -> None:
        self._rules: dict[Pattern, Rules] = {}
        self._lengths: dict[ResourceType, Counter[int]] = {kind: Counter() for kind in ResourceType}
        """The lengths of the prefixes of each type, with their numbers."""
        self._names: dict[tuple[ResourceType, PatternType, Entry], set[str]] = {}
        """The names of the patterns with a rule."""
        self._unreadable: dict[tuple[ResourceType, PatternType], set[str]] = {}
        self.count = 0
        """The number of rules."""

    def __len__(self) -> int:
        return len(self._rules)

    def patterns(self) -> list[Pattern]:
        """Return the patterns that have rules."""
        return list(self._rules)

    def entries(self, pattern: Pattern) -> frozenset[Entry]:
        """Return the rules of a pattern; none where they could not be read."""
        rules = self._rules.get(pattern)
        return frozenset() if rules is None else rules.entries

    def replace(self, pattern: Pattern, entries: frozenset[Entry] | None) -> bool:
        """Replace the rules of a pattern, by None where they cannot be read; return whether they changed."""
        before = self._rules.get(pattern)
        if entries is None:
            if isinstance(before, UnreadableRules):
                return False
            self._put(pattern, before, UnreadableRules())
            return True
        if not isinstance(before, UnreadableRules) and self.entries(pattern) == entries:
            return False
        self._put(pattern, before, Rules(entries) if entries else None)
        return True

    def _put(self, pattern: Pattern, before: Rules | None, after: Rules | None) -> None:
        if before is not None:
            self._take_off(pattern, before)
        if after is None:
            return
        self._rules[pattern] = after
        self.count += len(after.entries)
        if pattern.pattern_type is PatternType.PREFIXED:
            self._lengths[pattern.type][len(pattern.name)] += 1
        for names in self._indexed(pattern, after):
            names.add(pattern.name)

    def _take_off(self, pattern: Pattern, rules: Rules) -> None:
        del self._rules[pattern]
        self.count -= len(rules.entries)
        if pattern.pattern_type is PatternType.PREFIXED:
            lengths = self._lengths[pattern.type]
            lengths[len(pattern.name)] -= 1
            if not lengths[len(pattern.name)]:
                del lengths[len(pattern.name)]
        for names in self._indexed(pattern, rules):
            names.discard(pattern.name)
        for entry in rules.entries:
            key = _key(pattern, entry)
            if not self._names.get(key, True):
                del self._names[key]

    def _indexed(self, pattern: Pattern, rules: Rules) -> Iterator[set[str]]:
        if isinstance(rules, UnreadableRules):
            yield self._unreadable.setdefault((pattern.type, pattern.pattern_type), set())
        for entry in rules.entries:
            yield self._names.setdefault(_key(pattern, entry), set())

    # ---- looking up

    def about(self, resource: Resource) -> list[Rules]:
        """Return the rules of every pattern that a resource matches."""
        kind, name = resource
        found = [
            self._rules.get(Pattern(kind, PatternType.LITERAL, WILDCARD)),
            self._rules.get(Pattern(kind, PatternType.LITERAL, name)) if name != WILDCARD else None,
        ]
        found += [
            self._rules.get(Pattern(kind, PatternType.PREFIXED, name[:length]))
            for length in self._lengths[kind]
            if length <= len(name)
        ]
        return [rules for rules in found if rules is not None]

    def allows_any(
        self, kind: ResourceType, principal: str, operation: Operation, host: str, *, by_default: bool
    ) -> bool:
        """Return whether an operation is allowed on at least one resource of a type.

        As in Kafka, implied operations do not count, and neither does a rule for a name that is denied.
        `by_default` is whether resources without rules are allowed.
        """
        asked = (kind, principals_of(principal), operation, host)
        denied = self._names_of(PatternType.LITERAL, PermissionType.DENY, *asked)
        if any(WILDCARD in names for names in denied):
            return False
        if by_default:
            return True
        denied_prefixes = self._names_of(PatternType.PREFIXED, PermissionType.DENY, *asked)

        lengths = self._lengths[kind]

        def is_free(name: str) -> bool:
            return not any(name[:length] in names for names in denied_prefixes for length in lengths)

        prefixes = self._names_of(PatternType.PREFIXED, PermissionType.ALLOW, *asked)
        if any(is_free(prefix) for names in prefixes for prefix in names):
            return True
        literals = self._names_of(PatternType.LITERAL, PermissionType.ALLOW, *asked)
        return any(
            name == WILDCARD or (is_free(name) and not any(name in others for others in denied))
            for names in literals
            for name in names
        )

    def _names_of(
        self, pattern_type: PatternType, permission: PermissionType,
        kind: ResourceType, principals: Principals, operation: Operation, host: str,
    ) -> list[set[str]]:  # fmt: skip
        """Return the names of patterns with a rule about this very operation, or all, in sets."""
        found = [
            self._names.get((kind, pattern_type, Entry(principal, rule_host, rule_operation, permission)))
            for principal in principals
            for rule_host in {host, WILDCARD}
            for rule_operation in ITSELF[operation]
        ]
        if permission is PermissionType.DENY:
            found.append(self._unreadable.get((kind, pattern_type)))
        return [names for names in found if names]


def _key(pattern: Pattern, entry: Entry) -> tuple[ResourceType, PatternType, Entry]:
    return pattern.type, pattern.pattern_type, entry._replace(host=plain_address(entry.host))


def principals_of(principal: str) -> Principals:
    """Return the principals of rules that are about one."""
    return (principal, ANY_PRINCIPAL)
