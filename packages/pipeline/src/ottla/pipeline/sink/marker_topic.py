"""The topic that markers are kept in: made when it is missing, and read up to its end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from ottla.client.admin.configs import TOPIC, Configs
from ottla.client.admin.topics import Topics
from ottla.client.cluster import Cluster, NoSuchTopic, is_stale
from ottla.client.errors import ClientError
from ottla.consumer.fetch.lookups import EARLIEST, LATEST, Lookups
from ottla.pipeline.sink.errors import MarkersUnreadable
from ottla.pipeline.sink.markers import MarkerLog, Markers
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    KafkaError,
    OffsetOutOfRange,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    error_for,
)
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

PARTITION: Final = 0
"""Where all markers are: were they spread, a topic that grows would hide those that it has."""

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": "86400000",
}
"""Small segments: what is in the last one is never compacted, and all of it is read."""

_MOST_BYTES = 4 * 1024 * 1024
_WAIT_MS = 500
_LAST_VERSION_WITH_NAMES = 12


class MarkerTopic:
    """Answers which batch each partition of a query wrote last; all methods run on the cluster's loop.

    What was read once is remembered: an answer costs what is new since the last one.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._place = TopicPartition(name, PARTITION)
        # Of transactions that are open, too: see `markers`.
        self._lookups = Lookups(cluster, read_committed=False)
        self._is_there = False
        self._marker_log = MarkerLog()

    async def of(self, query: str) -> Markers:
        """Return the last markers of a query that are committed by now. Raises MarkersUnreadable."""
        await self._ensure()
        end = (await self._lookups.offsets({self._place: LATEST}))[self._place]
        if end < self._marker_log.next_offset:
            self._marker_log = MarkerLog()  # the topic was deleted, and made again
        while self._marker_log.next_offset < end:
            await self._advance(end)
        return dict(self._marker_log.of(query))

    # --- reading

    async def _advance(self, end: int) -> None:
        """Read until something was read.

        Raises MarkersUnreadable where a broker has less than there was for `default_api_timeout_ms`, and
        DeadlineExceeded where none answers for so long.
        """
        before = self._marker_log.next_offset
        bound_ms = self._cluster.config.default_api_timeout_ms
        until = asyncio.get_running_loop().time() + bound_ms / 1_000
        while self._marker_log.next_offset == before:
            # Each retry has a bound of its own, and says why it failed; so this is looked at when it has
            # not: a leader that is new may take a moment to know how far its topic is committed.
            high_watermark = await self._cluster.retry("reading markers", lambda: self._read(end))
            if high_watermark < end and asyncio.get_running_loop().time() > until:
                raise MarkersUnreadable(
                    f"topic {self._place.topic!r} had records up to offset {end}, and for {bound_ms} ms "
                    f"ended at {high_watermark}: it lost some, as after an unclean election of a leader. "
                    "Whether the markers of this batch are among them cannot be told"
                )

    async def _read(self, end: int) -> int:
        """Take what there is, and return where the topic ends now."""
        try:
            found = await self._fetch()
        except OffsetOutOfRange:
            first = (await self._lookups.offsets({self._place: EARLIEST}))[self._place]
            self._marker_log = MarkerLog(first)
            return first
        except (ClientError, KafkaError) as error:
            if is_stale(error):
                self._cluster.forget(self._place.topic)
            raise
        before = self._marker_log.next_offset
        self._marker_log.take(found.records or b"")
        if self._marker_log.next_offset == before and found.high_watermark >= end:
            self._marker_log.next_offset = end  # compaction left nothing there
        return found.high_watermark

    async def _fetch(self) -> PartitionData:
        leader, epoch = await self._cluster.leader(self._place)
        wanted = FetchPartition(
            partition=PARTITION,
            current_leader_epoch=epoch,
            fetch_offset=self._marker_log.next_offset,
            partition_max_bytes=_MOST_BYTES,
        )
        topic = FetchTopic(topic=self._place.topic, partitions=[wanted])
        request = FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=_MOST_BYTES, topics=[topic])
        answer = await self._cluster.send(
            leader, request, FetchResponse, max_version=_LAST_VERSION_WITH_NAMES
        )
        _raise(answer.error_code, self._place)
        (found,) = answer.responses[0].partitions
        _raise(found.error_code, self._place)
        return found

    # --- being there

    async def _ensure(self) -> None:
        if self._is_there:
            return
        try:
            await self._cluster.topic(self._place.topic)
        except NoSuchTopic:
            with suppress(TopicAlreadyExists):  # of several tasks that begin one is the first
                await Topics(self._cluster).create(self._place.topic, partitions=1, configs=SETTINGS)
        await self._refuse_to_lose()
        self._is_there = True

    async def _refuse_to_lose(self) -> None:
        """Raise MarkersUnreadable where markers would vanish with time."""
        name = self._place.topic
        try:
            policy = await self._cluster.retry(f"looking at topic {name!r}", self._policy)
        except (TopicAuthorizationFailed, ClusterAuthorizationFailed) as error:
            log.info("whether topic %r is compacted cannot be told: %s", name, error)
            return
        if "compact" not in policy:
            raise MarkersUnreadable(
                f"topic {name!r} has cleanup.policy={policy}: markers of batches would vanish with time, and "
                "rows come twice. Set it to compact, or name a topic with option markers.topic that is not "
                "there yet"
            )

    async def _policy(self) -> str:
        try:
            entries = await Configs(self._cluster).describe(TOPIC, self._place.topic)
        except NoSuchTopic as error:  # it was made just now, and this broker has not heard of it
            raise UnknownTopicOrPartition(str(error)) from None
        return next((each.value or "" for each in entries if each.name == "cleanup.policy"), "")


def _raise(code: int, task: TopicPartition) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, str(task))
