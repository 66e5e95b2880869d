"""Writes the markers that end transactions into the partitions led here (WriteTxnMarkers, KIP-98).

The transaction coordinator of this broker calls `PartitionMarkers.write` for its own partitions; the handler
calls it for the coordinators of other brokers, and for administrators that abort a hanging transaction.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.log.log import AppendOrigin
from ottla.protocol.errors import KafkaError, KafkaStorageError, NotLeaderOrFollower, RequestTimedOut
from ottla.protocol.messages.transactions import (
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
    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.loop_budget import Turn

_EPOCH_RISES_FROM: Final = 2
"""The first version of transactions whose markers have a later epoch than their records."""

TransactionEnded = Callable[[int, int, bool], object]
"""Hears of a committed marker in `__consumer_offsets`: partition number, producer id, whether it commits."""


class _Appended(NamedTuple):
    """A marker that was appended, with the leadership in which it was."""

    partition: HostedPartition
    end: int
    leader_epoch: int

    @property
    def is_committed(self) -> bool:
        return self.partition.high_watermark >= self.end


class _Pending:
    """The result of one partition of one marker."""

    __slots__ = ("appended", "marker", "result", "topic_partition")

    def __init__(self, marker: WritableTxnMarker, topic_partition: TopicPartition) -> None:
        self.marker = marker
        self.topic_partition = topic_partition
        self.appended: _Appended | None = None
        self.result = WritableTxnMarkerPartitionResult(partition_index=topic_partition.partition)

    @property
    def is_of_groups(self) -> bool:
        """Whether the group coordinator has to hear of the marker."""
        return self.topic_partition.topic == GROUP_METADATA_TOPIC

    def failed(self, error: Exception) -> None:
        code = error.code if isinstance(error, KafkaError) else KafkaStorageError.code
        self.result.error_code = int(code)


class PartitionMarkers:
    """Appends markers to the partitions that this broker leads, and waits until they are committed."""

    def __init__(
        self, replicas: Replicas, environment: Environment, timeout_ms: int, offsets_ended: TransactionEnded
    ) -> None:
        """`timeout_ms` bounds the wait for the replicas of one request.

        `offsets_ended` is called once a marker in `__consumer_offsets` is committed: then the group
        coordinator makes the transaction's offsets visible, or drops them.
        """
        self._replicas = replicas
        self._clock = environment.clock
        self._budget = environment.budget
        self._timeout_ms = timeout_ms
        self._offsets_ended = offsets_ended

    async def write(
        self, request: WriteTxnMarkersRequest, turn: Turn | None = None
    ) -> WriteTxnMarkersResponse:
        """Append every marker with acks=all; returns once each is committed, or has its error.

        A marker that is sent again is appended again: it ends nothing, and does no harm. A client that has
        gone has no more markers appended, and what its turn raises is raised when the others are settled.
        """
        turn = turn or self._budget.turn()
        response, pending = await _unanswered(request.markers, turn)
        deadline_s = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        interruption: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            settling = _Settling(tasks, turn, deadline_s, self._offsets_ended)
            try:
                async for place in turn.over(_first_of(pending)):
                    self._append(place)
                    await settling.add(place)
            except Exception as error:
                interruption = error
        if interruption is not None:
            raise interruption
        return response

    def _append(self, place: _Pending) -> None:
        try:
            partition = self._replicas.leader(place.topic_partition)
            now_ms = self._clock.now_ms()
            marker = place.marker
            if marker.transaction_version >= _EPOCH_RISES_FROM:
                partition.log.producers.check_marker_of_version_2(marker.producer_id, marker.producer_epoch)
            appended = partition.append(
                _marker(marker, now_ms), now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        except (KafkaError, OSError) as error:
            place.failed(error)
        else:
            place.appended = _Appended(partition, appended.last_offset + 1, partition.leader_epoch)


class _Settling:
    """Waits until the markers of one request are committed: from its append on, and in the order of the log.

    The group coordinator must hear of a marker before anybody can know of its commit: told late, after the
    marker was sent again and answered, it would take the producer's next transaction for ended. So nothing
    comes between the commit and the word to it: a marker that is committed by its append is settled in the
    same turn, and the walk over those that waited for replicas does not rest. The markers of other
    partitions are only answered; they rest, and wait for each other.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, turn: Turn, deadline_s: float, offsets_ended: TransactionEnded
    ) -> None:
        self._tasks = tasks
        self._turn = turn
        self._deadline_s = deadline_s
        self._offsets_ended = offsets_ended
        self._waiting: defaultdict[TopicPartition | None, deque[_Pending]] = defaultdict(deque)
        """By partition of the groups; those of all others together. One that is not empty has a task."""

    async def add(self, place: _Pending) -> None:
        """Settle a marker at once if it is committed, otherwise later; one that has an error is settled."""
        if place.appended is None:
            return
        waiting = self._waiting[place.topic_partition if place.is_of_groups else None]
        if not waiting and place.appended.is_committed:
            await self._settle(place, place.appended)  # without a wait
            return
        waiting.append(place)
        if len(waiting) == 1:
            settle = self._settle_groups if place.is_of_groups else self._settle_others
            self._tasks.create_task(settle(waiting))

    async def _settle_groups(self, waiting: deque[_Pending]) -> None:
        for place in _first_of(waiting):
            assert place.appended is not None
            await self._settle(place, place.appended)

    async def _settle_others(self, waiting: deque[_Pending]) -> None:
        # To the end: an exception would cancel the tasks of the groups.
        async for place in self._turn.over(_first_of(waiting), to_the_end=True):
            assert place.appended is not None
            await self._settle(place, place.appended)

    async def _settle(self, place: _Pending, appended: _Appended) -> None:
        try:
            if appended.is_committed:
                await _committed(appended)
            else:
                async with asyncio.timeout_at(self._deadline_s):
                    await _committed(appended)
        except TimeoutError:
            place.failed(RequestTimedOut())
        except KafkaError as error:
            place.failed(error)
        else:
            if place.is_of_groups:
                self._tell(place)

    def _tell(self, place: _Pending) -> None:
        marker = place.marker
        self._offsets_ended(place.topic_partition.partition, marker.producer_id, marker.transaction_result)


def _first_of(waiting: deque[_Pending]) -> Iterator[_Pending]:
    """Iterate over what waits; each is removed when the next is asked for."""
    while waiting:
        yield waiting[0]
        waiting.popleft()


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


async def _unanswered(
    markers: Iterable[WritableTxnMarker], turn: Turn
) -> tuple[WriteTxnMarkersResponse, deque[_Pending]]:
    """The response with a place for every partition, and these places."""
    response, pending = WriteTxnMarkersResponse(), deque[_Pending]()
    async for marker in turn.over(markers):
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        response.markers.append(result)
        async for topic in turn.over(marker.topics):
            of_topic = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(of_topic)
            async for number in turn.over(topic.partition_indexes):
                place = _Pending(marker, TopicPartition(topic.name, number))
                pending.append(place)
                of_topic.partitions.append(place.result)
    return response, pending
