"""The interface of consumer interceptors: subclass ConsumerInterceptor, or define any of its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.group_metadata import OffsetAndMetadata
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition


class ConsumerInterceptor:
    """Observes records and commits; every method is optional.

    Methods run on the event loop and must be quick. Exceptions they raise are logged.
    """

    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord] | None:
        """Receive records before they are delivered; return others in their place, or None to keep them."""
        return None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Receive offsets after they were committed."""
