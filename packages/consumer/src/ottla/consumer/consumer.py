"""The consumer: records of topics, in the order of each partition."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload
from uuid import UUID

from ottla.client.errors import Need, error_about
from ottla.client.field_types import FieldType, K_co, V_co
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.serialization import Deserializer, DeserializerSpec
from ottla.client.settings import config_from
from ottla.consumer._records import ConsumerRecord
from ottla.consumer.argument_validation import (
    Offset,
    Partition,
    check_settings,
    no_such_name,
    to_commit,
    to_offset,
    to_partition,
    to_partitions,
    to_record_limit,
)
from ottla.consumer.config import ConsumerConfig, UntypedConsumerSettings
from ottla.consumer.errors import ConsumerStopped, NotAssigned
from ottla.consumer.fetch.arrow import DEFAULT_BYTES, pyarrow_module, read_columns, record_batch
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, OffsetAndTimestamp
from ottla.consumer.fetch.record_delivery import Records
from ottla.consumer.lifecycle import ConsumerLifecycle
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.record import RecordBatch
from ottla.consumer.subscription import TopicFilter, subscription
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.records.arrow import ColumnBuilder, check_columns
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow


class Consumer(Generic[K_co, V_co]):
    """Reads topics, or partitions that `assign` gives.

        async with Consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.key, record.value)

    With `group_id`, the members of that group share the partitions, and offsets are committed for the group.
    Without it, a consumer reads all partitions of its topics. Records are fetched ahead in the background.
    One task at a time may ask for records. For type checkers it is `Consumer[K, V]`, a consumer of
    `ConsumerRecord[K, V]`: deserializers, or `key_type` and `value_type`, give the types.
    """

    @overload
    def __init__(
        self,
        *topics: str,
        key_type: type[K_co] | FieldType[K_co] | None = None,
        value_type: type[V_co] | FieldType[V_co] | None = None,
        key_deserializer: Callable[[bytes], K_co] | Deserializer[K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | Deserializer[V_co] | None = None,
        **settings: Unpack[UntypedConsumerSettings],
    ) -> None: ...
    @overload
    def __init__(
        self: Consumer[Any, Any],
        *topics: str,
        config: ConsumerConfig | None = None,
        key_type: type[Any] | FieldType[Any] | None = None,
        value_type: type[Any] | FieldType[Any] | None = None,
        key_deserializer: DeserializerSpec = None,
        value_deserializer: DeserializerSpec = None,
        **settings: Unpack[UntypedConsumerSettings],
    ) -> None: ...
    def __init__(self, *topics: str, config: ConsumerConfig | None = None, **settings: Any) -> None:
        check_settings(settings)
        self.config = config_from(ConsumerConfig, config, settings)
        self._lifecycle = lifecycle = ConsumerLifecycle(self.config)
        self._positions = lifecycle.fetch.positions
        self._delivery = lifecycle.fetch.delivery
        self._position_operations = lifecycle.fetch.position_operations
        if topics:
            self.subscribe(topics)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_name(self, name)

    # --- starting and stopping

    async def start(self) -> None:
        """Connect, and join the group; return once partitions are assigned, or there are none to have.

        Raises what prevents the start: NoBrokerAvailable, NoSuchTopic, errors of authorization.
        """
        await self._lifecycle.start()

    async def stop(self) -> None:
        """Commit finished records, leave the group, and close all connections."""
        await self._lifecycle.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- what to read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | TopicFilter | None = None,
        listener: Any = None,
    ) -> None:
        """Read topics by name, or all that match a pattern, instead of the previous subscription.

        New partitions, and new topics that match, are found within `metadata_max_age_ms`. `listener` is a
        RebalanceListener. Raises WrongMode after `assign`: unsubscribe first.
        """
        subscriptions = self._lifecycle.usable.subscriptions
        subscriptions.check_subscribable()
        subscriptions.subscribe(subscription(topics, pattern), listener)

    def unsubscribe(self) -> None:
        """Stop reading and leave the group; `subscribe` or `assign` may be called next."""
        self._lifecycle.usable.subscriptions.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics: those named, or those found that match the pattern."""
        return self._lifecycle.subscriptions.topics

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read exactly these partitions; those assigned before keep their positions.

        Raises WrongMode for a member of a group: unsubscribe first.
        """
        self._lifecycle.usable.subscriptions.assign(to_partitions(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return self._positions.assigned

    def pause(self, *partitions: Partition) -> None:
        """Stop fetching and delivering partitions until they are resumed; buffered records are kept."""
        positions = self._lifecycle.usable.fetch.positions
        states = [positions[to_partition(partition)] for partition in partitions]
        self._delivery.suspend(frozenset(state.partition for state in states))
        for state in states:
            state.is_paused = True

    def resume(self, *partitions: Partition) -> None:
        """Continue partitions that were paused."""
        positions = self._lifecycle.usable.fetch.positions
        for state in [positions[to_partition(partition)] for partition in partitions]:
            state.is_paused = False
            positions.enqueue(state)
        self._lifecycle.fetch.fetcher.wake()
        self._lifecycle.fetch.notifier.notify()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return frozenset(state.partition for state in self._positions if state.is_paused)

    # --- records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[K_co, V_co]]:
        # The native iterator itself: a record costs no call to this object, unless a subclass wants one.
        return self._delivery if type(self).__anext__ is Consumer.__anext__ else self

    def __anext__(self) -> Coroutine[Any, Any, ConsumerRecord[K_co, V_co]]:
        return self._delivery.__anext__()

    async def getone(self, *partitions: Partition) -> ConsumerRecord[K_co, V_co]:
        """Return the next record, of all partitions or some."""
        if not partitions and self._delivery.timeout_ms < 0:
            try:
                return await self._delivery.__anext__()
            except StopAsyncIteration:  # what ends an iteration is an error here
                raise ConsumerStopped("the consumer was closed") from None
        found: Records = {}
        while not found:  # interceptors may leave records out
            found = await self._delivery.collect(
                [to_partition(partition) for partition in partitions], None, 1
            )
        ((record,),) = found.values()
        return record

    async def getmany(
        self, *partitions: Partition, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K_co, V_co]]]:
        """Return buffered records of all partitions or some, waiting up to `timeout_ms` for the first.

        At most `max_records`, which is at least 1 (default: `max_poll_records`, else about 256 KiB); with a
        timeout of None it waits without end. The records are finished when the application asks for more.
        Raises what prevents reading a partition: OffsetOutOfRange, RecordDeserializationFailed,
        UnreadableBatch, errors of authorization; records before that are returned first.
        """
        limit = to_record_limit(max_records) or self.config.max_poll_records
        return await self._delivery.collect(
            [to_partition(partition) for partition in partitions], timeout_ms, limit
        )

    async def batches(self, *, max_records: int | None = None) -> AsyncIterator[RecordBatch[K_co, V_co]]:
        """Iterate over batches of one partition each; a batch is finished when the next is asked for.

        Ends when the consumer is stopped, and after `consumer_timeout_ms` without records if that is set.
        """
        limit = to_record_limit(max_records) or self.config.max_poll_records
        while True:
            try:
                batch = await self._delivery.next_batch(limit)
            except ConsumerStopped:
                return
            if batch is None:
                return
            yield batch

    async def fetch_arrow(
        self,
        *partitions: Partition,
        timeout_ms: float | None = 1_000,
        max_records: int | None = None,
        max_bytes: int = DEFAULT_BYTES,
        columns: Iterable[str] | None = None,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> pyarrow.RecordBatch:
        """Return buffered records as Arrow columns, waiting up to `timeout_ms` for the first.

        Columns are key, value, topic, partition, offset and timestamp, or those that `columns` names, which
        may include timestamp_type and headers. About `max_bytes` of fetched bytes become one batch, at most
        `max_records`. It is empty after the timeout, and once each partition of `until` is read up to its
        offset there, also if its last offsets hold no records (as those of transaction markers). No Python
        object is made per record: deserializers and interceptors are not applied. The batch is finished when
        the application asks for more. Raises as `getmany`, and ArrowMissing.
        """
        pyarrow_module()
        to_record_limit(max_records)
        builder = ColumnBuilder(
            check_columns(columns),
            check_crcs=self.config.check_crcs,
            max_decompressed_bytes=self.config.max_decompressed_batch_bytes,
        )
        wanted = [to_partition(partition) for partition in partitions]
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_ms is None else loop.time() + timeout_ms / 1_000
        while not len(builder) and not await self._is_read(until):
            left_ms = None if deadline_s is None else max(0.0, deadline_s - loop.time()) * 1_000
            buffered = await self._delivery.take_raw(max_bytes, left_ms, wanted)
            if not buffered:
                break
            # Fetched data may hold no records: those of aborted transactions, or all below the position.
            await read_columns(buffered, builder, max_records, self._delivery, self.config)
        return record_batch(builder.finish())

    async def arrow_batches(
        self,
        *,
        max_records: int | None = None,
        max_bytes: int = DEFAULT_BYTES,
        columns: Iterable[str] | None = None,
    ) -> AsyncIterator[pyarrow.RecordBatch]:
        """Iterate over Arrow batches; a batch is finished when the next is asked for.

        Ends when the consumer is stopped, and after `consumer_timeout_ms` without records if that is set.
        """
        names = check_columns(columns)
        timeout_ms = self.config.consumer_timeout_ms
        bound_ms = None if timeout_ms < 0 else timeout_ms
        while True:
            try:
                batch = await self.fetch_arrow(
                    timeout_ms=bound_ms, max_records=max_records, max_bytes=max_bytes, columns=names
                )
            except ConsumerStopped:
                return
            if batch.num_rows:
                yield batch
            elif bound_ms is not None:
                return

    # --- positions

    def seek(self, partition: Partition, offset: Offset) -> None:
        """Continue a partition at an offset; with a leader epoch, a truncation before it is detected."""
        fetch = self._lifecycle.usable.fetch
        state = fetch.positions[to_partition(partition)]
        where = to_offset(state.partition, offset)
        fetch.position_operations.seek(state, where.offset, where.leader_epoch)

    async def seek_to_beginning(self, *partitions: Partition) -> None:
        """Continue at the first records of partitions, or of all assigned ones."""
        await self._seek_times(dict.fromkeys(self._named(partitions), EARLIEST))

    async def seek_to_end(self, *partitions: Partition) -> None:
        """Continue after the last records of partitions, or of all assigned ones."""
        await self._seek_times(dict.fromkeys(self._named(partitions), LATEST))

    async def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """Continue at the first records at or after a timestamp in ms: one for all, or one per partition."""
        if isinstance(timestamps, int):
            await self._seek_times(dict.fromkeys(self._named(()), timestamps))
        else:
            await self._seek_times({to_partition(partition): time for partition, time in timestamps.items()})

    async def seek_to_committed(self, *partitions: Partition) -> dict[TopicPartition, int | None]:
        """Continue at the committed offsets of the group; return them, None where there is none.

        A partition without one continues where a new reader of the group would: as `auto_offset_reset` says.
        """
        wanted = self._named(partitions)
        committed = await self.committed_offsets(wanted)
        for partition in wanted:
            if partition in committed and partition in self._positions:
                self.seek(partition, committed[partition])
            elif partition in self._positions:
                self._position_operations.start_over(self._positions[partition])
        return {
            partition: committed[partition].offset if partition in committed else None for partition in wanted
        }

    async def position(self, partition: Partition) -> int:
        """Return the offset of the next record of a partition to be delivered.

        Raises NoOffset if there is no offset to start from, PositionNotFound if it was not found within
        `default_api_timeout_ms`, with the cause, NotAssigned for other partitions.
        """
        return await self._lifecycle.opened.fetch.position_operations.position(to_partition(partition))

    def highwater(self, partition: Partition) -> int | None:
        """Return the high watermark of a partition in the last response; None before the first."""
        return self._positions[to_partition(partition)].high_watermark

    def last_stable_offset(self, partition: Partition) -> int | None:
        """Return the last stable offset of a partition in the last response; None before the first."""
        return self._positions[to_partition(partition)].last_stable_offset

    def lag(self, partition: Partition) -> int | None:
        """Return the lag of a partition as of the last response, without a request; None if unknown."""
        return self._position_operations.lag(self._positions[to_partition(partition)])

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        """Return the offsets of the first records of partitions."""
        wanted = {to_partition(partition): EARLIEST for partition in partitions}
        return await self._lifecycle.opened.fetch.offset_lookups.offsets(wanted)

    async def end_offsets(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int]:
        """Return where partitions end, one past their last record; None: those that are read.

        With `read_committed`, the end is the first offset of the first open transaction.
        """
        named = self.assignment() if partitions is None else partitions
        wanted = {to_partition(partition): LATEST for partition in named}
        return await self._lifecycle.opened.fetch.offset_lookups.offsets(wanted)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after a timestamp in ms by partition; None where there is none."""
        wanted = {to_partition(partition): time for partition, time in timestamps.items()}
        for time in wanted.values():
            if time < 0:
                raise ValueError(f"a timestamp cannot be {time}")
        found = await self._lifecycle.opened.fetch.offset_lookups.by_time(wanted)
        return {partition: None if answer.offset < 0 else answer for partition, answer in found.items()}

    # --- commits

    async def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Commit offsets for the group: after all delivered records, or those given.

        Raises ValueError without `group_id` and for invalid offsets, CommitFailed when the group assigned the
        partitions to others, and NoSuchPartitions at once for partitions that do not exist; offsets of the
        others are committed. An offset may carry metadata, as a pair or as OffsetAndMetadata.
        """
        wanted = self._to_commit(offsets)
        commits = self._lifecycle.opened.need_group().commits
        self._finish(wanted)
        await commits.commit(wanted)

    def commit_nowait(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> asyncio.Future[None]:
        """Commit without waiting; the future has the result, and need not be awaited."""
        wanted = self._to_commit(offsets)
        opened = self._lifecycle.opened
        commits = opened.need_group().commits
        self._finish(wanted)
        return commits.commit_nowait(wanted, opened.tasks)

    async def committed(self, partition: Partition) -> int | None:
        """Return the offset that the group committed for a partition; None if there is none."""
        found = await self.committed_offsets([partition])
        committed = found.get(to_partition(partition))
        return None if committed is None else committed.offset

    async def committed_offsets(
        self, partitions: Iterable[Partition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets with their metadata; partitions without one are left out."""
        wanted = [to_partition(partition) for partition in partitions]
        return dict(await self._lifecycle.opened.need_group().committed(wanted))

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for a producer that commits offsets of the group in a transaction.

        Where partitions of the last records were taken away meanwhile, the coordinator refuses it: abort.
        """
        return self._lifecycle.need_group().metadata()

    @property
    def session_ends_s(self) -> float | None:
        """Until when the group keeps this member if no further heartbeat is answered, by the loop's clock.

        None outside of a group. After that time others may have the partitions, though this consumer cannot
        know it yet: its process stood still, or the coordinator is out of reach.
        """
        return None if self._lifecycle.group is None else self._lifecycle.group.session_ends_s

    # --- the cluster

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic; None if it does not exist."""
        found = await self._find_topic(topic)
        if found is None or found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if found.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            need = Need(Operation.DESCRIBE, ResourceType.TOPIC, topic)
            raise error_about(found.error_code, f"topic {topic!r}", need)
        return {partition.partition_index for partition in found.partitions}

    async def topic_id(self, topic: str) -> UUID | None:
        """Return the id of a topic; None if it does not exist, or if its brokers have no ids (before 2.8)."""
        found = await self._find_topic(topic)
        return None if found is None or found.topic_id == ZERO_UUID else found.topic_id

    async def topics(self) -> set[str]:
        """Return the names of all topics; internal ones are left out if the configuration says so."""
        cluster = self._lifecycle.opened.cluster
        answer = await cluster.retry("finding topics", lambda: cluster.refresh(None))
        return {
            topic.name or ""
            for topic in answer.topics
            if not (topic.is_internal and self.config.exclude_internal_topics)
        }

    @property
    def metrics(self) -> ConsumerMetrics:
        """The metrics of this consumer."""
        return self._lifecycle.metrics

    # --- inside

    def _named(self, partitions: Iterable[Partition]) -> list[TopicPartition]:
        positions = self._lifecycle.opened.fetch.positions
        named = [to_partition(partition) for partition in partitions] or sorted(positions.assigned)
        for partition in named:
            if partition not in positions:
                raise NotAssigned(partition)
        return named

    async def _seek_times(self, times: Mapping[TopicPartition, int]) -> None:
        await self._lifecycle.opened.fetch.position_operations.seek_times(times)

    async def _find_topic(self, topic: str) -> MetadataResponseTopic | None:
        cluster = self._lifecycle.opened.cluster
        answer = await cluster.retry("finding a topic", lambda: cluster.refresh([topic]))
        return next((found for found in answer.topics if found.name == topic), None)

    async def _is_read(self, until: Mapping[TopicPartition, int] | None) -> bool:
        if not until:
            return False
        return all([await self.position(partition) >= offset for partition, offset in until.items()])

    def _finish(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        # Else the next automatic commit, at the latest that of `stop`, would go back behind this one.
        self._delivery.finish({partition: offset.offset for partition, offset in committed.items()})

    def _to_commit(
        self, offsets: Mapping[TopicPartition, Offset] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            given = ((state.partition, state.committable()) for state in self._positions)
            return {partition: offset for partition, offset in given if offset is not None}
        return to_commit(offsets)
