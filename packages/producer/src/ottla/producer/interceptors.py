"""What interceptors of a producer are told. Subclass ProducerInterceptor, or have any of its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.producer.record import ProducerRecord, RecordMetadata

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition


class ProducerInterceptor:
    """Is told of a record's way; every method may be left out.

    Methods run on the event loop between other work and must be quick. What they raise is logged.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """See a record before it is serialized; return another in its place, or None to leave it."""
        return None

    def on_enqueue(self, partition: TopicPartition, record: ProducerRecord) -> None:
        """See a record that was put into a batch; its key and value are bytes now."""

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        """See a batch as it leaves the queue for a broker."""

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """Hear where a record was written, or why it was not."""
