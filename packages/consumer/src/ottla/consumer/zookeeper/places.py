"""How far each owned partition was read: what was given out, what is finished, what is committed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.protocol.topics import TopicPartition

Offsets = dict[TopicPartition, int]

UNKNOWN = -1


@dataclass(slots=True)
class Place:
    """`given`: the offset of the next record to give out. `finished`: everything below was done with.

    `stored` is what the offset storage holds as far as we know, None for nothing.
    """

    given: int
    finished: int
    stored: int | None
    owned: bool = True


class Places:
    """The places of the partitions that were ever owned."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}

    def begin(self, partition: TopicPartition, offset: int, stored: int | None) -> int:
        """Own a partition that is to be read from `offset`; return where to begin.

        UNKNOWN leaves it to the reader, who goes by what is configured. Who gave a partition up, or lost it
        with its session, and gets it back while nobody else committed, goes on behind what it gave out: its
        application has those records.
        """
        known = self._places.get(partition)
        if known is not None and known.stored == stored:
            known.owned = True
            return known.given
        self._places[partition] = Place(offset, offset, stored)
        return offset

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Own some partitions no more."""
        for each in partitions:
            if each in self._places:
                self._places[each].owned = False

    def gave(self, partition: TopicPartition, offset: int) -> None:
        """Count the record at an offset as given out, and all before it as finished."""
        place = self._places.get(partition)
        # The same record again says nothing new: it may have been committed on demand meanwhile.
        if place is not None and place.owned and place.given != offset + 1:
            place.given = offset + 1
            place.finished = offset

    def finished(self, partition: TopicPartition, offset: int) -> None:
        """Count the record at an offset as finished, also after the partition was given up."""
        place = self._places.get(partition)
        if place is not None and place.finished <= offset < place.given:
            place.finished = offset + 1

    def uncommitted(self, *, given: bool = False) -> Offsets:
        """Return what is finished and not committed yet; with `given` all that was given out."""
        ends = {
            each: place.given if given else place.finished
            for each, place in self._places.items()
            if place.owned
        }
        return {each: end for each, end in ends.items() if end not in (UNKNOWN, self._places[each].stored)}

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take note of what the storage holds now."""
        for each, offset in offsets.items():
            place = self._places.get(each)
            if place is not None:
                place.stored = offset
                place.finished = max(place.finished, offset)
