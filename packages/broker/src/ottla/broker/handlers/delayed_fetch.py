"""Delayed fetch: wait until there are min_bytes, an error, or max_wait_ms is over.

Kafka keeps such requests in its fetch purgatory. Here the wait is a suspended coroutine: a watcher of every
partition wakes it, and it reads again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.handlers.fetch_read import FetchTerms, read_all
from ottla.broker.handlers.pacing import LONG

if TYPE_CHECKING:
    from ottla.broker.handlers.fetch_response import FetchedPartition
    from ottla.broker.handlers.fetch_sessions import FetchContext
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.protocol.messages.fetch import FetchRequest


def is_enough(request: FetchRequest, fetch: FetchContext, results: list[FetchedPartition]) -> bool:
    """Return whether the request is answered with these results, without a wait for more."""
    if request.max_wait_ms <= 0 or not fetch.wanted:
        return True
    size = 0
    for result in results:
        if result.error_code or result.diverging_epoch is not None or result.preferred_read_replica >= 0:
            return True
        size += result.size
    return size >= request.min_bytes


async def read_when_enough(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext
) -> list[FetchedPartition]:
    """Read when there are enough records, a partition has an error, or the time is over."""
    clock = terms.services.environment.clock
    began_ms = clock.monotonic_ms()
    results = await _until_enough(terms, request, fetch)
    terms.context.remote_ms += clock.monotonic_ms() - began_ms
    return results


async def _until_enough(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext
) -> list[FetchedPartition]:
    watched = await _hosted(terms, fetch)
    delayed = terms.services.delayed_fetches
    changed = asyncio.Event()
    wait = delayed.begin(changed.set, is_follower=terms.is_follower, at_most_ms=request.max_wait_ms)
    try:
        while True:
            for partition in watched:
                partition.watchers[wait.wake] = None
            changed.clear()
            wait.is_woken = False
            # This read also finds records appended between the first read and the watch.
            results = await read_all(terms, fetch.wanted)
            if wait.is_over or is_enough(request, fetch, results):
                return results
            del results  # close the files of a read that was not enough
            await changed.wait()
    finally:
        wait.close()
        for partition in watched:
            partition.watchers.pop(wait.wake, None)


async def _hosted(terms: FetchTerms, fetch: FetchContext) -> list[HostedPartition]:
    hosted = terms.services.replicas.hosted
    if len(fetch.wanted) <= LONG:
        found = [hosted(one.topic_partition) for one in fetch.wanted]
    else:
        found = [hosted(one.topic_partition) async for one in terms.context.paced(fetch.wanted)]
    return [one for one in found if one is not None]
