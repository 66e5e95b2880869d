"""Fetches that wait on the general path: until there are min_bytes, an error, or max_wait_ms is over.

Kafka keeps such requests in its fetch purgatory. Here the wait is a suspended coroutine: a watcher of every
partition wakes it, and it reads changed partitions again. A follower's session has thousands of partitions,
of which few change while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ottla.broker.api.fetch.reading import FetchTerms, PartitionReads
from ottla.broker.runtime.loop_budget import LONG, at_once

if TYPE_CHECKING:
    from ottla.broker.api.fetch.response import FetchedPartition
    from ottla.broker.api.fetch.sessions import FetchContext
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.protocol.messages.fetch import FetchRequest
    from ottla.protocol.topics import TopicPartition


def is_enough(request: FetchRequest, fetch: FetchContext, results: list[FetchedPartition]) -> bool:
    """Return whether the request is answered with these results, without a wait for more."""
    if request.max_wait_ms <= 0 or not fetch.wanted:
        return True
    size = 0
    for result in results:
        if result.is_answer:
            return True
        size += result.size
    return size >= request.min_bytes


async def read_when_enough(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext
) -> list[FetchedPartition]:
    """Read when there are enough records, a partition has an error, or the time is over."""
    reads = _WatchedReads(terms, request, fetch)
    try:
        if not await reads.read_all():
            clock = terms.services.environment.clock
            began_ms = clock.monotonic_ms()
            await _until_enough(terms, request, reads)
            terms.context.remote_ms += clock.monotonic_ms() - began_ms
        return reads.results
    finally:
        reads.unwatch()


async def _until_enough(terms: FetchTerms, request: FetchRequest, reads: _WatchedReads) -> None:
    resumed = asyncio.Event()
    wait = terms.services.delayed_fetches.begin(
        resumed.set, is_follower=terms.is_follower, at_most_ms=request.max_wait_ms
    )
    try:
        reads.wake_by(wait.wake)
        while True:
            await resumed.wait()
            resumed.clear()
            wait.is_woken = False
            if await reads.read_changed(keep=wait.is_over) or wait.is_over:
                return
    finally:
        wait.close()


class _WatchedReads:
    """The partitions of one request, each watched before it is read, so that no change is missed.

    What is read is named by its place in the request, which may name a partition many times.
    """

    def __init__(self, terms: FetchTerms, request: FetchRequest, fetch: FetchContext) -> None:
        self.results: list[FetchedPartition] = []
        self._terms = terms
        self._min_bytes = request.min_bytes
        self._wanted = fetch.wanted
        self._wake: Callable[[], object] = lambda: None
        self._places: dict[TopicPartition, dict[int, None]] = {}
        """The places of each partition that were read."""
        self._watched: dict[TopicPartition, tuple[HostedPartition, Callable[[], None]]] = {}
        self._changed: dict[TopicPartition, None] = {}
        """Changed since they were read."""
        self._had_records: list[int] = []
        """Places that had records, but not enough: all others have none, or have changed."""

    def wake_by(self, wake: Callable[[], object]) -> None:
        """Call `wake` whenever a partition changes, and now if one has changed already."""
        self._wake = wake
        if self._changed:
            wake()

    async def read_all(self) -> bool:
        """Read every partition; return whether that is enough."""
        return await self._read(range(len(self._wanted)), keep=False)

    async def read_changed(self, *, keep: bool) -> bool:
        """Read the changed partitions; return whether that is enough. Too little is dropped unless `keep`."""
        changed = chain.from_iterable(self._places[partition] for partition in self._changed)
        again = sorted({*changed, *self._had_records})
        self._changed.clear()
        return await self._read(again, keep=keep)

    async def _read(self, places: range | list[int], *, keep: bool) -> bool:
        self._had_records = []
        steps = self._reading(places)
        enough = at_once(steps) if len(places) <= LONG else await self._terms.context.turn.run(steps)
        if not enough and not keep:
            for place in self._had_records:
                self.results[place].records = None  # close the files of a read that was not enough
        return enough

    def _reading(self, places: Iterable[int]) -> Generator[None, None, bool]:
        reads, is_answer = PartitionReads(self._terms), False
        for place in places:
            partition = self._wanted[place].topic_partition
            self._watch(partition)
            self._places.setdefault(partition, {})[place] = None
            result = reads.read(self._wanted[place])
            if place < len(self.results):
                self.results[place] = result
            else:
                self.results.append(result)
            if result.size:
                self._had_records.append(place)
            is_answer = is_answer or result.is_answer
            yield
        return is_answer or reads.size >= self._min_bytes

    # ---- watching

    def _watch(self, partition: TopicPartition) -> None:
        hosted = self._terms.services.replicas.hosted(partition)
        if hosted is None:
            return
        known = self._watched.get(partition)
        if known is None or known[0] is not hosted:
            known = self._watched[partition] = (hosted, partial(self._note, partition))
        hosted.watchers[known[1]] = None

    def _note(self, partition: TopicPartition) -> None:
        self._changed[partition] = None
        self._wake()

    def unwatch(self) -> None:
        """Watch nothing any more."""
        for hosted, watcher in self._watched.values():
            hosted.watchers.pop(watcher, None)
