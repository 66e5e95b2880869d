"""Errors of dedupe: stores that cannot be asked, records without an identity, settings that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ottla.streams.errors import StreamsError


class DedupeError(StreamsError):
    """Base class of what dedupe raises."""


@dataclass(eq=False)
class StoreUnavailable(DedupeError):
    """The store did not answer, or refused to write: nothing was marked. The same call may succeed later."""

    store: str
    """The store with its address: a file, a server, a topic."""
    reason: str

    retriable: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"the dedupe store {self.store} is unavailable: {self.reason}"

    def again(self) -> StoreUnavailable:
        """Return an equal error for another caller: an error that is raised twice mixes up its tracebacks."""
        other = StoreUnavailable(self.store, self.reason)
        other.__cause__ = self.__cause__
        return other


@dataclass(eq=False)
class MissingIdentity(DedupeError):
    """A record has no identity, and `missing="fail"` is set."""

    topic: str
    partition: int
    offset: int
    identity: str
    """The source of the identity, such as "header 'message-id'"."""

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} offset {self.offset} has no {self.identity}: "
            "stamp it in the producer, or set missing='handle' to handle such records each time"
        )


@dataclass(eq=False)
class IdentityFailed(DedupeError):
    """The function of an identity raised an error, or returned something that is no identity."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}: no identity can be read: {self.reason}"


class DedupeMisconfigured(DedupeError, ValueError):
    """Settings that contradict each other; the message says which to change."""
