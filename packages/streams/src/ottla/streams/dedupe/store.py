"""The protocol of stores, which remember the identities of handled records."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Collection, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

from ottla.streams.dedupe.window import WindowLimits


class Scope(NamedTuple):
    """The records among which an identity is unique: of a partition, or of a topic (`partition` None)."""

    topic: str
    partition: int | None = None

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"


class Claim(enum.Enum):
    """The answer of a store to a member that wants to handle a record."""

    NEW = enum.auto()
    """The identity is new, and belongs to this member until it is marked, released or the lease ends."""
    DONE = enum.auto()
    """The identity was marked within the window."""
    TAKEN = enum.auto()
    """Another member handles a record with this identity now."""


class DedupeStore(Protocol):
    """Remembers identities within a window. All methods may raise StoreUnavailable.

    A store is an async context manager, opened and closed by its guard. Calls may be made concurrently. A
    mark is durable, as far as the store is, when `mark` returns.
    """

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""

    @property
    def claims(self) -> bool:
        """Whether claims keep members apart that handle records of one topic scope."""

    @property
    def has_topic_scope(self) -> bool:
        """Whether it can be asked for an identity of a topic without its partition."""

    @property
    def is_remote(self) -> bool:
        """Whether `seen` costs so much that a prefilter pays."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def assign(self, scope: Scope) -> None:
        """Make ready for records of a newly assigned partition: what other members marked must be known."""

    def revoke(self, scope: Scope) -> None:
        """Free the memory of a partition that other members mark from now on; marks under way are written."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities, all or none, and end the claims on them."""

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Mark an identity as being handled by `owner`, unless it is marked or claimed by another one."""

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """End a claim of `owner` without a mark."""

    def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""


@runtime_checkable
class ImmediateStore(Protocol):
    """A store that writes marks without waiting: they cost no task."""

    def mark_now(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Do what `mark` does."""
