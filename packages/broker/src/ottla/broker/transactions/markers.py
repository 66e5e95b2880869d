"""Writes the markers that end transactions into the partitions led here (WriteTxnMarkers, KIP-98).

The transaction coordinator of this broker calls `PartitionMarkers.write` for its own partitions; the handler
calls it for the coordinators of other brokers, and for administrators that abort a hanging transaction.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.log.log import AppendOrigin
from ottla.protocol.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower, RequestTimedOut
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records import ControlType, end_transaction_marker
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.environment import Clock
    from ottla.broker.replication.replicas import HostedPartition, Replicas


class Yields(Protocol):
    """Lets the event loop go on with other work between the markers of a long request."""

    @property
    def is_due(self) -> bool:
        """Whether the work has taken long enough."""
        ...

    async def rest(self) -> None:
        """Go on in a later turn."""
        ...


TransactionEnded = Callable[[int, int, bool], object]
"""Hears of a committed marker in `__consumer_offsets`: partition number, producer id, whether it commits."""


class _Appended(NamedTuple):
    """A marker that was appended, with the leadership in which it was."""

    partition: HostedPartition
    end: int
    leader_epoch: int


class _Pending:
    """The result of one partition of one marker."""

    __slots__ = ("appended", "marker", "result", "topic_partition")

    def __init__(self, marker: WritableTxnMarker, topic_partition: TopicPartition) -> None:
        self.marker = marker
        self.topic_partition = topic_partition
        self.appended: _Appended | None = None
        self.result = WritableTxnMarkerPartitionResult(partition_index=topic_partition.partition)

    def failed(self, error: Exception) -> None:
        code = error.code if isinstance(error, KafkaError) else KafkaStorageError.code
        self.result.error_code = int(code)


class PartitionMarkers:
    """Appends markers to the partitions that this broker leads, and waits until they are committed."""

    def __init__(
        self, replicas: Replicas, clock: Clock, timeout_ms: int, offsets_ended: TransactionEnded
    ) -> None:
        """`timeout_ms` bounds the wait for the replicas of one request.

        `offsets_ended` is called once a marker in `__consumer_offsets` is committed: then the group
        coordinator makes the transaction's offsets visible, or drops them.
        """
        self._replicas = replicas
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._offsets_ended = offsets_ended

    async def write(
        self, request: WriteTxnMarkersRequest, yields: Yields | None = None
    ) -> WriteTxnMarkersResponse:
        """Append every marker with acks=all; returns once each is committed, or has its error.

        A marker that is sent again is appended again: it ends nothing, and does no harm.
        """
        response, pending = _unanswered(request.markers)
        for one in pending:
            self._append(one)
            if yields is not None and yields.is_due:
                await yields.rest()
        await self._settle(pending)
        return response

    def _append(self, one: _Pending) -> None:
        try:
            partition = self._replicas.leader(one.topic_partition)
            now_ms = self._clock.now_ms()
            appended = partition.append(
                _marker(one.marker, now_ms), now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        except (KafkaError, OSError) as error:
            one.failed(error)
        else:
            one.appended = _Appended(partition, appended.last_offset + 1, partition.leader_epoch)

    async def _settle(self, pending: Iterable[_Pending]) -> None:
        """Wait for all at once where the group coordinator has to hear, in the order of each log.

        It must hear before anybody can know of the commit: told late, after the marker was sent again and
        answered, it would take the producer's next transaction for ended.
        """
        deadline_s = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        by_group_partition: dict[TopicPartition | None, list[_Pending]] = defaultdict(list)
        for one in pending:
            if one.appended is not None:
                of_groups = one.topic_partition.topic == GROUP_METADATA_TOPIC
                by_group_partition[one.topic_partition if of_groups else None].append(one)
        async with asyncio.TaskGroup() as tasks:
            for together in by_group_partition.values():
                tasks.create_task(self._settle_in_order(together, deadline_s))

    async def _settle_in_order(self, pending: Iterable[_Pending], deadline_s: float) -> None:
        for one in pending:
            assert one.appended is not None
            try:
                async with asyncio.timeout_at(deadline_s):
                    await _committed(one.appended)
            except TimeoutError:
                one.failed(RequestTimedOut())
            except KafkaError as error:
                one.failed(error)
            else:
                self._tell(one)

    def _tell(self, one: _Pending) -> None:
        topic, number = one.topic_partition
        if topic == GROUP_METADATA_TOPIC:
            self._offsets_ended(number, one.marker.producer_id, one.marker.transaction_result)


async def _committed(appended: _Appended) -> None:
    """Wait until a marker is committed; one of a leadership that is over may have been cut off."""
    if appended.partition.leader_epoch != appended.leader_epoch:
        raise NotLeaderOrFollower
    await appended.partition.replicated(appended.end)


def _marker(marker: WritableTxnMarker, now_ms: int) -> bytes:
    return end_transaction_marker(
        ControlType.COMMIT if marker.transaction_result else ControlType.ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp_ms=now_ms,
    )


def _unanswered(markers: Iterable[WritableTxnMarker]) -> tuple[WriteTxnMarkersResponse, list[_Pending]]:
    """The response with a place for every partition, and these places."""
    response, pending = WriteTxnMarkersResponse(), []
    for marker in markers:
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        for topic in marker.topics:
            places = [_Pending(marker, TopicPartition(topic.name, one)) for one in topic.partition_indexes]
            pending += places
            result.topics.append(
                WritableTxnMarkerTopicResult(name=topic.name, partitions=[one.result for one in places])
            )
        response.markers.append(result)
    return response, pending
