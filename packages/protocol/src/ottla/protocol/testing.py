"""Support for tests of messages: every message, and arbitrary values of each.

Needs hypothesis, which only tests install.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from ottla.protocol import stored_messages
from ottla.protocol.api import ApiKey, request_class, response_class
from ottla.protocol.schema import Field, Message, Struct
from ottla.protocol.stored_groups import GROUP_RECORDS, SHARE_STATE_RECORDS

S = TypeVar("S", bound=Struct)
Override = Callable[[Field], "st.SearchStrategy[Any] | None"]
"""Chooses the values of a field in place of the usual ones, or None to leave it."""

STORED_MESSAGES: Final[tuple[type[Message], ...]] = (
    stored_messages.OffsetCommitKey,
    stored_messages.OffsetCommitValue,
    stored_messages.GroupMetadataKey,
    stored_messages.GroupMetadataValue,
    stored_messages.TransactionLogKey,
    stored_messages.TransactionLogValue,
    stored_messages.ConsumerProtocolSubscription,
    stored_messages.ConsumerProtocolAssignment,
    *(cls for kind in (*GROUP_RECORDS.values(), *SHARE_STATE_RECORDS.values()) for cls in kind),
)

_TEXT: Final = st.one_of(st.text(max_size=6), st.sampled_from(["é" * 64, "x" * 130]))
_BYTES: Final = st.one_of(st.binary(max_size=6), st.just(b"\x00" * 200))
_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "uuid": st.uuids(allow_nil=True),
    "string": _TEXT,
    "blob": _BYTES,
    "records": _BYTES,
}


def api_messages() -> Iterator[type[Message]]:
    """Yield every request and response."""
    for key in ApiKey:
        yield request_class(key)
        yield response_class(key)


def message_versions() -> list[tuple[type[Message], int]]:
    """Return every message in every version."""
    return [
        (cls, version)
        for cls in (*api_messages(), *STORED_MESSAGES)
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
    ]


def version_id(value: object) -> str:
    """Name a parameter for pytest: `FetchRequest` or `v12`."""
    return value.__name__ if isinstance(value, type) else f"v{value}"


def instances(cls: type[S], version: int, override: Override | None = None) -> st.SearchStrategy[S]:
    """Return arbitrary values of a message or struct; fields that `version` lacks keep their default."""
    fields = {field.name: _values(field, version, override) for field in cls.FIELDS if field.is_in(version)}
    return st.builds(cls, **fields)


def _values(field: Field, version: int, override: Override | None) -> st.SearchStrategy[Any]:
    chosen = override(field) if override is not None else None
    if chosen is None:
        chosen = _usual_values(field, version, override)
    return st.none() | chosen if field.is_nullable(version) else chosen


def _usual_values(field: Field, version: int, override: Override | None) -> st.SearchStrategy[Any]:
    if field.kind == "struct":
        return instances(field.element, version, override)
    if field.kind != "array":
        return _VALUES[field.kind]
    element = field.element
    inner = instances(element, version, override) if isinstance(element, type) else _VALUES[element.kind]
    return st.lists(inner, max_size=3)
