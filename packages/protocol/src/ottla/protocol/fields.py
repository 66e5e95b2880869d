"""The fields of structs, and the class of a class that has fields.

`ottla.protocol.schema` declares messages with them, and `ottla.protocol.codecs` compiles what was declared.
"""

from __future__ import annotations

from typing import Any, Final

LATEST: Final = 32767
"""The upper bound of a version range that is open."""


class Field:
    """One field of a struct: its wire kind and the versions that carry it."""

    __slots__ = (
        "default",
        "element",
        "ignorable",
        "kind",
        "name",
        "nullable_from",
        "since",
        "tag",
        "tagged_from",
        "until",
    )

    def __init__(
        self,
        kind: str,
        default: Any,
        *,
        since: int = 0,
        until: int = LATEST,
        nullable_from: int = LATEST,
        tag: int | None = None,
        tagged_from: int | None = None,
        ignorable: bool = False,
        element: Any = None,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.default = default
        self.since = since
        self.until = until
        self.nullable_from = nullable_from
        self.tag = tag
        self.tagged_from = since if tagged_from is None else tagged_from
        self.ignorable = ignorable
        self.element = element

    def is_in(self, version: int) -> bool:
        """Return whether `version` of the message carries the field."""
        return self.since <= version <= self.until

    def is_tagged(self, version: int) -> bool:
        """Return whether the field is a tagged one in `version`."""
        return self.tag is not None and version >= self.tagged_from

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be None in `version`."""
        return version >= self.nullable_from

    def new_default(self) -> Any:
        """Return the default; a fresh one where it is mutable."""
        if self.kind == "array":
            return None if self.default is None else []
        if self.kind == "struct":
            return None if self.default is None else self.element()
        return self.default

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name} since={self.since} until={self.until}>"


class StructType(type):
    """Moves the fields out of the class body into `FIELDS`, and gives each a slot."""

    FIELDS: tuple[Field, ...]
    MIN_VERSION: int
    """Messages only, as the next two."""
    MAX_VERSION: int
    FLEXIBLE_FROM: int

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> StructType:
        """Build the class; nothing is compiled yet."""
        fields = tuple([value for value in namespace.values() if isinstance(value, Field)])
        for name_of_field in [key for key, value in namespace.items() if isinstance(value, Field)]:
            namespace.pop(name_of_field).name = name_of_field
        namespace["FIELDS"] = fields
        namespace["__slots__"] = tuple([field.name for field in fields])
        return super().__new__(cls, name, bases, namespace)
