"""Interceptors of a producer: subclasses of ProducerInterceptor, or any object with some of its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.producer.record import ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition


class ProducerInterceptor:
    """Sees records on their way; every method may be left out.

    Methods run on the event loop and must not block. Their exceptions are logged.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """See a record before it is serialized; return another in its place, or None to leave it."""
        return None

    def on_enqueue(self, partition: TopicPartition, record: ProducerRecord) -> None:
        """See a record that was appended to a batch; its key and value are bytes."""

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        """See a batch as it is sent to a broker."""

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """See the metadata of a record that was written, or the error of one that was not."""
