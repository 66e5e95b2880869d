"""A plain Fetch that waits for records, without a task: when it is woken, the fast path looks at it again.

For one that waits on the general path see `delayed_fetch`. Both are among the `DelayedFetches`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.api.fetch._fast_path import Answers
    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.protocol.native import PlainFetch

log = logging.getLogger(__name__)


class DelayedPlainFetch:
    """Waits until the fast path can answer a request, or until its time is over."""

    def __init__(
        self,
        fetch: PlainFetch,
        answer: Callable[[PlainFetch, bool], Answers | None],
        delayed: DelayedFetches,
        answered: Callable[[Answers | None], None],
    ) -> None:
        """Begin the wait. `answer` is `FetchFastPath.answer_waiting`.

        `answered` is called once, with None when the general path has to serve the request. This must be made
        in the turn of the event loop in which the fast path found that the request waits: records that were
        appended since then would not wake it.
        """
        self._fetch = fetch
        self._answer = answer
        self._answered = answered
        self._watchers = fetch.target.partition.watchers
        self._has_ended = False
        self._wait = delayed.begin(self._look_soon, is_follower=False, at_most_ms=fetch.max_wait_ms)
        self._watchers[self._wait.wake] = None

    def end(self) -> None:
        """End the wait without an answer."""
        self._has_ended = True
        self._wait.close()
        self._watchers.pop(self._wait.wake, None)

    def _look_soon(self) -> None:
        # Not now: it is an append, or a change of leadership, that wakes, and it has not ended.
        asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._has_ended:
            return
        self._wait.is_woken = False
        try:
            answers = self._answer(self._fetch, self._wait.is_over)
        except Exception:  # raised here it would end nothing, and the connection would wait for ever
            log.exception("a fetch that waited goes on on the general path")
            answers = None
        if answers is not None and answers.waiting is not None:
            self._watchers[self._wait.wake] = None
            return
        self.end()
        self._answered(answers)
