"""The sender: takes due batches to the leaders of their partitions, and hands acknowledgements out.

Order within a partition. With idempotence several batches of a partition may be on their way at once,
numbered in the order they go out. When one of them fails in a way that may pass, those behind it fail too,
for they leave a gap in the numbers; all go again, one at a time, in their order and with their numbers, until
none is a repetition any more. Without idempotence only one batch of a partition is on its way, and nothing
can overtake it.

A batch that is given up after it was numbered leaves a gap for good. Then the producer takes a new id, for
which numbers begin at 0. What was sent under the old id is repeated under the old id, since a broker may have
it already; a batch moves to the new id only when a broker refused its number, which proves that it has not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from ottla.client.cluster import Cluster, is_stale
from ottla.client.connection import Connection
from ottla.client.environment import chance
from ottla.client.errors import ClientError, DeadlineExceeded, UnsupportedByBroker
from ottla.client.retry import is_retriable
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import DeliveryTimeout, ProducerClosed
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.sending import Batch, Gathering
from ottla.producer.sequences import Sequences
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import Codec, convert_down
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

# Produce carries v2 batches from version 3 on; version 2 has magic 1, before that it is 0.
_MAGIC_BY_VERSION: Final = {0: 0, 1: 0, 2: 1}

_NUMBER_REFUSED: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)

# A broker recognizes repetitions of the last so many batches of a producer in a partition.
_BROKER_RECOGNIZES: Final = 5

# From about these sizes on compression takes some milliseconds, and is done on a thread.
_SLOW_BYTES: Final = {Codec.GZIP: 128 * 1024}
_SLOW_BYTES_OTHERWISE: Final = 512 * 1024
# zstd takes a hundred times as long at level 19 as at 3, and lz4 thirty times.
_QUICK_LEVEL: Final = 3
_SLOW_BYTES_BEYOND: Final = 8 * 1024

# Batches also grow too old; a look once a second is precise enough for that.
_LONGEST_SLEEP_MS: Final = 1_000.0


class TransactionalSide(Protocol):
    """What the sender asks of a transactional producer."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...

    def is_registered(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the coordinator knows all of these partitions already."""

    async def register(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the coordinator know partitions before anything is written to them."""

    def failed(self, error: BaseException, *, numbered: bool = False) -> None:
        """Hear that a record of the transaction was given up; `numbered`: its batch leaves a gap."""


class Sender:
    """One task that looks for due batches, and one per request while it is out."""

    def __init__(
        self,
        cluster: Cluster,
        gathering: Gathering,
        config: ProducerConfig,
        metrics: ProducerMetrics,
        *,
        on_metadata: Callable[[str], None],
        on_room: Callable[[], None],
        on_batch: Callable[[Batch], None] | None = None,
        transactions: TransactionalSide | None = None,
    ) -> None:
        self._cluster = cluster
        self._gathering = gathering
        self._config = config
        self._metrics = metrics
        self._on_metadata, self._on_room, self._on_batch = on_metadata, on_room, on_batch
        self._transactions = transactions
        self._sequences = Sequences()
        self._idempotent = config.required_acks == -1 and config.enable_idempotence is not False
        self._awake = asyncio.Event()
        self._refreshing: set[str] = set()
        self._requests_out: dict[int, int] = defaultdict(int)
        self._unnumbered: set[Batch] = set()  # refused under their numbers: they need new ones
        self._tasks: asyncio.TaskGroup | None = None

    def now_ms(self) -> float:
        """The loop's time; what batches are dated with."""
        return asyncio.get_running_loop().time() * 1_000

    def wake(self) -> None:
        """Look again: something changed."""
        self._awake.set()

    @property
    def requests_in_flight(self) -> int:
        """Requests that were not answered yet."""
        return sum(self._requests_out.values())

    def stop(self) -> None:
        """Give everything up."""
        for batch in self._gathering.everything():
            self._end(batch, ProducerClosed("the producer was closed before the record was acknowledged"))

    def drop_unsent(self, error: BaseException) -> None:
        """Give up what is not with a broker: its transaction is going to be aborted."""
        for batch in self._gathering.everything():
            if not batch.in_flight:
                if batch.was_sent and self._transactions is not None:
                    self._transactions.failed(error, numbered=True)
                self._end(batch, error)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Send until cancelled."""
        self._tasks = tasks
        self._awake = asyncio.Event()  # the last one may be of another event loop
        # A task that was cancelled before its first turn, as the last run ended, took nothing of it back.
        self._refreshing.clear()
        self._requests_out.clear()
        while True:
            self._awake.clear()
            self._expire()
            await self._sleep_until(await self._send_due())

    async def _send_due(self) -> float | None:
        """Have batches go out; return when to look again."""
        due, next_ms = await self._next_due()
        for leader, batches in self._by_leader(due).items():
            self._start(leader, batches)
            self.wake()  # the next batches of the same partitions may be due as well
        return next_ms

    async def _next_due(self) -> tuple[list[Batch], float | None]:
        """Batches that can be numbered and go out now, with nothing awaited; and when to look again."""
        due, next_ms = self._gathering.ready(self.now_ms(), self._most_in_flight)
        slow = [batch for batch in due if self._is_slow(batch)]
        if not slow and self._is_prepared(due):
            return due, next_ms
        await self._pack_slow(slow)
        if not await self._prepare(due):
            return [], self.now_ms() + self._config.client.retry_backoff_ms
        # While that took its time some were given up, and others were put back that have to go first.
        prepared = set(due)
        still, next_ms = self._gathering.ready(self.now_ms(), self._most_in_flight)
        return [batch for batch in still if batch in prepared], next_ms

    @property
    def _most_in_flight(self) -> int:
        most = self._config.client.max_in_flight_requests_per_connection
        return min(most, _BROKER_RECOGNIZES) if self._idempotent else 1

    async def _sleep_until(self, next_ms: float | None) -> None:
        if self._awake.is_set():
            await asyncio.sleep(0)
            return
        wait_ms = _LONGEST_SLEEP_MS if next_ms is None else min(next_ms - self.now_ms(), _LONGEST_SLEEP_MS)
        try:
            async with asyncio.timeout(max(0.0, wait_ms) / 1_000):
                await self._awake.wait()
        except TimeoutError:
            return

    def _expire(self) -> None:
        timeout_ms = self._config.delivery_timeout_ms
        # A transaction must not end while records of it may be landing: those are waited for.
        for batch in self._gathering.expired(self.now_ms(), timeout_ms, self._transactions is None):
            self._give_up(batch, DeliveryTimeout(batch.partition, timeout_ms, batch.last_error))

    # --- before sending

    def _is_prepared(self, due: Sequence[Batch]) -> bool:
        """Whether `_prepare` has nothing to do."""
        if not due:
            return True
        if self._transactions is not None:
            return self._transactions.is_registered({batch.partition for batch in due})
        return self._sequences.has_id or not self._idempotent

    async def _prepare(self, due: Sequence[Batch]) -> bool:
        """Get what has to be there before batches can be numbered; False to try again later."""
        try:
            if self._transactions is not None:
                await self._transactions.register({batch.partition for batch in due})
            elif self._idempotent and not self._sequences.has_id:
                await self._obtain_id()
        except (ClientError, KafkaError) as error:
            # A step of a transaction has a bound of its own; what bounds a record is the delivery timeout.
            if is_retriable(error) or isinstance(error, DeadlineExceeded):
                for batch in due:
                    batch.last_error = error
                return False
            for batch in due:
                self._give_up(batch, error)
            return False
        return True

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
            raise error_for(answer.error_code)
        self._sequences.start(answer.producer_id, answer.producer_epoch)

    def _by_leader(self, due: Sequence[Batch]) -> dict[int, list[Batch]]:
        found: dict[int, list[Batch]] = defaultdict(list)
        sizes: dict[int, int] = defaultdict(int)
        for batch in due:
            if batch.done:
                continue
            leader = self._cluster.known_leader(batch.partition)
            if leader is None:
                self._find_leader(batch.partition.topic)
            elif not self._may_go(leader, batch):
                continue  # an answer has to come first, and that wakes us
            elif sizes[leader] and sizes[leader] + batch.size_in_bytes > self._config.max_request_size:
                self.wake()  # the rest goes out with the next look
            else:
                sizes[leader] += batch.size_in_bytes
                found[leader].append(batch)
        return found

    def _may_go(self, leader: int, batch: Batch) -> bool:
        if self._requests_out[leader] >= self._config.client.max_in_flight_requests_per_connection:
            return False
        if not batch.queue.in_flight or batch.was_sent:
            return True
        # A broker that knows no number of an id yet takes any: until the first is in, nothing may follow it.
        # And two ids know nothing of each other's numbers: the new one waits until the old one's are in.
        oldest = batch.queue.batches[0]
        return not (oldest.in_flight and oldest.base_sequence == 0) and not self._is_overtaking(batch)

    def _is_overtaking(self, batch: Batch) -> bool:
        current = self._sequences.producer_id
        return any(
            one.in_flight and one.was_sent and one.producer_id != current for one in batch.queue.batches
        )

    def _find_leader(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._tasks.create_task(self._refresh(topic))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._cluster.refresh([topic], may_create=True)
            self._on_metadata(topic)
            self.wake()  # those that have a leader do not wait for those that have none
            route = self._gathering.routes.get(topic)  # none where the topic is not there any more
            indexes = route.partitions if route is not None else ()
            if route is None or any(
                self._cluster.known_leader(TopicPartition(topic, index)) is None for index in indexes
            ):
                await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)
        except (ClientError, KafkaError):
            # The batches come round again, and are given up when their time is over.
            await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)
        finally:
            self._refreshing.discard(topic)
            self.wake()

    def _start(self, leader: int, batches: Sequence[Batch]) -> None:
        assert self._tasks is not None
        for batch in batches:
            self._gathering.take(batch)
            batch.pack(self._config.codec_for(batch.partition.topic), self._config.compression_level)
            self._number(batch)
            if self._on_batch is not None:
                self._on_batch(batch)
        self._requests_out[leader] += 1
        self._tasks.create_task(self._deliver(leader, batches))

    def _is_slow(self, batch: Batch) -> bool:
        """Whether packing a batch takes so long that it is done on a thread."""
        codec = self._config.codec_for(batch.partition.topic)
        return bool(codec) and batch.data is None and batch.size_in_bytes > self._slow_bytes(codec)

    async def _pack_slow(self, slow: Sequence[Batch]) -> None:
        for batch in slow:
            codec = self._config.codec_for(batch.partition.topic)
            self._gathering.close(batch)
            try:
                await asyncio.to_thread(batch.pack, codec, self._config.compression_level)
            except MemoryError as error:
                self._give_up(batch, error)

    def _slow_bytes(self, codec: Codec) -> int:
        if codec not in _SLOW_BYTES and (self._config.compression_level or 0) > _QUICK_LEVEL:
            return _SLOW_BYTES_BEYOND
        return _SLOW_BYTES.get(codec, _SLOW_BYTES_OTHERWISE)

    def _number(self, batch: Batch) -> None:
        if batch.was_sent and batch not in self._unnumbered:
            return  # a repetition keeps its numbers: that is how the broker knows it
        if not self._unnumbered and batch.attempts and not self._idempotent:
            return  # it has its header, and no numbers
        self._unnumbered.discard(batch)
        codec = self._config.codec_for(batch.partition.topic)
        if self._transactions is not None:
            self._sequences.continue_as(self._transactions.producer_id, self._transactions.producer_epoch)
        base = self._sequences.take(batch.partition, batch.record_count)
        batch.number(
            codec,
            self._sequences.producer_id,
            self._sequences.producer_epoch,
            base,
            self._transactions is not None,
        )

    # --- out and back

    async def _deliver(self, leader: int, batches: Sequence[Batch]) -> None:
        try:
            connection = await self._cluster.connection_to_leader(leader)
        except (ClientError, KafkaError) as error:
            self._all_failed(batches, error)
        else:
            await self._exchange(connection, [batch for batch in batches if not batch.done])
        finally:
            self._requests_out[leader] -= 1
            self.wake()

    async def _exchange(self, connection: Connection, batches: Sequence[Batch]) -> None:
        if not batches:
            return  # their time was over before there was a connection
        try:
            answers = await self._send(connection, batches)
        except (ClientError, KafkaError) as error:
            # With acks=0 no broker knows repetitions: what may have been written is not sent again.
            self._all_failed(batches, error, may_repeat=self._config.required_acks != 0)
        else:
            too_large = [batch for batch in batches if self._is_to_be_split(batch, answers)]
            for batch in batches:
                if batch not in too_large:
                    self._answered(batch, answers.get(batch.partition))
            for batch in too_large:
                await self._split(batch)

    async def _send(
        self, connection: Connection, batches: Sequence[Batch]
    ) -> dict[TopicPartition, PartitionProduceResponse]:
        began_ms = self.now_ms()
        newest = connection.versions.get(ApiKey.PRODUCE, (0, 0))[1]
        request = self._request(batches, _MAGIC_BY_VERSION.get(newest, 2))
        self._count(batches)
        if self._config.required_acks == 0:
            await connection.send_unanswered(request)
            return {batch.partition: PartitionProduceResponse(base_offset=-1) for batch in batches}
        answer = await connection.send(request, ProduceResponse)
        self._metrics.answered(self.now_ms() - began_ms, answer.throttle_time_ms)
        return {
            TopicPartition(topic.name, each.index): each
            for topic in answer.responses
            for each in topic.partition_responses
        }

    def _count(self, batches: Sequence[Batch]) -> None:
        now_ms = self.now_ms()
        self._metrics.request_total += 1
        for batch in batches:
            self._metrics.batch_sent(
                batch.partition.topic,
                batch.record_count,
                len(batch.data or b""),
                now_ms - batch.created_ms,
                batch.attempts,
            )

    def _request(self, batches: Sequence[Batch], magic: int) -> ProduceRequest:
        topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
        for batch in batches:
            data = batch.data or b""
            records = data if magic == 2 else convert_down(data, magic)
            part = PartitionProduceData(index=batch.partition.partition, records=records)
            topics[batch.partition.topic].append(part)
        return ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=self._config.required_acks,
            timeout_ms=self._config.client.request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )

    # --- what became of it

    def _is_to_be_split(
        self, batch: Batch, answers: Mapping[TopicPartition, PartitionProduceResponse]
    ) -> bool:
        answer = answers.get(batch.partition)
        too_large = answer is not None and answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        return too_large and batch.record_count > 1 and not batch.done

    def _answered(self, batch: Batch, answer: PartitionProduceResponse | None) -> None:
        if batch.done:
            return  # given up while it was out, when the producer was closed
        if answer is None:
            self._failed(batch, ClientError(f"the broker's answer leaves out {batch.partition}"))
        elif answer.error_code == ErrorCode.NONE:
            self._succeed(batch, answer.base_offset, answer.log_append_time_ms)
        elif answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._succeed(batch, -1, -1)  # it is in the log already; where, the broker does not know any more
        else:
            error = error_for(answer.error_code, answer.error_message)
            if answer.error_code in _NUMBER_REFUSED and self._idempotent and not self._is_final(batch, error):
                self._refused(batch, error)
            else:
                self._failed(batch, error)

    async def _split(self, batch: Batch) -> None:
        """Send a batch that was too large as two; none of it was written, so they share its numbers.

        Until that is done it counts as being out, and keeps its place before those that follow.
        """
        codec = self._config.codec_for(batch.partition.topic)
        level = self._config.compression_level
        try:
            parts = await asyncio.to_thread(self._gathering.halves, batch, codec, level)
        except MemoryError as error:
            self._give_up(batch, error)
            return
        if batch.done:
            return  # given up meanwhile
        self._gathering.split(batch, parts)
        following = batch.base_sequence
        for part in parts:
            part.attempts += 1
            part.number(
                codec, batch.producer_id, batch.producer_epoch, following, self._transactions is not None
            )
            following = self._sequences.after(following, part.record_count)

    def _is_final(self, batch: Batch, error: KafkaError) -> bool:
        """Whether a refused number is the end: in a transaction there is no new id to go on under."""
        # Whoever refused the epoch will do so again: the transaction is to be aborted, which gets a new one.
        fenced = error.code == ErrorCode.INVALID_PRODUCER_EPOCH
        return self._transactions is not None and (fenced or batch.queue.batches[0] is batch)

    def _refused(self, batch: Batch, error: KafkaError) -> None:
        """A number does not follow the last one the broker knows. So the batch is not written."""
        if batch.queue.batches[0] is batch:  # nothing in front of it can close the gap
            if batch.producer_id == self._sequences.producer_id:
                self._sequences.give_up_id()
            self._unnumbered.add(batch)
        self._retry(batch, error)

    def _all_failed(
        self, batches: Iterable[Batch], error: ClientError | KafkaError, *, may_repeat: bool = True
    ) -> None:
        for batch in batches:
            self._failed(batch, error, may_repeat=may_repeat)

    def _failed(self, batch: Batch, error: ClientError | KafkaError, *, may_repeat: bool = True) -> None:
        if batch.done:
            return
        if is_stale(error):
            self._cluster.forget(batch.partition.topic)
        if not may_repeat or not is_retriable(error):
            self._give_up(batch, error)
        else:
            self._retry(batch, error)

    def _retry(self, batch: Batch, error: ClientError | KafkaError) -> None:
        batch.last_error = error
        if batch.attempts >= self._config.retries:
            self._give_up(batch, error)
            return
        delay_ms = self._cluster.backoff.delay_ms(batch.attempts, chance())
        self._gathering.put_back(batch, self.now_ms() + delay_ms)

    def _give_up(self, batch: Batch, error: BaseException) -> None:
        if batch.done:
            return  # its transaction was aborted meanwhile
        if batch.was_sent and self._transactions is None and batch.producer_id == self._sequences.producer_id:
            self._sequences.give_up_id()
        if self._transactions is not None:
            self._transactions.failed(error, numbered=batch.was_sent)
        self._metrics.batch_failed(batch.partition.topic, batch.record_count)
        self._end(batch, error)

    def _end(self, batch: Batch, error: BaseException) -> None:
        self._unnumbered.discard(batch)
        self._gathering.finish(batch)
        batch.fail(error)
        self._on_room()

    def _succeed(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        self._gathering.finish(batch)
        batch.succeed(base_offset, log_append_time_ms)
        self._on_room()
