"""Appends serialized records, with a custom partitioner and interceptors where the application has some."""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.interceptors import Interceptors
from ottla.producer.accumulator import Acknowledgement, Appender, Batch, TopicInfo, packed_headers
from ottla.producer.partitioner import Partitioner
from ottla.producer.record import ProducerRecord


class RecordAppender:
    """Appends one serialized record at a time, and calls the partitioner and the interceptors for it."""

    def __init__(
        self, appender: Appender, partitioner: Partitioner | None, interceptors: Interceptors
    ) -> None:
        self._appender = appender
        self._accumulator = appender.accumulator
        self._partitioner = partitioner
        self._batch_full = getattr(partitioner, "batch_full", None)
        self._interceptors = interceptors
        self._on_enqueue = interceptors.methods("on_enqueue")
        self._on_batch = interceptors.methods("on_batch")
        self._on_acknowledgement = interceptors.methods("on_acknowledgement")

    def append(self, info: TopicInfo, record: ProducerRecord) -> Acknowledgement:
        """Append a serialized record.

        Raises NoSuchPartition if the topic does not have its partition, ValueError if the partitioner chose
        such a one.
        """
        partition, is_chosen = record.partition, False
        if partition is None and self._partitioner is not None:
            partition, is_chosen = _chosen(self._partitioner, info, record.key), True
        begun = self._accumulator.batches_begun
        sent = self._appender.append(
            info,
            record.key,
            record.value,
            partition,
            record.timestamp_ms,
            packed_headers(record.headers),
            is_chosen,
        )
        if self._batch_full is not None and self._accumulator.batches_begun > begun:
            self._batch_full(info.topic)
        if self._on_enqueue:
            self._interceptors.tell(self._on_enqueue, sent.topic_partition, record)
        return sent

    def append_and_watch(self, info: TopicInfo, record: ProducerRecord) -> Acknowledgement:
        """Append a serialized record, and call `on_acknowledgement` once it is written or failed."""
        sent = self.append(info, record)
        self.watch(sent)
        return sent

    def watch(self, sent: Acknowledgement) -> None:
        """Call `on_acknowledgement` once a record is written or failed."""
        if self._on_acknowledgement:
            sent.add_done_callback(self._acknowledged)

    def choose(self, info: TopicInfo) -> Callable[[bytes | None], int] | None:
        """Return a function of a key that calls the custom partitioner, and `batch_full` for full batches."""
        partitioner, batch_full, accumulator = self._partitioner, self._batch_full, self._accumulator
        if partitioner is None:
            return None
        begun = accumulator.batches_begun

        def choose(key: bytes | None) -> int:
            nonlocal begun
            if batch_full is not None and accumulator.batches_begun > begun:
                begun = accumulator.batches_begun
                batch_full(info.topic)
            return _chosen(partitioner, info, key)

        return choose

    @property
    def batch_listener(self) -> Callable[[Batch], None] | None:
        """The function to call for a batch as it is sent, or None where no interceptor has `on_batch`."""
        return self._batch_sent if self._on_batch else None

    def _batch_sent(self, batch: Batch) -> None:
        self._interceptors.tell(self._on_batch, batch.partition, batch.record_count, len(batch.data or b""))

    def _acknowledged(self, sent: Acknowledgement) -> None:
        error = sent.exception()
        metadata = sent.result() if error is None else None
        self._interceptors.tell(self._on_acknowledgement, metadata, error)


def _chosen(partitioner: Partitioner, info: TopicInfo, key: bytes | None) -> int:
    """Return the partition that a custom partitioner chooses. Raises ValueError for one that is not there."""
    partition = partitioner.partition(info.topic, key, info.count, info.available)
    if not 0 <= partition < info.count:
        raise ValueError(
            f"the partitioner chose {partition} for {info.topic!r}, which has 0 to {info.count - 1}"
        )
    return partition
