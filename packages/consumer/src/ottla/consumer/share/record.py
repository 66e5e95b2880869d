"""Records of share groups, one by one or in batches, with the acknowledgements that they take."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, overload

from ottla.client.displays import Table, Tabular, record_table
from ottla.client.field_types import K_co, V_co
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.share.errors import AlreadyAcknowledged
from ottla.consumer.share.session import AcknowledgeType, SharePartition
from ottla.protocol.records import TimestampType
from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class Lock:
    """Where and when records were acquired: the session that has their locks."""

    node: int
    generation: int
    partition: SharePartition


class Acknowledger(Protocol):
    """Sends the acknowledgements of records."""

    def acknowledge(self, record: ShareRecord[Any, Any], kind: AcknowledgeType) -> Awaitable[None]:
        """Acknowledge a record soon; await the result for the broker's answer."""


class ShareRecord(Generic[K_co, V_co]):
    """A record that this member acquired: no other gets it until it is released or its lock ends.

        async with record:
            await handle(record.value)

    accepts the record at the end of the block, and releases it on an exception. The methods that acknowledge
    it take effect without `await`; awaited, they return once the broker has the acknowledgement, and raise
    AcknowledgementFailed if it refused.
    """

    __slots__ = ("_acknowledger", "choice", "delivery_count", "lock", "lock_ends_s", "record")

    def __init__(
        self,
        record: ConsumerRecord[K_co, V_co],
        delivery_count: int,
        lock: Lock,
        lock_ends_s: float,
        acknowledger: Acknowledger,
    ) -> None:
        self.record = record
        """The record as consumers have it."""
        self.delivery_count = delivery_count
        """How often it was given to a member, this time included."""
        self.lock = lock
        self.lock_ends_s = lock_ends_s
        """The time of the loop's clock at which others may get it."""
        self.choice: AcknowledgeType | None = None
        """The acknowledgement that it has; None without one."""
        self._acknowledger = acknowledger

    # --- acknowledgements

    def accept(self) -> Awaitable[None]:
        """Acknowledge that it was handled: it is not delivered again."""
        return self._choose(AcknowledgeType.ACCEPT)

    def release(self) -> Awaitable[None]:
        """Give it back: a member gets it again, unless it was delivered as often as the group permits."""
        return self._choose(AcknowledgeType.RELEASE)

    def reject(self) -> Awaitable[None]:
        """Acknowledge that it can never be handled: it is not delivered again."""
        return self._choose(AcknowledgeType.REJECT)

    def renew(self) -> Awaitable[None]:
        """Keep it for the time of a lock from now on (KIP-1222, since Kafka 4.2)."""
        if self.choice is not None:
            raise AlreadyAcknowledged(self.topic_partition, self.offset, self.choice.name.lower())
        return self._acknowledger.acknowledge(self, AcknowledgeType.RENEW)

    def _choose(self, kind: AcknowledgeType) -> Awaitable[None]:
        if self.choice not in (None, kind):
            assert self.choice is not None
            raise AlreadyAcknowledged(self.topic_partition, self.offset, self.choice.name.lower())
        return self._acknowledger.acknowledge(self, kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.choice is None:
            self._choose(AcknowledgeType.ACCEPT if error is None else AcknowledgeType.RELEASE)

    # --- the record

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.record.partition

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.record.topic_partition

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        return self.record.offset

    @property
    def key(self) -> K_co:
        """The key."""
        return self.record.key

    @property
    def value(self) -> V_co:
        """The value."""
        return self.record.value

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in order; keys may repeat."""
        return self.record.headers

    @property
    def timestamp_ms(self) -> int:
        """The time of creation or of append, as `timestamp_type` says."""
        return self.record.timestamp_ms

    @property
    def timestamp_type(self) -> TimestampType:
        """The kind of the timestamp."""
        return self.record.timestamp_type

    def __repr__(self) -> str:
        place = f"{self.topic_partition} at offset {self.offset}"
        return f"ShareRecord({place}, delivery {self.delivery_count})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShareBatch(Tabular, Sequence[ShareRecord[K_co, V_co]], Generic[K_co, V_co]):
    """Records of one partition, in order.

    Its methods acknowledge all records that have no acknowledgement yet; `async with batch:` accepts them at
    the end of the block, and releases them on an exception.
    """

    topic_partition: TopicPartition
    records: list[ShareRecord[K_co, V_co]]

    def accept(self) -> list[Awaitable[None]]:
        """Accept the records."""
        return self._choose(AcknowledgeType.ACCEPT)

    def release(self) -> list[Awaitable[None]]:
        """Release the records."""
        return self._choose(AcknowledgeType.RELEASE)

    def reject(self) -> list[Awaitable[None]]:
        """Reject the records."""
        return self._choose(AcknowledgeType.REJECT)

    def _choose(self, kind: AcknowledgeType) -> list[Awaitable[None]]:
        return [record._choose(kind) for record in self.records if record.choice is None]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._choose(AcknowledgeType.ACCEPT if error is None else AcknowledgeType.RELEASE)

    def __repr__(self) -> str:
        return f"ShareBatch({self.topic_partition}, {len(self.records)} records)"

    def _table(self) -> Table:
        title = repr(self).removeprefix("ShareBatch")
        return record_table(title, [record.record for record in self.records])

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ShareRecord[K_co, V_co]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> ShareRecord[K_co, V_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ShareRecord[K_co, V_co]]: ...
    def __getitem__(self, index: int | slice) -> ShareRecord[K_co, V_co] | list[ShareRecord[K_co, V_co]]:
        return self.records[index]
