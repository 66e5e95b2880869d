"""Fetches that wait on the fast path, without a task: when one is woken, the fast path looks at it again.

Those of the general path are in `delayed_general`. Both are among the `DelayedFetches`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.broker.api.fetch.response import FIRST_BY_ID
from ottla.broker.api.fetch.sessions import FINAL_EPOCH
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

if TYPE_CHECKING:
    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.requests.context import ClientSession
    from ottla.broker.requests.fast_path import FastAnswers
    from ottla.protocol.native import PlainFetch

log = logging.getLogger(__name__)


class DelayedFastFetch:
    """Waits until the fast path can answer a request, or until its time is over."""

    def __init__(
        self,
        fetch: PlainFetch,
        answer: Callable[[PlainFetch, bool], FastAnswers | None],
        delayed: DelayedFetches,
        session: ClientSession,
    ) -> None:
        """`answer` is `FetchFastPath.answer_waiting`, `session` the client's."""
        self._session, self._index_epoch = session, session.index_epoch
        self._fetch = fetch
        self._answer = answer
        self._delayed = delayed
        self._has_ended = False

    def begin(self, answered: Callable[[FastAnswers | None], None]) -> None:
        """Begin the wait; `answered` is called once, with None when the general path has to serve it.

        This must be in the turn of the event loop in which the fast path found that the request waits:
        records that were appended since then would not wake it.
        """
        self._answered = answered
        self._watchers = self._fetch.target.partition.watchers
        self._wait = self._delayed.begin(
            self._look_soon, is_follower=False, at_most_ms=self._fetch.max_wait_ms
        )
        self._watchers[self._wait.wake] = None

    def end(self) -> None:
        """End the wait without an answer."""
        self._has_ended = True
        self._wait.close()
        self._watchers.pop(self._wait.wake, None)

    def request(self, waited_ms: float) -> tuple[RequestHeader, FetchRequest, int]:
        """Return the request and its size for the general path, where it waits for the rest of its time."""
        fetch = self._fetch
        by_id = fetch.version >= FIRST_BY_ID
        partition = FetchPartition(
            partition=int.from_bytes(fetch.key[-4:], signed=True),
            current_leader_epoch=fetch.leader_epoch,
            fetch_offset=fetch.offset,
            partition_max_bytes=fetch.partition_max_bytes,
        )
        topic = FetchTopic(
            topic="" if by_id else fetch.key[:-4].decode(),
            topic_id=UUID(bytes=fetch.key[1:-4]) if by_id else UUID(int=0),
            partitions=[partition],
        )
        request = FetchRequest(
            max_wait_ms=max(0, fetch.max_wait_ms - int(waited_ms)),
            min_bytes=fetch.min_bytes,
            max_bytes=fetch.max_bytes,
            isolation_level=int(fetch.committed_only),
            session_epoch=FINAL_EPOCH,
            topics=[topic],
            rack_id=fetch.rack.decode(),
        )
        header = RequestHeader(ApiKey.FETCH, fetch.version, fetch.correlation_id, None)
        return header, request, fetch.size_in_bytes

    def _look_soon(self) -> None:
        # Not now: it is an append, or a change of leadership, that wakes, and it has not ended.
        asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._has_ended:
            return
        self._wait.is_woken = False
        answers = None  # the general path asks for permissions, which may have changed
        try:
            if self._session.index_epoch == self._index_epoch:
                answers = self._answer(self._fetch, self._wait.is_over)
        except Exception:  # raised here it would end nothing, and the connection would wait for ever
            log.exception("a fetch that waited goes on on the general path")
        if answers is not None and not answers.count:  # still too few records
            self._watchers[self._wait.wake] = None
            return
        self.end()
        self._answered(answers)
