"""ACL bindings and the filters of DescribeAcls and DeleteAcls, with Kafka's names and codes."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.broker.security.principal import Principal
from ottla.protocol.acls import ANY_PRINCIPAL as ANY_PRINCIPAL
from ottla.protocol.acls import WILDCARD as WILDCARD
from ottla.protocol.acls import PatternType as PatternType
from ottla.protocol.acls import PermissionType as PermissionType

UNKNOWN: Final = 0
ANY: Final = 1
"""Codes of all enums. No client sends the first; ANY stands in filters only, as MATCH of `PatternType`."""


class Pattern(NamedTuple):
    """The resources that rules are about."""

    type: ResourceType
    pattern_type: PatternType
    name: str


class Entry(NamedTuple):
    """One rule about the resources of a pattern."""

    principal: str
    host: str
    operation: Operation
    permission: PermissionType


class Binding(NamedTuple):
    """A rule with its pattern."""

    pattern: Pattern
    entry: Entry


class PatternFilter(NamedTuple):
    """Selects patterns; None stands for any."""

    type: ResourceType | None
    pattern_type: PatternType
    name: str | None

    def matches(self, pattern: Pattern) -> bool:
        """Return whether a pattern is selected.

        MATCH selects the patterns that are about the resource of this name, ANY those with this very name.
        """
        if self.type not in (None, pattern.type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None or self.name == pattern.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name == WILDCARD
        return self.name.startswith(pattern.name)

    @property
    def named(self) -> tuple[Pattern, ...]:
        """The patterns that are selected, where the filter names them; empty for one that may select more."""
        if self.type is None or self.name is None or self.pattern_type is PatternType.MATCH:
            return ()
        if self.pattern_type is not PatternType.ANY:
            return (Pattern(self.type, self.pattern_type, self.name),)
        both = (PatternType.LITERAL, PatternType.PREFIXED)
        return tuple(Pattern(self.type, pattern_type, self.name) for pattern_type in both)


class EntryFilter(NamedTuple):
    """Selects rules; None stands for any. Names are compared as they are, `*` selects only `*`."""

    principal: str | None
    host: str | None
    operation: Operation | None
    permission: PermissionType | None

    def matches(self, entry: Entry) -> bool:
        """Return whether a rule is selected."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (None, entry.operation)
            and self.permission in (None, entry.permission)
        )


class BindingFilter(NamedTuple):
    """Selects bindings."""

    pattern: PatternFilter
    entry: EntryFilter


def binding_filter(
    resource_type: int, pattern_type: int, name: str | None,
    principal: str | None, host: str | None, operation: int, permission: int,
) -> BindingFilter | None:  # fmt: skip
    """Read a filter with Kafka's codes; None for one with a code that is not known: it selects nothing."""
    if UNKNOWN in (resource_type, pattern_type, operation, permission):
        return None
    try:
        return BindingFilter(
            PatternFilter(
                None if resource_type == ANY else ResourceType(resource_type), PatternType(pattern_type), name
            ),
            EntryFilter(
                principal,
                host,
                None if operation == ANY else Operation(operation),
                None if permission == ANY else PermissionType(permission),
            ),
        )
    except ValueError:
        return None


def parse_principal(text: str) -> Principal:
    """Read `type:name`; the name may have colons. Raises ValueError."""
    principal_type, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not a principal, type:name")
    return Principal(principal_type, name)


def parse_super_users(text: str) -> frozenset[str]:
    """Read principals separated by semicolons, as distinguished names have commas. Raises ValueError."""
    names = text.split(";")
    while names and not names[-1]:
        names.pop()  # Kafka ignores semicolons at the end
    return frozenset(str(parse_principal(name.strip())) for name in names)
