"""The ACL matrix: each probe for every operation, resource, pattern, allow and deny, by a principal each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from ottla.protocol.acls import OPERATIONS, WILDCARD, Acl, Operation, PatternType, PermissionType, decide
from ottla.protocol.acls import ResourceType as Type
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message
from peers.acl_probes import HIDDEN, PROBES, Probe
from peers.acl_probes_of_groups import OF_NEWER_GROUPS

EVERY_PROBE: Final = (*PROBES, *OF_NEWER_GROUPS)
HOST: Final = "127.0.0.1"
NOTHING_SHOWN: Final = -(2**31)
"""The authorized operations on what is not shown."""

# ---- the matrix


@dataclass(frozen=True)
class Row:
    """One probe by one principal, with the rules about it."""

    probe: Probe
    title: str
    rules: tuple[Acl, ...]
    number: int

    @property
    def user(self) -> str:
        """The user's name, which is in no other row."""
        return f"u{self.number}"

    def allows(self, operation: Operation, kind: Type) -> bool:
        """Return whether the rules allow an operation on the probe's resource of a type."""
        name = self.probe.name_of(kind)
        return decide(self.rules, f"User:{self.user}", HOST, operation, kind, name).is_allowed

    @property
    def is_of_kafka_4(self) -> bool:
        """Whether Apache Kafka 3.9 does not have the request, or one of the rules."""
        of_settings = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
        return self.probe.is_of_kafka_4 or any(
            rule.operation is Operation.TWO_PHASE_COMMIT
            or (rule.resource_type is Type.GROUP and rule.operation in of_settings)
            for rule in self.rules
        )

    @property
    def expected_code(self) -> int:
        """The error code by the table: that of the first need without a permission."""
        for wanted in self.probe.needs:
            if not any(self.allows(*permission) for permission in wanted.permissions):
                return wanted.refused
        return self.probe.served

    @property
    def expected_operations(self) -> int | None:
        """The authorized operations in the response by the table; None where it lists none."""
        kind = self.probe.operations_on
        if kind is None or (kind is not Type.CLUSTER and self.expected_code != ErrorCode.NONE):
            return None
        if kind is Type.CLUSTER and not self.allows(Operation.DESCRIBE, kind):
            return 0
        return sum(1 << operation for operation in OPERATIONS[kind] if self.allows(operation, kind))


def rows(probes: Sequence[Probe] = EVERY_PROBE) -> Iterator[Row]:
    """Make the matrix: without rules, with all, and with one rule for each operation, pattern and permission.

    A rule that allows stands alone for its type of resource; one that denies beside one that allows all.
    The other types are allowed, but for those that would do in place of the row's.
    """
    number = 0
    for probe in probes:
        for title, rules in _cases(probe, number):
            yield Row(probe, f"{probe.title}: {title}", rules(f"User:u{number}"), number)
            number += 1


Rules = Callable[[str], tuple[Acl, ...]]


def _cases(probe: Probe, number: int) -> Iterator[tuple[str, Rules]]:
    yield "no rule", lambda principal: ()
    if not probe.types:
        return
    yield "all allowed", lambda principal: tuple(_all_on(probe, kind, principal) for kind in probe.types)
    for kind in probe.types:
        for operation in (*OPERATIONS[kind], Operation.ALL):
            for pattern in _patterns(probe, kind):
                for permission in (PermissionType.ALLOW, PermissionType.DENY):
                    title = f"{permission.name} {operation.name} {kind.name} {' '.join(map(str, pattern))}"
                    yield title, _rules(probe, kind, operation, pattern, permission)


def _patterns(probe: Probe, kind: Type) -> list[tuple[PatternType, str]]:
    name = probe.name_of(kind)
    if kind is Type.CLUSTER:  # which has no other name
        return [(PatternType.LITERAL, name), (PatternType.PREFIXED, name)]
    return [(PatternType.LITERAL, name), (PatternType.PREFIXED, name[:-1]), (PatternType.LITERAL, WILDCARD)]


def _rules(
    probe: Probe,
    kind: Type,
    operation: Operation,
    pattern: tuple[PatternType, str],
    permission: PermissionType,
) -> Rules:
    in_its_place = {
        other for wanted in probe.needs for _, other in wanted.permissions
        if kind in {each for _, each in wanted.permissions}
    }  # fmt: skip
    others = [other for other in probe.types if other is not kind and other not in in_its_place]

    def rules(principal: str) -> tuple[Acl, ...]:
        rule = Acl(kind, pattern[1], pattern[0], principal, HOST, operation, permission)
        allowed = [_all_on(probe, other, principal) for other in others]
        if permission is PermissionType.DENY:
            allowed.append(_all_on(probe, kind, principal))
        return (rule, *allowed)

    return rules


def _all_on(probe: Probe, kind: Type, principal: str) -> Acl:
    return Acl(
        kind,
        probe.name_of(kind),
        PatternType.LITERAL,
        principal,
        WILDCARD,
        Operation.ALL,
        PermissionType.ALLOW,
    )


# ---- what a client sees


class Seen(NamedTuple):
    """The codes and names of one response, in a form that two brokers can be compared by."""

    code: int
    operations: int | None
    response: tuple[Any, ...]


_NAMES: Final = frozenset(
    {
        "name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name", "feature",
        "user", "partition_index", "partition", "index", "partition_id", "is_internal",
    }
)  # fmt: skip
_NAMED_BY: Final[Mapping[Type, Collection[str]]] = {
    Type.TOPIC: {"name", "topic", "topic_name"},
    Type.GROUP: {"group_id"},
    Type.TRANSACTIONAL_ID: {"transactional_id"},
}
"""The fields that show a resource of each type in a list."""
_OPERATIONS: Final = frozenset(
    {"topic_authorized_operations", "cluster_authorized_operations", "authorized_operations"}
)
UNAUTHORIZED: Final = "Unauthorized to CREATE"
"""Stands in the status of a streams group without a topic that its member may not create."""
_LEFT_OUT: Final = frozenset(
    {"brokers", "configs", "record_errors", "aborted_transactions", "nodes", "node_endpoints"}
)
"""Lists of what no permission decides about, or of what differs between brokers."""


def seen(row: Row, response: Message | None) -> Seen:
    """Read a response; None stands for a closed connection."""
    if response is None:
        return Seen(HIDDEN, None, ("closed",))
    code = next((code for code in _codes(response) if code), 0)
    hidden = [wanted.permissions[-1][1] for wanted in row.probe.needs if wanted.refused == HIDDEN]
    has_status = hasattr(response, "status")
    if (
        not code
        and not has_status
        and any(row.probe.name not in _named(response, _NAMED_BY.get(kind, ())) for kind in hidden)
    ):
        code = HIDDEN
    if any(UNAUTHORIZED in status.status_detail for status in getattr(response, "status", None) or ()):
        code = HIDDEN
    if code == ErrorCode.INVALID_UPDATE_VERSION:  # of Kafka 4, for what 3.9 calls an invalid request
        code = ErrorCode.INVALID_REQUEST
    operations = [value for value in _operations(response) if value != NOTHING_SHOWN]
    return Seen(code, operations[0] if operations else None, _structure(response))


def _fields(struct: Any) -> Iterator[tuple[str, Any]]:
    for entry in struct.FIELDS:
        yield entry.name, getattr(struct, entry.name)


def _nested(struct: Any) -> Iterator[Any]:
    for name, value in _fields(struct):
        if name not in _LEFT_OUT and isinstance(value, list):
            yield from (element for element in value if hasattr(element, "FIELDS"))


def _codes(struct: Any) -> Iterator[int]:
    for name, value in _fields(struct):
        if name.endswith("error_code") and name != "topic_config_error_code":
            yield value
    for element in _nested(struct):
        yield from _codes(element)


def _operations(struct: Any) -> Iterator[int]:
    yield from (value for name, value in _fields(struct) if name in _OPERATIONS)
    for element in _nested(struct):
        yield from _operations(element)


def _named(struct: Any, by: Collection[str]) -> set[str]:
    own = {value for name, value in _fields(struct) if name in by}
    return own.union(*(_named(element, by) for element in _nested(struct)))


def _structure(struct: Any) -> tuple[Any, ...]:
    shown: list[Any] = []
    for name, value in _fields(struct):
        if name in _NAMES or name in _OPERATIONS or name.endswith("error_code"):
            shown.append((name, value))
        elif name == "topic_id":
            shown.append((name, value != UUID(int=0)))
        elif name == "configs":
            shown.append((name, bool(value)))
        elif name not in _LEFT_OUT and isinstance(value, list):
            elements = [_structure(element) for element in value if hasattr(element, "FIELDS")]
            if elements:  # an empty list shows as much as none
                shown.append((name, tuple(sorted(elements, key=repr))))
    return tuple(shown)


EXCEPTIONS: Final[Mapping[str, str]] = {
    "ShareFetch": "Kafka also lists partitions of which nothing was acquired.",
    "DescribeUserScramCredentials": (
        "Refused, Kafka also answers with one result without a user's name, which its error responses "
        "always have. Ottla has the error code of the response alone: nothing was looked up."
    ),
    "UpdateFeatures": (
        "Kafka 3.9 with ZooKeeper lists each feature with its error. Ottla has features, and answers as "
        "Kafka 4.4: with one error for all of them, and no list."
    ),
}
"""Probes of which only the codes are compared, and why."""


def differences(one: Mapping[Row, Seen], other: Mapping[Row, Seen]) -> list[str]:
    """Return the rows in which two brokers show different codes, names or authorized operations."""
    found = []
    for row, first in one.items():
        second = other[row]
        if row.probe.title in EXCEPTIONS:
            first, second = first._replace(response=()), second._replace(response=())
        if first != second:
            found.append(f"{row.title}: {first} and {second}")
    return found
