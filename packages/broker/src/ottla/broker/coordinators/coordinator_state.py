"""The protocols of a coordinator's state and of its record codec; the rest here is generic over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.protocol.records.compression import Buffer

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


Headers: TypeAlias = Sequence[tuple[str, Buffer | None]]


class KeyValue(NamedTuple):
    """An encoded record; without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


class RecordCodec(Protocol[R]):
    """Encodes and decodes the records of one internal topic."""

    def encode(self, record: R) -> KeyValue:
        """Return the record as the log stores it."""
        ...

    def decode(self, key: bytes, value: bytes | None, headers: Headers = ()) -> R | None:
        """Return the record, or None for a kind that this coordinator skips.

        Raises MalformedMessage or ValueError for bytes that their version does not allow.
        """
        ...


class CoordinatorState(Protocol[R_contra]):
    """The state of one partition. It changes by replaying committed records, in the order of the log.

    Records of a transaction are replayed when they are appended: they are pending until it ends.

    A coordinator may also mark what it is about to write (a pending commit, a pending transition): that mark
    is its own, and it removes the mark when the write settles.
    """

    def replay(self, record: R_contra, position: int, producer_id: int | None) -> None:
        """Apply one record of the batch at offset `position`.

        `producer_id` is set when the record belongs to a transaction that has not ended yet.
        """
        ...

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the end marker of a transaction that wrote to this partition."""
        ...

    def complete_load(self) -> None:
        """Finish the load: the log has been replayed to its end."""
        ...
