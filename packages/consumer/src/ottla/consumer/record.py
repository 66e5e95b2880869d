"""Records as the consumer delivers them, one by one or in batches, and the interceptors that see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, overload

from ottla.client.displays import Table, Tabular, record_table
from ottla.client.field_types import K_co, V_co
from ottla.consumer._records import ConsumerRecord
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.client.group_metadata import OffsetAndMetadata

__all__ = ["ConsumerInterceptor", "ConsumerRecord", "Record", "RecordBatch"]

Record = ConsumerRecord
"""The short name, for annotations: `Record[str, Order]`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordBatch(Tabular, Sequence[ConsumerRecord[K_co, V_co]], Generic[K_co, V_co]):
    """Records of one partition, in order, with the offset to continue at."""

    topic_partition: TopicPartition
    records: list[ConsumerRecord[K_co, V_co]]
    next_offset: int
    """The offset after this batch; offsets in between may be missing."""
    high_watermark: int
    """The high watermark of the partition when the batch was fetched."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.topic_partition.partition

    @property
    def base_offset(self) -> int:
        """The offset of the first record."""
        return self.records[0].offset

    def __repr__(self) -> str:
        offsets = f"offsets {self.base_offset} to {self.records[-1].offset}" if self.records else "empty"
        return f"RecordBatch({self.topic_partition}, {len(self.records)} records, {offsets})"

    def _table(self) -> Table:
        return record_table(repr(self).removeprefix("RecordBatch"), self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ConsumerRecord[K_co, V_co]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[K_co, V_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[K_co, V_co]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> ConsumerRecord[K_co, V_co] | list[ConsumerRecord[K_co, V_co]]:
        return self.records[index]


class ConsumerInterceptor:
    """Observes records and commits; every method is optional.

    Methods run on the event loop and must be quick. Exceptions they raise are logged.
    """

    def on_consume(
        self, records: Sequence[ConsumerRecord[Any, Any]]
    ) -> Sequence[ConsumerRecord[Any, Any]] | None:
        """Receive records before they are delivered; return others in their place, or None to keep them."""
        return None

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Receive offsets after they were committed."""
