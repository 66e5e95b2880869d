"""Markers: the last batch that each task of a query wrote, and the topic that keeps them.

The topic is created if missing, and read to its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.admin.configs import TOPIC, Configs
from ottla.admin.topics import Topics
from ottla.client.cluster import Cluster, NoSuchTopic, is_stale
from ottla.client.errors import ClientError
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, OffsetLookups
from ottla.pipeline.sink.errors import MarkersUnreadable, StaleBatch
from ottla.pipeline.sink.tasks import TaskIdentity
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
from ottla.protocol.records import (
    Buffer,
    ControlType,
    decode_records,
    read_end_transaction_marker,
    split_batches,
    validate_batch,
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


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch that a task of a query wrote, and its number of rows."""

    batch: int
    rows: int
    run: str
    """The run that wrote the batch; a replay has another one. Empty: unknown."""

    def encoded(self, task: TaskIdentity) -> bytes:
        """Return the value of the marker record, as JSON."""
        where = {"query": task.query, "partition": task.partition}
        return json.dumps({**where, "batch": self.batch, "rows": self.rows, "run": self.run}).encode()


def decoded(value: bytes) -> Marker:
    """Undo `Marker.encoded`. Raises MarkersUnreadable.

    A marker without a run was written by an old version, so it belongs to an earlier run.
    """
    try:
        found = json.loads(value)
        return Marker(int(found["batch"]), int(found["rows"]), str(found.get("run", "")))
    except (ValueError, TypeError, KeyError):
        raise MarkersUnreadable(
            f"{value[:80]!r} is not a marker of a batch: option markers.topic must name a dedicated topic"
        ) from None


Markers = Mapping[int, Marker]
"""The markers of a query, by task number."""


def is_written(known: Markers, task: TaskIdentity) -> bool:
    """Whether the rows of a task are written. Raises StaleBatch if a later batch of the query has begun."""
    later = max((marker.batch for marker in known.values()), default=task.batch)
    if later > task.batch:
        raise StaleBatch(str(task), later)
    own = known.get(task.partition)
    return own is not None and own.batch == task.batch


def is_begun(known: Markers, batch: int, run: str) -> bool:
    """Whether an earlier run wrote part of a batch."""
    return any(marker.batch == batch and marker.run != run for marker in known.values())


def missing_task(known: Markers, batch: int, tasks: Container[int]) -> int | None:
    """Return a task that wrote rows of a batch but is missing in this run; None if there is none."""
    return next((task for task, marker in known.items() if marker.batch == batch and task not in tasks), None)


class MarkerLog:
    """Applies the records of the marker topic in order, and holds the last committed marker of each key."""

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._latest: dict[str, dict[int, Marker]] = {}
        self._open: dict[int, list[tuple[bytes, Marker | None]]] = {}

    def of(self, query: str) -> Markers:
        """Return the last markers of a query."""
        return self._latest.get(query, {})

    def take(self, records: Buffer) -> None:
        """Apply the batches that were fetched from `next_offset` on; ignore a truncated batch at the end.

        Raises CorruptRecords, MarkersUnreadable.
        """
        for batch in split_batches(records, torn_tail=True):
            header = validate_batch(batch)
            if header.next_offset <= self.next_offset:
                continue
            self.next_offset = header.next_offset
            if header.is_control:
                self._end(header.producer_id, batch)
            else:
                self._add(header.producer_id if header.is_transactional else None, batch)

    def _add(self, producer_id: int | None, batch: Buffer) -> None:
        found = [
            (record.key, None if record.value is None else decoded(record.value))
            for record in decode_records(batch)
            if record.key is not None
        ]
        if producer_id is None:
            self._apply(found)
        else:
            self._open.setdefault(producer_id, []).extend(found)

    def _end(self, producer_id: int, batch: Buffer) -> None:
        marker = read_end_transaction_marker(batch)
        if marker is None:
            return
        written = self._open.pop(producer_id, [])
        if marker.type is ControlType.COMMIT:
            self._apply(written)

    def _apply(self, found: list[tuple[bytes, Marker | None]]) -> None:
        for key, marker in found:
            query, partition = _task_of(key)
            if marker is not None:
                self._latest.setdefault(query, {})[partition] = marker
                continue
            of_query = self._latest.get(query, {})
            of_query.pop(partition, None)
            if not of_query:
                self._latest.pop(query, None)


def _task_of(key: bytes) -> tuple[str, int]:
    """Undo `TaskIdentity.key`. Raises MarkersUnreadable."""
    try:
        query, _, partition = key.decode().rpartition("/")
        return query, int(partition)
    except ValueError:
        raise MarkersUnreadable(
            f"{key[:80]!r} is not the key of a marker: option markers.topic must name a dedicated topic"
        ) from None


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
            log.info("whether a topic is compacted is not known", extra={"topic": name, "reason": str(error)})
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
