"""Znodes of Kafka's AclAuthorizer: the rules of a resource pattern, and the notifications of their changes.

Names of types and operations are those of Kafka's enums (`TRANSACTIONAL_ID`); the znodes have them in
Pascal case (`TransactionalId`), the notifications as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, array, encode, text
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen

VERSION: Final = 1
LITERAL: Final = "LITERAL"
PREFIXED: Final = "PREFIXED"

RESOURCE_TYPES: Final = ("TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER")
OPERATIONS: Final = (
    "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
PERMISSION_TYPES: Final = ("DENY", "ALLOW")


def pascal_case(name: str) -> str:
    """Return the name of an enum's member as the znodes have it."""
    return "".join(word.capitalize() for word in name.split("_"))


_RESOURCE_TYPES: Final = {pascal_case(name): name for name in RESOURCE_TYPES}
_OPERATIONS: Final = {pascal_case(name): name for name in OPERATIONS}
_PERMISSION_TYPES: Final = {pascal_case(name): name for name in PERMISSION_TYPES}


def resource_type_of(step: str) -> str | None:
    """Return the type of resource that a component of a path names; None for an unknown one."""
    return _RESOURCE_TYPES.get(step)


@frozen
class AclEntry:
    """One rule: a principal may (ALLOW) or may not (DENY) perform an operation from a host."""

    principal: str
    permission_type: str
    operation: str
    host: str


@frozen
class ResourceAcls:
    """`/kafka-acl/[type]/[name]` and `/kafka-acl-extended/prefixed/[type]/[name]`: the rules of a pattern."""

    resource_type: str
    name: str
    pattern_type: str
    entries: tuple[AclEntry, ...] = ()

    @property
    def path(self) -> str:
        """Where it lives. Raises IllegalName."""
        return paths.acls(self.pattern_type == PREFIXED, pascal_case(self.resource_type), self.name)

    def encode(self) -> bytes:
        """Return the JSON, with the fields in the order of Kafka 3.9."""
        acls = [
            {
                "principal": entry.principal,
                "permissionType": pascal_case(entry.permission_type),
                "host": entry.host,
                "operation": pascal_case(entry.operation),
            }
            for entry in self.entries
        ]
        return encode({"acls": acls, "version": VERSION})

    @classmethod
    def decode(cls, resource_type: str, name: str, pattern_type: str, data: bytes) -> ResourceAcls:
        """Read the rules; a znode without data has none, as in Kafka.

        A rule with an unknown operation or permission type makes the znode malformed: which requests it is
        to stop cannot be said.
        """
        node = cls(resource_type, name, pattern_type)
        if not data:
            return node
        fields = Fields.of(node.path, data)
        fields.version(VERSION)
        return cls(resource_type, name, pattern_type, fields.required("acls", array(_entry_at(node.path))))


def _entry_at(path: str) -> Callable[[object], AclEntry]:
    def read(value: object) -> AclEntry:
        fields = Fields(path, value)
        return AclEntry(
            fields.required("principal", _principal),
            fields.required("permissionType", _named_in(_PERMISSION_TYPES)),
            fields.required("operation", _named_in(_OPERATIONS)),
            fields.required("host", text),
        )

    return read


def _principal(value: object) -> str:
    principal = text(value)
    if ":" not in principal:
        raise ValueError(f"{principal!r} is not a principal, type:name")
    return principal


def _named_in(names: dict[str, str]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if (name := names.get(text(value))) is None:
            raise ValueError(f"{value!r} is not one of {', '.join(names)}")
        return name

    return read


@frozen
class AclChange:
    """`/kafka-acl-changes/acl_changes_[n]`, and the same for prefixed patterns: a pattern's rules changed."""

    resource_type: str
    name: str
    pattern_type: str

    @property
    def path(self) -> str:
        """Where it is created; ZooKeeper adds the number."""
        return f"{paths.acl_changes(self.pattern_type == PREFIXED)}/{paths.ACL_CHANGE_PREFIX}"

    def encode(self) -> bytes:
        """Return `TYPE:name` for a literal pattern, and JSON for a prefixed one."""
        if self.pattern_type == LITERAL:
            return f"{self.resource_type}:{self.name}".encode()
        return encode(
            {
                "version": VERSION,
                "resourceType": self.resource_type,
                "name": self.name,
                "patternType": self.pattern_type,
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> AclChange:
        """Read a notification; its folder says which form it has."""
        if paths.parent_of(path) == paths.acl_changes(is_prefixed=True):
            return cls._of_json(path, data)
        try:
            resource_type, colon, name = data.decode().partition(":")
        except UnicodeDecodeError as error:
            raise MalformedZnode(path, "not UTF-8") from error
        if not colon:
            raise MalformedZnode(path, f"{resource_type!r} is not type:name")
        return cls(_checked_type(path, resource_type), name, LITERAL)

    @classmethod
    def _of_json(cls, path: str, data: bytes) -> AclChange:
        fields = Fields.of(path, data)
        fields.version(VERSION)
        if (pattern_type := fields.required("patternType", text)) != PREFIXED:
            raise MalformedZnode(path, f"pattern type {pattern_type!r} is not {PREFIXED}")
        resource_type = _checked_type(path, fields.required("resourceType", text))
        return cls(resource_type, fields.required("name", text), pattern_type)


def _checked_type(path: str, name: str) -> str:
    """Return a type that a notification names; Kafka writes and reads any case."""
    if (upper := name.upper()) in RESOURCE_TYPES:
        return upper
    raise MalformedZnode(path, f"{name!r} is not one of {', '.join(RESOURCE_TYPES)}")
