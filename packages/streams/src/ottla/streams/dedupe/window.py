"""Identities within a window: the last so many, none older than so long; and Bloom filters of them. Pure.

A filter never denies an identity that was added, and affirms about one in a hundred that were not; for those
the store is asked. Bloom filters cannot forget, so a prefilter is a row of them: identities go into the
newest, and the oldest is dropped once all of its identities are outside of the window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rbloom import Bloom

from ottla.streams.dedupe.errors import DedupeMisconfigured

DAY_MS = 86_400_000
FALSE_POSITIVE_RATE: Final = 0.01
FIRST_CAPACITY: Final = 10_000
LARGEST_CAPACITY: Final = 1_000_000
GENERATIONS_PER_WINDOW: Final = 2
SLACK_MS: Final = 60_000
"""A mark may be written this much later than it was added here: its caller was cancelled meanwhile."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """How far back repetitions are recognised; older records may be handled again."""

    ttl_ms: int | None = DAY_MS
    """Time after its mark for which an identity is remembered; None for no limit."""
    max_ids: int | None = None
    """Identities remembered per partition (or topic, with that scope), those that were marked last; None for
    no limit. A repetition is no mark."""

    def __post_init__(self) -> None:
        for name, value in (("ttl_ms", self.ttl_ms), ("max_ids", self.max_ids)):
            if value is not None and value < 1:
                raise DedupeMisconfigured(f"{name} must be at least 1, not {value}; None stands for no limit")

    def oldest_ms(self, now_ms: int) -> int:
        """Return the mark time up to which identities are forgotten."""
        return now_ms - self.ttl_ms if self.ttl_ms is not None else -1


class Window:
    """The identities of one scope, with the times of their marks.

    Remembers the `max_ids` of them that were marked last, none for longer than `ttl_ms` after its mark. A
    repetition renews neither place nor time, as in all stores: it would cost a write.
    """

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._marked: OrderedDict[bytes, int] = OrderedDict()  # in the order of the marks

    def __len__(self) -> int:
        """Number of remembered identities, among them some that are out of date."""
        return len(self._marked)

    def contains(self, identity: bytes, now_ms: int) -> bool:
        """Return whether an identity was marked within the window."""
        marked_ms = self._marked.get(identity)
        return marked_ms is not None and marked_ms > self._limits.oldest_ms(now_ms)

    def add(self, identity: bytes, marked_ms: int) -> list[bytes]:
        """Remember an identity; return those that are forgotten because there are more than `max_ids`."""
        self.discard(identity)
        self._marked[identity] = marked_ms
        self._expire(marked_ms)
        if self._limits.max_ids is None:
            return []
        evicted = []
        while len(self._marked) > self._limits.max_ids:
            evicted.append(next(iter(self._marked)))
            self.discard(evicted[-1])
        return evicted

    def discard(self, identity: bytes) -> None:
        """Forget an identity, if it is remembered."""
        self._marked.pop(identity, None)

    def identities(self, now_ms: int) -> Iterator[bytes]:
        """Yield the identities within the window."""
        oldest_ms = self._limits.oldest_ms(now_ms)
        return (identity for identity, marked_ms in self._marked.items() if marked_ms > oldest_ms)

    def _expire(self, now_ms: int) -> None:
        oldest_ms = self._limits.oldest_ms(now_ms)
        while self._marked:
            identity, marked_ms = next(iter(self._marked.items()))
            if marked_ms > oldest_ms:
                return
            self.discard(identity)


@dataclass(slots=True)
class _Generation:
    """Identities of a part of the window."""

    capacity: int
    first_ms: int
    newest_ms: int
    count: int = 0
    bloom: Bloom = field(init=False)

    def __post_init__(self) -> None:
        self.bloom = Bloom(self.capacity, FALSE_POSITIVE_RATE)


class Prefilter:
    """The identities of one partition that may have been marked within the window.

    Beyond `max_bytes` it gets no further filters before the next half of the window: it stays right and
    becomes less useful, for it affirms more identities that are new.
    """

    def __init__(self, limits: WindowLimits, *, max_bytes: int = 16 << 20) -> None:
        self._limits = limits
        self._max_bytes = max_bytes
        self._generations: list[_Generation] = []

    def __len__(self) -> int:
        """Number of Bloom filters."""
        return len(self._generations)

    @property
    def size_bytes(self) -> int:
        """Memory of the Bloom filters."""
        return sum(generation.bloom.size_in_bits // 8 for generation in self._generations)

    def may_contain(self, identity: bytes) -> bool:
        """Return False only for an identity that was not added within the window."""
        return any(identity in generation.bloom for generation in self._generations)

    def add(self, identities: Iterable[bytes], now_ms: int) -> None:
        """Add identities that are marked at this time."""
        for identity in identities:
            newest = self._newest(now_ms)
            newest.newest_ms = now_ms
            if identity not in newest.bloom:
                newest.bloom.add(identity)
                newest.count += 1

    def _newest(self, now_ms: int) -> _Generation:
        newest = self._generations[-1] if self._generations else None
        if newest is None or self._is_due(newest, now_ms):
            newest = self._rotate(newest, now_ms)
        return newest

    def _is_due(self, newest: _Generation, now_ms: int) -> bool:
        """Return whether identities go into another filter from here on."""
        if newest.count >= newest.capacity and self.size_bytes < self._max_bytes:
            return True
        ttl_ms = self._limits.ttl_ms
        return ttl_ms is not None and now_ms - newest.first_ms > ttl_ms / GENERATIONS_PER_WINDOW

    def _rotate(self, newest: _Generation | None, now_ms: int) -> _Generation:
        self._drop_outdated(now_ms)
        capacity = FIRST_CAPACITY if newest is None else min(2 * newest.count, LARGEST_CAPACITY)
        self._generations.append(_Generation(max(capacity, FIRST_CAPACITY), now_ms, now_ms))
        return self._generations[-1]

    def _drop_outdated(self, now_ms: int) -> None:
        oldest_ms = self._limits.oldest_ms(now_ms) - SLACK_MS
        later = sum(generation.count for generation in self._generations)
        while self._generations:
            oldest = self._generations[0]
            later -= oldest.count
            # Twice the limit, because an identity may be in two of them: added before its mark, and after it.
            too_many = self._limits.max_ids is not None and later >= 2 * self._limits.max_ids
            if oldest.newest_ms > oldest_ms and not too_many:
                return
            del self._generations[0]
