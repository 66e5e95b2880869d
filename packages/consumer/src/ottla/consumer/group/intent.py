"""The application's wishes for its group member: topics to read, and to stay in the group or leave. Pure."""

from __future__ import annotations


class Intent:
    """The subscription, the polls and the end, as the application asks for them.

    A member that `is_staying` takes part in rebalances; each of the reasons against it is one attribute.
    """

    def __init__(self, max_poll_interval_ms: float, now_ms: float) -> None:
        self.topics: frozenset[str] | None = None
        """The subscription; None without one."""
        self.is_closing = False
        self.must_leave = False
        """It unsubscribed, and has not left yet."""
        self.is_fenced = False
        """Another process has its instance id: it stays out for good."""
        self.is_idle = False
        """It left after a failure, or because no records were asked for; the next poll ends that."""
        self._max_poll_interval_ms = max_poll_interval_ms
        self._polled_ms = now_ms

    @property
    def is_staying(self) -> bool:
        """Whether this member wants to be in the group."""
        is_over = self.is_closing or self.must_leave or self.is_idle or self.is_fenced
        return self.topics is not None and not is_over

    @property
    def idle_at_ms(self) -> float:
        """When the member leaves, unless the application asks for records before."""
        return self._polled_ms + self._max_poll_interval_ms

    def subscribe(self, topics: frozenset[str]) -> bool:
        """Return whether a member that is out of its group joins it now."""
        self.topics = topics
        return not (self.is_closing or self.is_fenced)

    def poll(self, now_ms: float) -> None:
        """Count the time until the member is idle from now."""
        self._polled_ms = now_ms

    def end_idleness(self) -> bool:
        """Return whether a member that is out of its group because it was idle joins it now."""
        joins = self.is_idle and self.topics is not None and not self.is_closing
        if joins:
            self.is_idle = False
        return joins

    def exclude(self, since_ms: float, now_ms: float) -> None:
        """Do not count the time since then, of a rebalance, as time without a poll."""
        self._polled_ms += now_ms - max(since_ms, self._polled_ms)

    def fail(self, *, is_fenced: bool) -> None:
        """Stay out of the group until the application polls; if fenced, for good."""
        self.is_fenced = self.is_fenced or is_fenced
        self.is_idle = not self.is_fenced
