"""Read Fetch responses: buffer their data, and act on the error code of each partition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.client.cluster import Cluster
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import OffsetOutOfRange, named_error
from ottla.consumer.fetch.decoding import RecordCursor, RecordDecoder, decompression_ms, end_of
from ottla.consumer.fetch.positions import NO_LEADER, FetchedData, PartitionState, Positions
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.acls import Operation
from ottla.protocol.errors import ErrorCode, KafkaError, MessageTooLarge, error_for
from ottla.protocol.messages.fetch import FetchResponse, PartitionData
from ottla.protocol.topics import TopicPartition

OFF_LOOP_ABOVE_MS = 10.0

_STALE_METADATA = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)

log = logging.getLogger(__name__)


class FetchPoint(NamedTuple):
    """The state of a partition when its fetch was sent: its generation, and the offset asked for."""

    generation: int
    offset: int

    def is_current(self, state: PartitionState) -> bool:
        """Return whether the response is still of use.

        The leader or the preferred replica may change during a fetch, and two brokers then answer for the
        same offset: the first response counts.
        """
        return not state.is_unassigned and self == (state.generation, state.fetch_offset)


FetchPoints = Mapping[TopicPartition, tuple[PartitionState, FetchPoint]]


class FetchResponseReader:
    """Buffers the records of Fetch responses and applies what brokers say of each partition."""

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        config: ConsumerConfig,
        notifier: StateChangeNotifier,
        metrics: ConsumerMetrics,
        decoder: RecordDecoder,
        *,
        look_up_leaders: Callable[[], None],
        look_up_offsets: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._notifier = notifier
        self._metrics = metrics
        self._decoder = decoder
        self._look_up_leaders = look_up_leaders
        self._look_up_offsets = look_up_offsets

    async def read(self, node: int, response: FetchResponse, points: FetchPoints) -> None:
        """Apply a response of a broker to the partitions that were asked for and did not move since."""
        arrived: list[tuple[PartitionState, FetchPoint, FetchedData]] = []
        names = {state.topic_id: state.partition.topic for state, _ in points.values()}
        for partition, data in _partitions(response, names):
            if partition not in points:
                continue
            state, point = points[partition]
            if not point.is_current(state):
                continue
            if data.error_code:
                self._read_error(state, node, data.error_code)
            elif (fetched := self._read_data(state, data)) is not None:
                arrived.append((state, point, fetched))
        await self._decompress([fetched.cursor for _, _, fetched in arrived])
        for state, point, fetched in arrived:
            if point.is_current(state):
                state.add(fetched)
                self._positions.enqueue(state)
        self._notifier.notify()

    def back_off(self, state: PartitionState) -> None:
        """Fetch a partition again no sooner than after `retry_backoff_ms`."""
        backoff_s = self._cluster.config.retry_backoff_ms / 1_000
        state.fetch_not_before_s = asyncio.get_running_loop().time() + backoff_s

    async def _decompress(self, cursors: list[RecordCursor]) -> None:
        """Decompress on a thread what would block the event loop for too long."""
        slow = [(cursor, ms) for cursor in cursors if (ms := decompression_ms(cursor)) > 0]
        if sum(ms for _, ms in slow) > OFF_LOOP_ABOVE_MS:
            await asyncio.to_thread(_decompress_ahead, [cursor for cursor, _ in slow])

    # --- data

    def _read_data(self, state: PartitionState, data: PartitionData) -> FetchedData | None:
        state.high_watermark = data.high_watermark
        state.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        if data.log_start_offset >= 0:
            state.log_start_offset = data.log_start_offset
        if data.preferred_read_replica != NO_LEADER and data.preferred_read_replica != state.leader:
            self._prefer(state, data.preferred_read_replica)
        records = data.records
        if not records:
            return None
        end_offset, epoch, count = end_of(records, state.fetch_offset)
        self._metrics.fetched(state.partition.topic, count, len(records))
        if end_offset == state.fetch_offset:
            return self._nothing_whole(state, records)
        return FetchedData(
            self._decoder.cursor(state.partition, records, state.fetch_offset, data.aborted_transactions),
            records,
            data.aborted_transactions,
            end_offset,
            epoch,
            data.high_watermark,
            max(1, len(records) // max(count, 1)),
        )

    def _nothing_whole(self, state: PartitionState, records: bytes | memoryview) -> FetchedData | None:
        """Fail a partition whose next batch is larger than a response may be (before Kafka 0.10.1)."""
        try:
            RecordCursor(state.partition, records, state.fetch_offset).read()
        except KafkaError as error:
            state.failure = error
            return None
        state.failure = MessageTooLarge(
            f"{state.partition} at offset {state.fetch_offset}: the record is larger than "
            f"max_partition_fetch_bytes ({self._config.max_partition_fetch_bytes})"
        )
        return None

    def _prefer(self, state: PartitionState, replica: int) -> None:
        """Fetch from a replica that the leader recommended (KIP-392), for `metadata_max_age_ms`."""
        state.preferred = replica
        until_s = asyncio.get_running_loop().time() + self._cluster.config.metadata_max_age_ms / 1_000
        state.preferred_until_s = until_s
        if replica not in self._cluster.nodes:
            self._look_up_leaders()

    # --- errors

    def _read_error(self, state: PartitionState, node: int, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(state, node)
        elif code in _STALE_METADATA:
            if not state.is_read_from(node):
                return  # metadata that came during the fetch name another broker already
            state.preferred = NO_LEADER
            state.leader = NO_LEADER
            self.back_off(state)
            self._look_up_leaders()
        elif code != ErrorCode.CORRUPT_MESSAGE and is_retriable(error_for(code)):
            self.back_off(state)
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR:
            log.warning("broker error", extra={"broker": node, "partition": str(state.partition)})
            self.back_off(state)
        else:
            where = f"{state.partition} at offset {state.fetch_offset}"
            state.failure = named_error(where, code, state.partition.topic, Operation.READ)

    def _out_of_range(self, state: PartitionState, node: int) -> None:
        """Apply the reset policy. A follower may only lag, so its leader is asked before."""
        if state.preferred == node != state.leader:
            state.preferred = NO_LEADER
            return
        offset = state.fetch_offset
        log.info("offset out of range", extra={"partition": str(state.partition), "offset": offset})
        if self._config.auto_offset_reset == "none":
            state.failure = OffsetOutOfRange({state.partition: offset})
        elif state.buffered:
            self.back_off(state)  # buffered records are delivered first
        else:
            state.seek_time(None)
            state.skips_committed = True
            self._look_up_offsets()


def _decompress_ahead(cursors: list[RecordCursor]) -> None:
    for cursor in cursors:
        cursor.decompress_ahead()


def _partitions(
    response: FetchResponse, names: Mapping[UUID, str]
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    """Iterate over the partitions of a response that has names of topics, or ids (KIP-516)."""
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        for data in topic.partitions:
            yield TopicPartition(name, data.partition_index), data
