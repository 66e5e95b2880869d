"""For each row of a task, the number of equal rows before it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Keys = np.ndarray[Any, Any]


class EqualRowCounter:
    """Counts equal keys of 64 bits, at 8 bytes for each key.

    The keys are kept in sorted pieces; pieces of similar length are merged, so their number stays small.
    """

    def __init__(self) -> None:
        self._pieces: list[Keys] = []

    def of(self, keys: Keys) -> Keys:
        """Return for each key how often it occurred before, in earlier calls and in this one."""
        import numpy as np

        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        is_first = np.concatenate([np.ones(min(len(keys), 1), bool), ordered[1:] != ordered[:-1]])
        starts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(starts, len(keys)))
        earlier = np.repeat(self._earlier(ordered[starts]), lengths)
        found = np.empty(len(keys), np.int64)
        found[order] = np.arange(len(keys)) - np.repeat(starts, lengths) + earlier
        self._add(ordered)
        return found

    def _earlier(self, keys: Keys) -> Keys:
        """Return how often each of these distinct, sorted keys occurred in earlier calls."""
        import numpy as np

        found = np.zeros(len(keys), np.int64)
        for piece in self._pieces:
            tasks = np.searchsorted(piece, keys)
            hits = np.flatnonzero(piece[np.minimum(tasks, len(piece) - 1)] == keys)
            found[hits] += np.searchsorted(piece, keys[hits], "right") - tasks[hits]
        return found

    def _add(self, keys: Keys) -> None:
        import numpy as np

        while self._pieces and len(self._pieces[-1]) <= 2 * len(keys):
            keys = np.concatenate([self._pieces.pop(), keys])
            keys.sort(kind="stable")
        if len(keys):
            self._pieces.append(keys)
