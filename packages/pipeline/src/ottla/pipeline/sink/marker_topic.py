"""The topic of the markers: create it if missing, and read it to its end."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from ottla.admin.configs import TOPIC, Configs
from ottla.admin.topics import Topics
from ottla.client.cluster import Cluster, NoSuchTopic, is_stale
from ottla.client.errors import ClientError
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, OffsetLookups
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
"""The partition of all markers. With more partitions, adding one would move keys away from their markers."""

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": "86400000",
}
"""Small segments, because the active segment is never compacted and is read completely."""

_MOST_BYTES = 4 * 1024 * 1024
_WAIT_MS = 500
_LAST_VERSION_WITH_NAMES = 12


class MarkerTopic:
    """Returns the last marker of each task of a query; all methods run on the cluster's loop.

    Keeps the markers that were read, so that a lookup reads only new records.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._place = TopicPartition(name, PARTITION)
        # Includes open transactions: see `markers`.
        self._lookups = OffsetLookups(cluster, read_committed=False)
        self._is_there = False
        self._marker_log = MarkerLog()

    async def of(self, query: str) -> Markers:
        """Return the last committed markers of a query. Raises MarkersUnreadable."""
        await self._ensure()
        end = (await self._lookups.offsets({self._place: LATEST}))[self._place]
        if end < self._marker_log.next_offset:
            self._marker_log = MarkerLog()  # the topic was deleted and created again
        while self._marker_log.next_offset < end:
            await self._advance(end)
        return dict(self._marker_log.of(query))

    # --- reading

    async def _advance(self, end: int) -> None:
        """Fetch until at least one record arrives.

        Raises MarkersUnreadable if the broker has fewer records than before for `default_api_timeout_ms`, and
        DeadlineExceeded if no broker answers for that long.
        """
        before = self._marker_log.next_offset
        bound_ms = self._cluster.config.default_api_timeout_ms
        until = asyncio.get_running_loop().time() + bound_ms / 1_000
        while self._marker_log.next_offset == before:
            # Each retry has a bound of its own and reports its failure. This check covers retries that
            # succeed: a new leader may need a moment to learn its high watermark.
            high_watermark = await self._cluster.retry("reading markers", lambda: self._read(end))
            if high_watermark < end and asyncio.get_running_loop().time() > until:
                raise MarkersUnreadable(
                    f"topic {self._place.topic!r} had records up to offset {end}, but for {bound_ms} "
                    f"ms it ended at {high_watermark}: it lost records, for example in an unclean "
                    "leader election. Markers of this batch may be among them"
                )

    async def _read(self, end: int) -> int:
        """Apply the fetched records and return the current end of the topic."""
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
            self._marker_log.next_offset = end  # compaction removed the records there
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

    # --- creating the topic

    async def _ensure(self) -> None:
        if self._is_there:
            return
        try:
            await self._cluster.topic(self._place.topic)
        except NoSuchTopic:
            with suppress(TopicAlreadyExists):  # several tasks may try at the same time
                await Topics(self._cluster).create(self._place.topic, partitions=1, configs=SETTINGS)
        await self._refuse_to_lose()
        self._is_there = True

    async def _refuse_to_lose(self) -> None:
        """Raise MarkersUnreadable if retention would delete markers."""
        name = self._place.topic
        try:
            policy = await self._cluster.retry(f"describing topic {name!r}", self._policy)
        except (TopicAuthorizationFailed, ClusterAuthorizationFailed) as error:
            log.info("cannot tell whether topic %r is compacted: %s", name, error)
            return
        if "compact" not in policy:
            raise MarkersUnreadable(
                f"topic {name!r} has cleanup.policy={policy}: retention would delete markers, and "
                "rows would be written twice. Set it to compact, or name a topic that does not "
                "exist yet with option markers.topic"
            )

    async def _policy(self) -> str:
        try:
            entries = await Configs(self._cluster).describe(TOPIC, self._place.topic)
        except NoSuchTopic as error:  # it was created a moment ago, and this broker does not know it yet
            raise UnknownTopicOrPartition(str(error)) from None
        return next((entry.value or "" for entry in entries if entry.name == "cleanup.policy"), "")


def _raise(code: int, partition: TopicPartition) -> None:
    if code != ErrorCode.NONE:
        raise error_for(code, str(partition))
