"""What interceptors of a consumer are told. Subclass ConsumerInterceptor, or have any of its methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.group_metadata import OffsetAndMetadata
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition


class ConsumerInterceptor:
    """Is told of records and commits; every method may be left out.

    Methods run on the event loop between other work and must be quick. What they raise is logged.
    """

    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord] | None:
        """See records before they are given out; return others in their place, or None to leave them."""
        return None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Hear what was committed."""
