"""How long a member may believe that it is in its group. Pure."""

from __future__ import annotations

LOOKS_PER_SESSION = 10


class Session:
    """The time until which the coordinator keeps a member, as far as the member can know.

    A heartbeat that is answered keeps it for `session_timeout_ms` from when it was sent. While a JoinGroup or
    SyncGroup is outstanding the coordinator regards its sender as alive. But a process that stood still may
    have an answer before it that is old: after that only a heartbeat counts, or that the answer is still
    outstanding at the second look.
    """

    def __init__(self, timeout_ms: float) -> None:
        self.ends_s: float | None = None
        """None before the first answer."""
        self.look_every_s = timeout_ms / 1_000 / LOOKS_PER_SESSION
        """The time between two calls of `look`."""
        self._timeout_s = timeout_ms / 1_000
        self._looked_s: float | None = None

    def look(self, now_s: float, *, is_awaiting: bool) -> None:
        """Extend the session if JoinGroup or SyncGroup is outstanding."""
        stood_still = self._stood_still(now_s)
        self._looked_s = now_s
        if is_awaiting and not stood_still:
            self.kept_at(now_s)

    def answered(self, now_s: float) -> None:
        """Note the answer of JoinGroup or SyncGroup."""
        if not self._stood_still(now_s):
            self.kept_at(now_s)

    def kept_at(self, time_s: float) -> None:
        """Note that the coordinator knew the member at a time, or later."""
        self.ends_s = max(self.ends_s or 0.0, time_s + self._timeout_s)

    def _stood_still(self, now_s: float) -> bool:
        """Return whether the last look is so long ago that an answer may be as old."""
        return self._looked_s is not None and now_s - self._looked_s > self._timeout_s / 2
