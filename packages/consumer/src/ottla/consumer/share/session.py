"""The share session with one broker: its partitions, acquired records and acknowledgements. Pure.

A broker keeps one session per member. Its requests are numbered, so that one is outstanding at a time: the
first has number 0 and names all partitions, later ones what changed, and the last one ends the session. Once
a session is lost, so are the locks of all records that were acquired in it: `generation` tells their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

OPENING = 0
LAST_EPOCH = 0x7FFFFFFF
FINAL = -1


class AcknowledgeType(IntEnum):
    """How an acquired record is acknowledged."""

    GAP = 0
    """There is no record at the offset."""
    ACCEPT = 1
    RELEASE = 2
    """It may be given to a member again."""
    REJECT = 3
    """It is given to no member any more."""
    RENEW = 4
    """The member keeps it for the whole time of a lock, from now on."""


class SharePartition(NamedTuple):
    """A partition of a topic by its id."""

    topic_id: UUID
    number: int


class Acknowledgement(NamedTuple):
    """An acknowledgement of the offsets from `first` to `last`."""

    first: int
    last: int
    type: AcknowledgeType


Acknowledgements = Mapping[SharePartition, list[Acknowledgement]]


class ShareRequest(NamedTuple):
    """The session fields, partitions and acknowledgements of one request."""

    epoch: int
    added: tuple[SharePartition, ...]
    forgotten: tuple[SharePartition, ...]
    acknowledgements: Acknowledgements

    @property
    def renews(self) -> bool:
        """Whether a lock is extended."""
        return any(
            given.type is AcknowledgeType.RENEW for some in self.acknowledgements.values() for given in some
        )


class ShareSession:
    """The session of one member with one broker."""

    def __init__(self) -> None:
        self.epoch = OPENING
        self.generation = 0
        self.in_flight = 0
        """Acquired records without a final acknowledgement, as far as this member knows."""
        self._wanted: dict[SharePartition, None] = {}
        self._known: set[SharePartition] = set()
        self._pending: dict[SharePartition, list[Acknowledgement]] = {}

    @property
    def is_open(self) -> bool:
        """Whether the broker has the session."""
        return self.epoch != OPENING

    @property
    def partitions(self) -> Iterable[SharePartition]:
        """The partitions that the session is to cover."""
        return self._wanted

    @property
    def has_pending(self) -> bool:
        """Whether acknowledgements were not sent yet."""
        return bool(self._pending)

    def cover(self, partitions: Iterable[SharePartition]) -> None:
        """Cover exactly these partitions from the next fetch on."""
        self._wanted = dict.fromkeys(partitions)

    def acquired(self, count: int) -> None:
        """Note that so many records were acquired."""
        self.in_flight += count

    def acknowledge(self, partition: SharePartition, generation: int, given: Acknowledgement) -> bool:
        """Send an acknowledgement with the next request; return false if its lock was lost with a session."""
        if generation != self.generation:
            return False
        some = self._pending.setdefault(partition, [])
        if some and some[-1].type is given.type and some[-1].last + 1 == given.first:
            some[-1] = some[-1]._replace(last=given.last)
        else:
            some.append(given)
        if given.type is not AcknowledgeType.RENEW:
            self.in_flight = max(0, self.in_flight - (given.last - given.first + 1))
        return True

    def next_fetch(self) -> ShareRequest:
        """Return what to fetch, with all acknowledgements: an opening request carries none."""
        if not self.is_open:
            self._known = set(self._wanted)
            return ShareRequest(OPENING, tuple(self._wanted), (), {})
        added = tuple(partition for partition in self._wanted if partition not in self._known)
        forgotten = tuple(partition for partition in self._known if partition not in self._wanted)
        self._known = set(self._wanted)
        return ShareRequest(self.epoch, added, forgotten, self._take_pending())

    def next_acknowledge(self) -> ShareRequest:
        """Return the acknowledgements to send without a fetch."""
        return ShareRequest(self.epoch, (), (), self._take_pending())

    def last_request(self) -> ShareRequest:
        """Return the request that ends the session; the broker releases all other records then."""
        request = ShareRequest(FINAL, (), (), self._take_pending())
        self.reset()
        return request

    def answered(self) -> None:
        """Note that the broker applied the last request."""
        self.epoch = self.epoch + 1 if self.epoch < LAST_EPOCH else 1

    def reset(self) -> Acknowledgements:
        """Open a new session with the next fetch; return the acknowledgements that were not sent.

        Needed after a failed request: it is unknown whether the broker applied it.
        """
        self.epoch = OPENING
        self.generation += 1
        self.in_flight = 0
        return self._take_pending()

    def _take_pending(self) -> Acknowledgements:
        pending, self._pending = self._pending, {}
        return {partition: sorted(some) for partition, some in pending.items()}


class AcquiredRanges:
    """The acquired offsets of one fetched partition, walked along its records in order."""

    def __init__(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._left = sorted(ranges, reverse=True)
        self.count = sum(last - first + 1 for first, last, _ in self._left)
        """Offsets that were acquired, those without a record among them."""

    @property
    def are_passed(self) -> bool:
        """Whether no acquired offset is left."""
        return not self._left

    def find(self, offset: int) -> tuple[int | None, list[Acknowledgement]]:
        """Return how often the record at an offset was delivered, None if it is not acquired; and the gaps.

        Gaps are the acquired offsets before it that were not passed yet: they have no records.
        """
        gaps = self.skip_to(offset)
        if not self._left or self._left[-1][0] != offset:
            return None, gaps
        first, last, count = self._left.pop()
        if first < last:
            self._left.append((first + 1, last, count))
        return count, gaps

    def skip_to(
        self, offset: int | None, kind: AcknowledgeType = AcknowledgeType.GAP
    ) -> list[Acknowledgement]:
        """Pass all acquired offsets below one, or all; return their acknowledgements."""
        passed: list[Acknowledgement] = []
        while self._left and (offset is None or self._left[-1][0] < offset):
            first, last, count = self._left.pop()
            if offset is not None and last >= offset:
                self._left.append((offset, last, count))
                last = offset - 1
            passed.append(Acknowledgement(first, last, kind))
        return passed
