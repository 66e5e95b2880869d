"""Keeping up with who leads the partitions that are read, and what topics there are."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.client.retry import is_retriable
from ottla.consumer.errors import named_error
from ottla.consumer.fetch.notifier import News
from ottla.consumer.fetch.positions import NO_EPOCH, NO_LEADER, Place, Positions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_PASSING = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Leaders:
    """Asks for metadata when they are old, or were found wrong, and tells places of their leaders.

    `wanted` names the topics to ask for, None for all; `on_answer` hears each answer first.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        news: News,
        wanted: Callable[[], frozenset[str] | None],
        on_answer: Callable[[MetadataResponse], None],
        *,
        may_create: bool,
        on_leaders: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._news = news
        self._wanted = wanted
        self._on_answer = on_answer
        self._may_create = may_create
        self._on_leaders = on_leaders
        self._stale = asyncio.Event()
        self._ids: dict[str, object] = {}

    def look_again(self) -> None:
        """Ask for metadata soon: something showed that they are wrong."""
        self._stale.set()

    async def run(self) -> None:
        """Keep up, until cancelled."""
        attempt = 0
        while True:
            self._stale.clear()
            if not await self._look():
                # Metadata and brokers may contradict each other for a while: do not ask too fast.
                await asyncio.sleep(self._cluster.backoff.delay_ms(attempt, random.random()) / 1_000)
                attempt += 1
                continue
            attempt = 0
            try:
                if not self._stale.is_set():
                    async with asyncio.timeout(self._cluster.config.metadata_max_age_ms / 1_000):
                        await self._stale.wait()
            except TimeoutError:
                continue

    async def _look(self) -> bool:
        wanted = self._wanted()
        if wanted is not None and not wanted:
            return True
        try:
            answer = await self._cluster.refresh(wanted, may_create=self._may_create)
        except (ClientError, KafkaError) as error:
            if not is_retriable(error):
                self._fail(error, {place.partition.topic for place in self._positions})
            log.info("no metadata", extra={"reason": str(error)})
            return False
        self._on_answer(answer)
        return self._tell(answer)

    def _tell(self, answer: MetadataResponse) -> bool:
        """Tell all places of their leaders; say whether each has one."""
        for topic in answer.topics:
            if topic.error_code not in (ErrorCode.NONE, *_PASSING):
                name = topic.name or ""
                self._fail(named_error(f"topic {name!r}", topic.error_code), {name})
            self._note_id(topic)
        for place in self._positions:
            self._lead(place)
        self._on_leaders()
        self._news.tell()
        return all(place.leader != NO_LEADER or place.failure for place in self._positions)

    def _lead(self, place: Place) -> None:
        topic = self._cluster.known_topic(place.partition.topic)
        known = topic.partitions.get(place.partition.partition) if topic is not None else None
        if known is None or known.leader not in self._cluster.nodes:
            place.leader = NO_LEADER
            return
        place.leader = known.leader
        if known.leader_epoch > place.leader_epoch != NO_EPOCH and place.fetch_epoch != NO_EPOCH:
            # Another leader may have lost the end of what we read (KIP-320).
            place.must_validate = True
        place.leader_epoch = known.leader_epoch

    def _note_id(self, topic: MetadataResponseTopic) -> None:
        """See whether a topic was deleted and made again: its offsets begin anew, and so do we."""
        name = topic.name or ""
        if topic.topic_id == ZERO_UUID or topic.error_code != ErrorCode.NONE:
            return
        known, self._ids[name] = self._ids.get(name, topic.topic_id), topic.topic_id
        if known != topic.topic_id:
            log.warning("topic %s was deleted and made again: it is read from its beginning", name)
            for place in self._positions:
                if place.partition.topic == name:
                    place.leader_epoch = NO_EPOCH
                    place.seek(0)

    def _fail(self, error: Exception, topics: set[str]) -> None:
        for place in self._positions:
            if place.partition.topic in topics:
                place.failure = error
        self._news.tell()


def partitions_of(topic: MetadataResponseTopic) -> list[TopicPartition]:
    """Return a topic's partitions."""
    indexes = sorted(each.partition_index for each in topic.partitions)
    return [TopicPartition(topic.name or "", index) for index in indexes]
