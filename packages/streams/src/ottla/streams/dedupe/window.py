"""Identities within a window: the last so many, none older than so long. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.streams.dedupe.errors import DedupeMisconfigured

DAY_MS = 86_400_000


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
