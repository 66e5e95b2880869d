"""Finding out where to read: committed offsets, resets, and whether a position is still in the log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded, UnsupportedByBroker
from ottla.client.groups import OffsetAndMetadata
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import LogTruncated, NoOffset
from ottla.consumer.lookups import EARLIEST, LATEST, EpochEnd, Lookups
from ottla.consumer.news import News
from ottla.consumer.positions import NO_EPOCH, NO_LEADER, Place, Positions
from ottla.protocol.errors import ClusterAuthorizationFailed, KafkaError, TopicAuthorizationFailed
from ottla.protocol.topics import TopicPartition

Committed = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]

log = logging.getLogger(__name__)


class Beginnings:
    """Gives a position to every place that lacks one, and validates those that need it."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        lookups: Lookups,
        config: ConsumerConfig,
        news: News,
        committed: Committed | None,
        *,
        on_found: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._lookups = lookups
        self._config = config
        self._news = news
        self._committed = committed
        self._on_found = on_found
        self._wake = asyncio.Event()

    def look(self) -> None:
        """Look for places that need something."""
        self._wake.set()

    async def run(self) -> None:
        """Find positions as they are needed, until cancelled."""
        attempt = 0
        while True:
            self._wake.clear()
            if await self._find_all():
                attempt = 0
                await self._wake.wait()
            else:
                delay_ms = self._cluster.backoff.delay_ms(attempt, random.random())
                attempt += 1
                await asyncio.sleep(delay_ms / 1_000)

    async def _find_all(self) -> bool:
        """Do what there is to do once; return whether nothing of it has to be tried again."""
        results = [
            await self._attempt(self._read_committed, lambda place: not place.was_looked_up),
            await self._attempt(self._find_by_time, lambda place: place.was_looked_up),
        ]
        if checked := [place for place in self._positions if place.must_validate]:
            results.append(await self._try(self._validate, checked))
        return all(results)

    async def _attempt(
        self, find: Callable[[list[Place]], Awaitable[None]], chosen: Callable[[Place], bool]
    ) -> bool:
        lacking = [place for place in self._positions if place.lacks_position and chosen(place)]
        return not lacking or await self._try(find, lacking)

    async def _try(self, find: Callable[[list[Place]], Awaitable[None]], places: list[Place]) -> bool:
        try:
            await find(places)
        except (ClientError, KafkaError) as error:
            # Whoever asks for records waits for a lost broker to come back, however long that takes.
            if is_retriable(error) or isinstance(error, DeadlineExceeded):
                log.info("no offsets", extra={"reason": str(error)})
                return False
            for place in places:
                place.failure = error
        self._on_found()
        self._news.tell()
        return True

    async def _read_committed(self, places: list[Place]) -> None:
        before = _generations(places)
        found: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._committed is not None:
            found = await self._committed([place.partition for place in places])
        for place in _unchanged(places, before):
            committed = found.get(place.partition)
            if committed is not None:
                place.seek(committed.offset, committed.leader_epoch)
            elif self._config.auto_offset_reset == "none":
                place.failure = NoOffset(place.partition)
            else:
                place.seek_time(self.reset_time)

    @property
    def reset_time(self) -> int:
        """Where `auto_offset_reset` begins, as a time."""
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST

    async def _find_by_time(self, places: list[Place]) -> None:
        before = _generations(places)
        wanted = {place.partition: self._time_of(place) for place in places}
        found = await self._lookups.offsets(wanted)
        for place in _unchanged(places, before):
            place.seek(found[place.partition])

    def _time_of(self, place: Place) -> int:
        return self.reset_time if place.wanted_time is None else place.wanted_time

    # --- truncation (KIP-320)

    async def _validate(self, places: list[Place]) -> None:
        before = _generations(places)
        led = [place for place in places if place.fetch_epoch != NO_EPOCH and place.leader != NO_LEADER]
        wanted = {place.partition: (place.leader_epoch, place.fetch_epoch) for place in led}
        try:
            ends = await self._lookups.epoch_ends(wanted)
        except (UnsupportedByBroker, ClusterAuthorizationFailed, TopicAuthorizationFailed):
            ends = {}  # nobody can tell: read on, as consumers did before there was this question
        for place in _unchanged(places, before):
            place.must_validate = False
            if place.partition in ends:
                self._check(place, ends[place.partition])

    def _check(self, place: Place, end: EpochEnd) -> None:
        position = place.position
        if position is None or end.end_offset >= place.fetch_offset:
            return
        if 0 <= position <= end.end_offset:
            place.forget()  # only what was fetched ahead is gone
            return
        diverges_at = end.end_offset if end.end_offset >= 0 else None
        extra = {"partition": str(place.partition), "position": position, "diverges_at": diverges_at}
        log.warning("the log was truncated", extra=extra)
        if self._config.auto_offset_reset == "none":
            place.forget()
            place.failure = LogTruncated(place.partition, position, diverges_at)
        elif diverges_at is None:
            place.seek_time(self.reset_time)
        else:
            place.seek(diverges_at)


def _generations(places: Iterable[Place]) -> dict[TopicPartition, int]:
    return {place.partition: place.generation for place in places}


def _unchanged(places: Iterable[Place], before: Mapping[TopicPartition, int]) -> list[Place]:
    """Leave out places that were sought elsewhere, or taken away, while we asked."""
    return [place for place in places if not place.is_gone and place.generation == before[place.partition]]
