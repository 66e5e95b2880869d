"""Fetches that wait on the general path: until there are min_bytes, an error, or max_wait_ms is over.

Kafka keeps such requests in its fetch purgatory. Here the wait is a suspended coroutine: a change of one of
its partitions wakes it, and it reads those that have changed again. Partitions of a session are watched on
from one request to the next: a follower's has thousands, of which few change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING

from ottla.broker.api.fetch.reading import FetchTerms, PartitionReads, Reads
from ottla.broker.api.fetch.sessions import in_order
from ottla.broker.runtime.loop_budget import LONG, at_once

if TYPE_CHECKING:
    from ottla.broker.api.fetch.response import FetchedPartition
    from ottla.broker.api.fetch.sessions import FetchContext, RequestedPartition
    from ottla.protocol.messages.fetch import FetchRequest


def is_enough(request: FetchRequest, fetch: FetchContext, results: Iterable[FetchedPartition]) -> bool:
    """Return whether the request is answered with these results, without a wait for more."""
    if request.max_wait_ms <= 0 or not fetch.count:
        return True
    size = 0
    for result in results:
        if result.is_answer:
            return True
        size += result.size
    return size >= request.min_bytes


async def read_when_enough(terms: FetchTerms, request: FetchRequest, fetch: FetchContext) -> Reads:
    """Read when there are enough records, a partition has an error, or the time is over."""
    reads = WatchedReads(terms, request, fetch)
    try:
        if await reads.read_all():
            return reads.results()
        return await wait_for_enough(terms, request, reads)
    finally:
        reads.close()


async def wait_for_enough(terms: FetchTerms, request: FetchRequest, reads: WatchedReads) -> Reads:
    """Read what changes behind reads that were not enough, until there is enough or the time is over."""
    clock = terms.services.environment.clock
    began_ms = clock.monotonic_ms()
    resumed = asyncio.Event()
    wait = terms.services.delayed_fetches.begin(
        resumed.set, is_follower=terms.is_follower, at_most_ms=request.max_wait_ms
    )
    try:
        reads.wake_by(wait.wake)
        enough = False
        while not enough:
            await resumed.wait()
            resumed.clear()
            wait.is_woken = False
            if terms.ask_again():
                enough = await reads.read_again(keep=wait.is_over) or wait.is_over
            else:
                enough = await reads.read_changed(keep=wait.is_over) or wait.is_over
        terms.context.remote_ms += clock.monotonic_ms() - began_ms
        return reads.results()
    finally:
        wait.close()
        reads.close()


class WatchedReads:
    """The reads of one request, each partition watched from its read on, so that no change is missed."""

    def __init__(self, terms: FetchTerms, request: FetchRequest, fetch: FetchContext) -> None:
        self._terms = terms
        self._min_bytes = request.min_bytes
        self._wanted = fetch.wanted
        self._watched = fetch.watched()
        self._ends_with_request = fetch.session is None
        self._wake: Callable[[], object] | None = None
        self._results: dict[RequestedPartition, FetchedPartition] = {}
        self._had_records: list[RequestedPartition] = []
        """Had records, but not enough: all others have none, or have changed."""

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Call `wake` whenever a partition changes, and now if one has changed already."""
        self._drop_records()
        self._watched.on_change = self._wake = wake
        if self._watched.changed:
            wake()

    def results(self) -> Reads:
        """Return the partitions and what was read, in their order."""
        return [(requested, self._results[requested]) for requested in in_order(self._results)]

    async def read_all(self, *, keep: bool = False) -> bool:
        """Read every partition; return whether that is enough. Too little is dropped unless `keep`."""
        return await self._read(self._wanted, keep=keep)

    def read_now(self) -> bool:
        """`read_all` in one step, for a list that is short."""
        return at_once(self._reading(self._wanted))

    async def read_changed(self, *, keep: bool) -> bool:
        """Read the changed partitions; return and drop as `read_all` does."""
        return await self._read(in_order({*self._watched.changed, *self._had_records}), keep=keep)

    async def read_again(self, *, keep: bool) -> bool:
        """Read what has been read, and what has changed, as after a change of the client's permissions."""
        again = {*self._wanted, *self._results, *self._watched.changed}
        return await self._read(in_order(again), keep=keep)

    async def _read(self, partitions: list[RequestedPartition], *, keep: bool) -> bool:
        steps = self._reading(partitions)
        enough = at_once(steps) if len(partitions) <= LONG else await self._terms.context.turn.run(steps)
        if not enough and not keep:
            self._drop_records()
        return enough

    def _reading(self, partitions: list[RequestedPartition]) -> Generator[None, None, bool]:
        reads, is_answer, self._had_records = PartitionReads(self._terms), False, []
        hosted = self._terms.services.replicas.hosted
        for requested in partitions:
            result = self._results[requested] = reads.read(requested)
            self._watched.watch(requested, hosted(requested.topic_partition))
            if result.size:
                self._had_records.append(requested)
            is_answer = is_answer or result.is_answer
            yield
        return is_answer or reads.size >= self._min_bytes

    def _drop_records(self) -> None:
        """Close the files of a read that was not enough."""
        for requested in self._had_records:
            self._results[requested].records = None

    def close(self) -> None:
        """Wake nothing any more; without a session, watch nothing either."""
        if self._ends_with_request:
            self._watched.close()
        elif self._wake is not None:
            self._watched.stop_waking(self._wake)
