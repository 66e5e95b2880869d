"""The leader epochs of one log with their start offsets (KIP-101)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from ottla.protocol.storage.checkpoints import EpochStart

UNDEFINED = -1


def _nothing() -> None:
    pass


class LeaderEpochs:
    """Entries of (epoch, start offset), both strictly rising. `changed` is called after every change."""

    __slots__ = ("_changed", "_entries")

    def __init__(self, entries: Iterable[EpochStart] = (), changed: Callable[[], None] = _nothing) -> None:
        self._changed: Callable[[], None] = _nothing
        self._entries: list[EpochStart] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self._changed = changed

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on.

        Does nothing for the newest epoch, or for an undefined one. Entries that contradict the new one are
        dropped: those of later epochs, and those of epochs that wrote no record before it began.
        """
        if epoch < 0 or (
            self._entries and epoch == self.latest and start_offset >= self._entries[-1].start_offset
        ):
            return
        entries = self._entries
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochStart(epoch, start_offset))
        self._changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch at or below `epoch`, and its end offset: the next epoch's start.

        (-1, -1) when `epoch` is newer than all known ones; (`epoch`, the first start offset) when it is older
        than all (KIP-279).
        """
        if epoch == UNDEFINED:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._entries, epoch, key=_epoch_of)
        if above == len(self._entries):
            return UNDEFINED, UNDEFINED
        found = self._entries[above - 1].epoch if above else epoch
        return found, self._entries[above].start_offset

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that wrote the record at `offset`."""
        number = bisect_right(self._entries, offset, key=_start_of)
        return self._entries[number - 1].epoch if number else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that begin at or above the new log end, also those without a record."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        if len(self._entries) != before:
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end below the new log start; the epoch at the start begins there now."""
        below = bisect_right(self._entries, start_offset, key=_start_of)
        if below and self._entries[:below] != [EpochStart(self._entries[below - 1].epoch, start_offset)]:
            kept = EpochStart(self._entries[below - 1].epoch, start_offset)
            self._entries[:below] = [kept]
            self._changed()

    def clear(self) -> None:
        """Drop all epochs."""
        if self._entries:
            self._entries.clear()
            self._changed()


def _epoch_of(entry: EpochStart) -> int:
    return entry.epoch


def _start_of(entry: EpochStart) -> int:
    return entry.start_offset
