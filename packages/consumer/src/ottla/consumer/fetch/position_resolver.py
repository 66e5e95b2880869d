"""Finding out where to read: committed offsets, resets, and whether a position is still in the log."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import LogTruncated, NoOffset
from ottla.consumer.fetch.lookups import EARLIEST, LATEST, NOT_FOUND, EpochEnd, Lookups
from ottla.consumer.fetch.notifier import News
from ottla.consumer.fetch.positions import NO_EPOCH, Place, Positions
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

Committed = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked for places that need it; `ask` says whether nothing of it has to be tried again."""

    ask: Callable[[list[Place]], Awaitable[bool]]
    is_needed: Callable[[Place], bool]
    wake: asyncio.Event = field(default_factory=asyncio.Event)


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
        on_stale: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._lookups = lookups
        self._config = config
        self._news = news
        self._committed = committed
        self._on_found = on_found
        self._on_stale = on_stale
        self._questions = (
            _Question(self._read_committed, lambda place: place.lacks_position and not place.was_looked_up),
            _Question(self._find_by_time, lambda place: place.lacks_position and place.was_looked_up),
            _Question(self._validate, lambda place: place.must_validate),
        )

    def look(self) -> None:
        """Look for places that need something."""
        for question in self._questions:
            question.wake.set()

    async def run(self) -> None:
        """Find positions as they are needed, until cancelled."""
        # Each by itself: while a coordinator is away, what only leaders are asked goes on.
        async with asyncio.TaskGroup() as tasks:
            for question in self._questions:
                tasks.create_task(self._keep_asking(question))

    async def _keep_asking(self, question: _Question) -> None:
        attempt = 0
        while True:
            question.wake.clear()
            places = [place for place in self._positions if question.is_needed(place)]
            if await self._try(question.ask, places):
                attempt = 0
                await question.wake.wait()
            else:
                delay_ms = self._cluster.backoff.delay_ms(attempt, random.random())
                attempt += 1
                await asyncio.sleep(delay_ms / 1_000)

    async def _try(self, ask: Callable[[list[Place]], Awaitable[bool]], places: list[Place]) -> bool:
        if not places:
            return True
        before = _states(places)
        try:
            is_done = await ask(places)
        except (ClientError, KafkaError) as error:
            is_done = not _may_pass(error)
            self._failed(_unchanged(places, before), error)
        self._on_found()
        self._news.tell()
        return is_done

    def _failed(self, places: Iterable[Place], error: Exception) -> None:
        """Try again where that may help, tell the application otherwise."""
        if _may_pass(error):
            log.info("no offsets", extra={"reason": str(error)})
            return
        for place in places:
            place.failure = error

    def _settle(self, places: list[Place], failed: Mapping[TopicPartition, Exception]) -> bool:
        """Take note of what failed by partition; say whether nothing of it has to be tried again."""
        for place in places:
            if (error := failed.get(place.partition)) is not None:
                self._failed([place], error)
        return not any(is_retriable(error) for error in failed.values())

    async def _read_committed(self, places: list[Place]) -> bool:
        before = _states(places)
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
        return True

    @property
    def reset_time(self) -> int:
        """Where `auto_offset_reset` begins, as a time."""
        return EARLIEST if self._config.auto_offset_reset == "earliest" else LATEST

    async def _find_by_time(self, places: list[Place]) -> bool:
        before = _states(places)
        answers = await self._lookups.once_by_time(
            {place.partition: self._time_of(place) for place in places}
        )
        for place in _unchanged(places, before):
            found = answers.found.get(place.partition)
            if found is not None and found.offset == NOT_FOUND:
                place.seek_time(LATEST)  # nothing is that young: the next round finds the end
            elif found is not None:
                place.seek(found.offset)
        late = any(found.offset == NOT_FOUND for found in answers.found.values())
        return self._settle(_unchanged(places, before), answers.failed) and not late

    def _time_of(self, place: Place) -> int:
        return self.reset_time if place.wanted_time is None else place.wanted_time

    # --- truncation (KIP-320)

    async def _validate(self, places: list[Place]) -> bool:
        before = _states(places)
        epochs = {place.partition: place.leader_epoch for place in places}
        asked = [place for place in places if place.fetch_epoch != NO_EPOCH]
        wanted = {place.partition: (place.leader_epoch, place.fetch_epoch) for place in asked}
        answers = await self._lookups.once_epoch_ends(wanted)
        later = {each for each, error in answers.failed.items() if is_retriable(error)}
        for place in _unchanged(places, before):
            if place.partition in later or place.leader_epoch != epochs[place.partition]:
                continue  # one that led while we asked says nothing of what the next one has: ask that
            # Where nobody can tell, or may, we read on, as consumers did before there was this question.
            place.must_validate = False
            if (end := answers.found.get(place.partition)) is not None:
                self._check(place, end)
        if later:
            self._on_stale()  # we may have asked with an epoch that is over
        return not later

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


def _may_pass(error: Exception) -> bool:
    """Whether to ask again. An outage may last longer than any one call waits: reading goes on after it."""
    return is_retriable(error) or isinstance(error, DeadlineExceeded)


def _states(places: Iterable[Place]) -> dict[TopicPartition, tuple[int, int]]:
    return {place.partition: (place.generation, place.fetch_offset) for place in places}


def _unchanged(places: Iterable[Place], before: Mapping[TopicPartition, tuple[int, int]]) -> list[Place]:
    """Leave out places that were sought elsewhere, taken away, or read on, while we asked."""
    now = _states(places)
    return [
        place for place in places if not place.is_gone and now[place.partition] == before[place.partition]
    ]
