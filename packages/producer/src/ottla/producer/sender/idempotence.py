"""Idempotence: producer id and sequence of each batch, so that a broker recognizes a repetition (KIP-98).

A batch that fails after it was numbered leaves a gap for good. Then the producer takes a new id, whose
sequences begin at 0. A batch that was sent under the old id is repeated under the old id, since a broker may
have it already; it moves to the new id only when a broker rejects its sequence, which proves that no broker
has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from ottla.client.cluster import Cluster
from ottla.client.errors import IDEMPOTENT_WRITE, UnsupportedByBroker, error_about
from ottla.producer.accumulator import Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.sender.sequence_numbers import SequenceNumbers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.topics import TopicPartition

_SEQUENCE_REJECTED: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

# A broker recognizes repetitions of the last five batches of a producer in a partition.
_BROKER_RECOGNIZES: Final = 5


class TransactionCoordinator(Protocol):
    """The coordinator, as the sending of batches needs it."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...

    @property
    def produce_version(self) -> int | None:
        """The version of Produce that the transaction needs; None: any."""

    def sends_to(self, partition: TopicPartition) -> None:
        """Note that a batch is about to be sent to a partition."""

    def is_registered(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether all of these partitions are registered, or need not be."""

    async def register(self, partitions: Iterable[TopicPartition]) -> None:
        """Register partitions, before anything is written to them."""

    async def meaning_of(self, rejection: KafkaError) -> Exception:
        """Return what a leader's rejection of the epoch means: ProducerFenced, or the rejection itself."""

    def failed(self, error: BaseException, *, numbered: bool = False) -> None:
        """Note that a record of the transaction failed; `numbered`: its batch leaves a gap."""


class Idempotence:
    """Obtains the producer id and numbers batches in the order in which they are sent."""

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        sequences: SequenceNumbers,
        coordinator: TransactionCoordinator | None = None,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._sequences = sequences
        self._coordinator = coordinator
        self._idempotent = config.required_acks == -1 and config.enable_idempotence is not False
        self._rejected: set[Batch] = set()  # a broker rejected their sequences: they need new ones

    @property
    def max_in_flight(self) -> int:
        """How many batches of a partition may be in flight at once."""
        most = self._config.client.max_in_flight_requests_per_connection
        return min(most, _BROKER_RECOGNIZES) if self._idempotent else 1

    @property
    def produce_version(self) -> int | None:
        """The version of Produce that the transaction needs; None: any."""
        return None if self._coordinator is None else self._coordinator.produce_version

    def is_ready(self, batches: Sequence[Batch]) -> bool:
        """Whether batches can be numbered now: `prepare` would send no request."""
        if not batches:
            return True
        if self._coordinator is not None:
            return self._coordinator.is_registered({batch.partition for batch in batches})
        return self._sequences.has_id or not self._idempotent

    async def prepare(self, batches: Sequence[Batch]) -> None:
        """Obtain an id, or register the partitions. Raises ClientError or KafkaError."""
        if self._coordinator is not None:
            await self._coordinator.register({batch.partition for batch in batches})
        elif self._idempotent and not self._sequences.has_id:
            await self._obtain_id()

    def may_follow(self, batch: Batch) -> bool:
        """Whether a batch may be sent while older ones of its partition are in flight."""
        if not batch.queue.in_flight or batch.was_sent:
            return True
        # A broker that has no sequence of an id yet accepts any: nothing may follow the first batch before it
        # is written. And the sequences of two ids have no order: a new id waits for the batches of the old
        # one.
        oldest = batch.queue.batches[0]
        return not (oldest.in_flight and oldest.base_sequence == 0) and not self._overtakes_old_id(batch)

    def number(self, batch: Batch) -> None:
        """Write id and sequence into a packed batch; a retry keeps those it has."""
        if batch.was_sent and batch not in self._rejected:
            return  # by its sequence the broker recognizes the repetition
        if not self._rejected and batch.attempts and not self._idempotent:
            return  # its header is written, without a sequence
        self._rejected.discard(batch)
        coordinator = self._coordinator
        if coordinator is not None:
            self._sequences.continue_as(coordinator.producer_id, coordinator.producer_epoch)
            coordinator.sends_to(batch.partition)
        base = self._sequences.take(batch.partition, batch.record_count)
        batch.write_header(
            self._config.codec_for(batch.partition.topic),
            self._sequences.producer_id,
            self._sequences.producer_epoch,
            base,
            coordinator is not None,
        )

    def number_parts(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """Number the halves of a split batch: nothing of it was written, so they share its sequences."""
        codec = self._config.codec_for(batch.partition.topic)
        following = batch.base_sequence
        for part in parts:
            part.write_header(
                codec, batch.producer_id, batch.producer_epoch, following, self._coordinator is not None
            )
            following = self._sequences.after(following, part.record_count)

    def is_sequence_rejected(self, batch: Batch, error: KafkaError) -> bool:
        """Whether a broker rejected the sequence of a batch that can get a new number."""
        return (
            error.code in _SEQUENCE_REJECTED and self._idempotent and not self._ends_transaction(batch, error)
        )

    def rejected(self, batch: Batch) -> None:
        """Give a batch a new sequence before its retry: a broker rejected the one it has."""
        if batch.queue.batches[0] is batch:  # no older batch can close the gap
            if batch.producer_id == self._sequences.producer_id:
                self._sequences.give_up_id()
            self._rejected.add(batch)

    def failed(self, batch: Batch) -> None:
        """Give up the id if the failed batch leaves a gap in its sequences."""
        if batch.was_sent and self._coordinator is None and batch.producer_id == self._sequences.producer_id:
            self._sequences.give_up_id()

    def topic_recreated(self, topic: str) -> None:
        """Begin with new numbers: the logs of a topic are others now, and know no sequence of this producer.

        Batches that were sent keep their numbers, and no other follows them until they are written. A
        transaction keeps its id, too: where a log rejects the sequence, the transaction fails.
        """
        if self._coordinator is None and self._sequences.has_numbered(topic):
            self._sequences.give_up_id()

    def forget(self, batch: Batch) -> None:
        """Forget a batch that is never sent again."""
        self._rejected.discard(batch)

    def _ends_transaction(self, batch: Batch, error: KafkaError) -> bool:
        """Whether a rejected sequence fails the transaction, which cannot go on under a new id."""
        # A leader that rejected the epoch will reject it again: the abort obtains a new one.
        fenced = error.code == ErrorCode.INVALID_PRODUCER_EPOCH
        return self._coordinator is not None and (fenced or batch.queue.batches[0] is batch)

    def _overtakes_old_id(self, batch: Batch) -> bool:
        current = self._sequences.producer_id
        return any(
            older.in_flight and older.was_sent and older.producer_id != current
            for older in batch.queue.batches
        )

    async def _obtain_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            answer = await self._cluster.send_to_any(request, InitProducerIdResponse)
        except UnsupportedByBroker:
            if self._config.enable_idempotence:
                raise
            self._idempotent = False  # a broker before 0.11
            return
        if answer.error_code != ErrorCode.NONE:
            raise error_about(answer.error_code, None, IDEMPOTENT_WRITE)
        self._sequences.start(answer.producer_id, answer.producer_epoch)
