"""Acquire records from the leaders of the assigned partitions, and acknowledge them: one session per broker.

Records are acquired when the application waits for some and none are buffered: each is locked from then on,
and would only grow old in a buffer. Acknowledgements go out with the next fetch, at once when their result is
awaited, and otherwise after a short time, all of a broker together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from ottla.client.cluster import Cluster
from ottla.client.connection_pool import Pool
from ottla.client.errors import ClientError, Need, UnsupportedByBroker, error_about
from ottla.client.retry import is_retriable
from ottla.consumer.errors import GroupFailed
from ottla.consumer.fetch.decoding import RecordDecoder, decompression_ms
from ottla.consumer.fetch.responses import OFF_LOOP_ABOVE_MS
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.group.rebalance_events import Partitions
from ottla.consumer.metrics import ShareConsumerMetrics
from ottla.consumer.share.brokers import Answer, Broker
from ottla.consumer.share.config import ShareConsumerConfig
from ottla.consumer.share.errors import AcknowledgementFailed
from ottla.consumer.share.fetched import FetchedRecords
from ottla.consumer.share.record import Lock, ShareRecord
from ottla.consumer.share.requests import WITH_RENEWAL, acknowledge_request, fetch_request
from ottla.consumer.share.session import (
    Acknowledgement,
    Acknowledgements,
    AcknowledgeType,
    AcquiredRanges,
    SharePartition,
    ShareRequest,
)
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, KafkaError
from ottla.protocol.messages.share_sessions import (
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchResponse,
)
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import TopicPartition

LINGER_S = 0.1
"""How long an acknowledgement waits for company if nobody awaits its result."""
BUSY_WAIT_MS = 100
"""How long a broker may wait for records while this member has some of it: acknowledgements wait behind."""

_SESSION_ENDED = (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
_STALE_METADATA = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
)

Callback = Callable[[TopicPartition, tuple[int, ...], Exception | None], object]

log = logging.getLogger(__name__)


class ShareFetcher:
    """Keeps the sessions with the leaders of assigned partitions (implements `record.Acknowledger`)."""

    def __init__(
        self,
        cluster: Cluster,
        config: ShareConsumerConfig,
        member_id: Callable[[], str],
        assigned: Callable[[], Partitions],
        notifier: StateChangeNotifier,
        metrics: ShareConsumerMetrics,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._member_id = member_id
        self._assigned = assigned
        self._notifier = notifier
        self._metrics = metrics
        self._decoder = RecordDecoder(config)
        # Connections of its own: a fetch that waits for records would delay all other responses.
        self._pool = Pool(cluster.config)
        self._brokers: dict[int, Broker] = {}
        self._names: dict[UUID, str] = {}
        self._wake = asyncio.Event()
        self._is_looking_up = False
        self._leaders_not_before_s = 0.0
        self.buffered: deque[FetchedRecords] = deque()
        self.failure: Exception | None = None
        """The error that the next call for records raises."""
        self.is_wanted = False
        """Whether the application waits for records."""
        self.callback: Callback | None = None
        self.lock_timeout_ms: int | None = None
        """How long a lock lasts, as the brokers said last."""

    def wake(self) -> None:
        """Check what may be sent now."""
        self._wake.set()

    @property
    def in_flight(self) -> int:
        """Acquired records without an acknowledgement, buffered ones included."""
        return sum(broker.session.in_flight for broker in self._brokers.values())

    # --- acknowledgements

    def acknowledge(self, record: ShareRecord[Any, Any], kind: AcknowledgeType) -> Answer:
        """Acknowledge a record soon; await the result for the broker's answer."""
        broker = self._brokers.get(record.lock.node)
        key = (record.lock.partition, record.offset)
        if record.choice is kind and broker is not None and key in broker.answers:
            return broker.answers[key]
        answer = Answer(broker, self.wake)
        if record.choice is kind:
            answer.settle(None)
            return answer
        if kind is not AcknowledgeType.RENEW:
            record.choice = kind
        given = Acknowledgement(record.offset, record.offset, kind)
        if broker is None or not self._pend(broker, record.lock, given):
            answer.settle(
                AcknowledgementFailed(
                    record.topic_partition, record.offset, ErrorCode.SHARE_SESSION_NOT_FOUND
                )
            )
            return answer
        broker.answers[key] = answer
        return answer

    def acknowledge_offsets(self, lock: Lock, given: Iterable[Acknowledgement]) -> None:
        """Acknowledge offsets that no record of the application has."""
        broker = self._brokers.get(lock.node)
        for some in given:
            if broker is not None:
                self._pend(broker, lock, some)

    def _pend(self, broker: Broker, lock: Lock, given: Acknowledgement) -> bool:
        if not broker.session.acknowledge(lock.partition, lock.generation, given):
            return False
        if broker.acknowledge_by_s is None:
            broker.acknowledge_by_s = asyncio.get_running_loop().time() + LINGER_S
            self.wake()
        broker.is_urgent = broker.is_urgent or given.type is AcknowledgeType.RENEW
        return True

    def hurry(self) -> list[Answer]:
        """Send all acknowledgements at once; return their outstanding answers."""
        for broker in self._brokers.values():
            broker.is_urgent = broker.is_urgent or broker.session.has_pending
        self.wake()
        return [answer for broker in self._brokers.values() for answer in broker.answers.values()]

    @property
    def is_settled(self) -> bool:
        """Whether nothing is outstanding, and nothing waits to be sent."""
        return not any(broker.is_busy or broker.session.has_pending for broker in self._brokers.values())

    def release_buffered(self) -> None:
        """Release the records that the application did not see."""
        while self.buffered:
            self.buffered.popleft().release()

    # --- the loop

    async def run(self) -> None:
        """Fetch and acknowledge, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                now_s = asyncio.get_running_loop().time()
                if self.is_wanted:
                    self._place(tasks, now_s)
                wakes = [
                    due
                    for broker in list(self._brokers.values())
                    if (due := self._attend(broker, tasks, now_s)) is not None
                ]
                await self._sleep(min(wakes, default=None))

    async def _sleep(self, until_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _place(self, tasks: asyncio.TaskGroup, now_s: float) -> None:
        """Cover in each session the assigned partitions that its broker leads."""
        led: dict[int, list[SharePartition]] = {}
        is_missing = False
        for partition in sorted(self._assigned()):
            topic = self._cluster.known_topic(partition.topic)
            leader = self._cluster.known_leader(partition)
            if topic is None or leader is None or topic.id == ZERO_UUID:
                is_missing = True
                continue
            self._names[topic.id] = partition.topic
            led.setdefault(leader, []).append(SharePartition(topic.id, partition.partition))
        for node in led.keys() - self._brokers.keys():
            self._brokers[node] = Broker(node)
        for node, broker in self._brokers.items():
            broker.session.cover(led.get(node, ()))
        if is_missing and not self._is_looking_up:
            self._is_looking_up = True
            tasks.create_task(self._look_up(max(0.0, self._leaders_not_before_s - now_s)))

    async def _look_up(self, wait_s: float) -> None:
        """Look up the leaders of assigned partitions."""
        try:
            await asyncio.sleep(wait_s)
            await self._cluster.refresh(sorted({partition.topic for partition in self._assigned()}))
        except (ClientError, KafkaError) as error:
            log.info("leaders cannot be looked up", extra={"reason": str(error)})
            if not is_retriable(error):
                self._fail(error)
        finally:
            self._is_looking_up = False
            backoff_s = self._cluster.config.retry_backoff_ms / 1_000
            self._leaders_not_before_s = asyncio.get_running_loop().time() + backoff_s
            self.wake()

    def _attend(self, broker: Broker, tasks: asyncio.TaskGroup, now_s: float) -> float | None:
        """Send the request that is due to a broker; return when to look again."""
        if broker.is_busy:
            return None
        session = broker.session
        if now_s < broker.not_before_s:
            return broker.not_before_s
        wants = self.is_wanted and not self.buffered and any(True for _ in session.partitions)
        must_acknowledge = session.has_pending and (
            broker.is_urgent or (broker.acknowledge_by_s or 0.0) <= now_s
        )
        if wants and not broker.is_urgent:
            self._begin(broker, tasks, session.next_fetch(), is_fetch=True)
        elif must_acknowledge:
            self._begin(broker, tasks, session.next_acknowledge(), is_fetch=False)
        elif wants:
            broker.is_urgent = False
            self._begin(broker, tasks, session.next_fetch(), is_fetch=True)
        return broker.acknowledge_by_s if session.has_pending and not broker.is_busy else None

    def _begin(
        self, broker: Broker, tasks: asyncio.TaskGroup, asked: ShareRequest, *, is_fetch: bool
    ) -> None:
        broker.is_busy, broker.is_urgent, broker.acknowledge_by_s = True, False, None
        tasks.create_task(self._exchange(broker, asked, is_fetch=is_fetch))

    # --- one exchange

    async def _exchange(self, broker: Broker, asked: ShareRequest, *, is_fetch: bool) -> None:
        try:
            if is_fetch:
                await self._fetch(broker, asked)
            else:
                await self._acknowledge(broker, asked)
        except (ClientError, KafkaError) as error:
            self._lose(broker, asked, error)
        finally:
            broker.is_busy = False
            self.wake()
            self._notifier.notify()

    async def _fetch(self, broker: Broker, asked: ShareRequest) -> None:
        config = self._config
        wait_ms = config.fetch_max_wait_ms
        if broker.session.in_flight:
            wait_ms = min(wait_ms, BUSY_WAIT_MS)
        generation = broker.session.generation
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        response = await (await self._connection(broker.node)).send(
            fetch_request(config, self._member_id(), asked, wait_ms),
            ShareFetchResponse,
            timeout_s=(wait_ms + config.client.request_timeout_ms) / 1_000,
        )
        self._metrics.answered((loop.time() - since_s) * 1_000, response.throttle_time_ms)
        if response.error_code != ErrorCode.NONE:
            self._refused(broker, asked, response.error_code, response.error_message)
            return
        broker.session.answered()
        self.lock_timeout_ms = response.acquisition_lock_timeout_ms
        arrived: list[FetchedRecords] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = SharePartition(topic.topic_id, data.partition_index)
                self._settle(broker, key, asked, data.acknowledge_error_code, data.acknowledge_error_message)
                if data.error_code != ErrorCode.NONE:
                    self._read_error(broker, key, data)
                elif data.acquired_records:
                    arrived.append(self._read(broker, key, generation, data, loop.time()))
        for key in asked.acknowledgements:
            self._settle(broker, key, asked, ErrorCode.NONE, None)
        await self._decompress(arrived)
        self.buffered.extend(arrived)

    async def _acknowledge(self, broker: Broker, asked: ShareRequest) -> None:
        request = acknowledge_request(self._config, self._member_id(), asked)
        response = await (await self._connection(broker.node)).send(
            request, ShareAcknowledgeResponse, min_version=WITH_RENEWAL if asked.renews else None
        )
        if response.error_code != ErrorCode.NONE:
            self._refused(broker, asked, response.error_code, response.error_message)
            return
        broker.session.answered()
        for topic in response.responses:
            for data in topic.partitions:
                key = SharePartition(topic.topic_id, data.partition_index)
                self._settle(broker, key, asked, data.error_code, data.error_message)
                if data.error_code in _STALE_METADATA:
                    self._forget_leader(broker, key)
        for key in asked.acknowledgements:
            self._settle(broker, key, asked, ErrorCode.NONE, None)

    async def _connection(self, node: int) -> Any:
        known = self._cluster.nodes.get(node)
        if known is None:
            raise BrokerNotAvailable(f"broker {node} left the cluster")
        return await self._pool.get(known.address)

    def _read(
        self,
        broker: Broker,
        key: SharePartition,
        generation: int,
        data: ShareFetchPartitionData,
        now_s: float,
    ) -> FetchedRecords:
        ranges = AcquiredRanges(
            (found.first_offset, found.last_offset, found.delivery_count) for found in data.acquired_records
        )
        broker.session.acquired(ranges.count)
        partition = TopicPartition(self._names.get(key.topic_id, ""), key.number)
        records = data.records or b""
        self._metrics.fetched(partition.topic, ranges.count, len(records))
        lock = Lock(broker.node, generation, key)
        ends_s = now_s + (self.lock_timeout_ms or 0) / 1_000
        return FetchedRecords(
            partition, records, ranges, lock, ends_s, self._decoder, self, self.acknowledge_offsets
        )

    async def _decompress(self, arrived: list[FetchedRecords]) -> None:
        slow = [found.cursor for found in arrived if decompression_ms(found.cursor) > OFF_LOOP_ABOVE_MS]
        for cursor in slow:
            await asyncio.to_thread(cursor.decompress_ahead)

    # --- answers and errors

    def _settle(
        self, broker: Broker, key: SharePartition, asked: ShareRequest, code: int | None, why: object
    ) -> None:
        """Give the answer of a partition to its acknowledgements, if it was not given before."""
        partition = TopicPartition(self._names.get(key.topic_id, ""), key.number)
        offsets: list[int] = []
        for given in asked.acknowledgements.get(key, ()):
            if given.type is AcknowledgeType.GAP:
                continue
            for offset in range(given.first, given.last + 1):
                answer = broker.answers.pop((key, offset), None)
                if answer is not None:
                    offsets.append(offset)
                    answer.settle(_failure(partition, offset, code, why))
        if offsets:
            self._report(partition, tuple(offsets), _failure(partition, offsets[0], code, why))

    def _report(self, partition: TopicPartition, offsets: tuple[int, ...], error: Exception | None) -> None:
        self._metrics.acknowledged(len(offsets), is_failed=error is not None)
        if error is not None:
            facts = {"partition": str(partition), "offsets": offsets, "reason": str(error)}
            log.info("records were not acknowledged", extra=facts)
        if self.callback is not None:
            try:
                self.callback(partition, offsets, error)
            except Exception as raised:
                log.warning("an acknowledgement callback failed", extra={"reason": str(raised)})

    def _lose(self, broker: Broker, asked: ShareRequest, error: ClientError | KafkaError) -> None:
        """Give up the session after a request without a response: the broker releases its records."""
        log.info("share request failed", extra={"broker": broker.node, "reason": str(error)})
        self._end_session(broker, asked, None, error)
        if isinstance(error, UnsupportedByBroker):
            self._fail(GroupFailed(f"broker {broker.node} serves no share groups: {error}"))
        elif not is_retriable(error) and not isinstance(error, BrokerNotAvailable):
            self._fail(error)
        self._back_off(broker)
        self._cluster.forget(*{partition.topic for partition in self._assigned()})

    def _refused(self, broker: Broker, asked: ShareRequest, code: int, message: str | None) -> None:
        """Act on the error of a whole response."""
        log.debug("share request refused", extra={"broker": broker.node, "code": code})
        self._end_session(broker, asked, code, message)
        if code in _SESSION_ENDED:
            return
        self._back_off(broker)
        error = error_about(code, message, Need(Operation.READ, ResourceType.GROUP, self._config.group))
        if code != ErrorCode.SHARE_SESSION_LIMIT_REACHED and not is_retriable(error):
            self._fail(error)

    def _end_session(self, broker: Broker, asked: ShareRequest, code: int | None, why: object) -> None:
        unsent = broker.session.reset()
        broker.is_urgent, broker.acknowledge_by_s = False, None
        for given in (asked.acknowledgements, unsent):
            self._settle_all(broker, given, code, why)
        self.buffered = deque(found for found in self.buffered if found.lock.node != broker.node)

    def _settle_all(self, broker: Broker, given: Acknowledgements, code: int | None, why: object) -> None:
        for key in given:
            self._settle(broker, key, ShareRequest(0, (), (), given), code, why)

    def _read_error(self, broker: Broker, key: SharePartition, data: ShareFetchPartitionData) -> None:
        code = data.error_code
        topic = self._names.get(key.topic_id, "")
        error = error_about(code, data.error_message, Need(Operation.READ, ResourceType.TOPIC, topic))
        if code in _STALE_METADATA:
            self._forget_leader(broker, key)
        elif is_retriable(error) or code == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._back_off(broker)
        else:
            self._fail(error)

    def _forget_leader(self, broker: Broker, key: SharePartition) -> None:
        """Look up the leader of a partition: the locks that this one gave are void.

        Records that it gave and that nobody has seen are released: they count as in flight otherwise.
        """
        topic = self._names.get(key.topic_id, "")
        self._cluster.forget(topic)
        given, others = deque[FetchedRecords](), deque[FetchedRecords]()
        for found in self.buffered:
            is_void = found.lock.node == broker.node and found.lock.partition == key
            (given if is_void else others).append(found)
        self.buffered = others
        for found in given:
            found.release()
        self._back_off(broker)

    def _back_off(self, broker: Broker) -> None:
        backoff_s = self._cluster.config.retry_backoff_ms / 1_000
        broker.not_before_s = asyncio.get_running_loop().time() + backoff_s

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._notifier.notify()

    # --- the end

    async def close(self) -> None:
        """Send the last acknowledgements, end all sessions, and close the connections.

        `run` is over. A request that was outstanding then has an unknown end: its session ends all the same.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for broker in self._brokers.values():
                    if broker.session.is_open:
                        tasks.create_task(self._end(broker))
        finally:
            for broker in self._brokers.values():
                for (key, offset), answer in broker.answers.items():
                    partition = TopicPartition(self._names.get(key.topic_id, ""), key.number)
                    answer.settle(AcknowledgementFailed(partition, offset, None, "the consumer was closed"))
            await self._pool.close()

    async def _end(self, broker: Broker) -> None:
        asked = broker.session.last_request()
        try:
            response = await (await self._connection(broker.node)).send(
                acknowledge_request(self._config, self._member_id(), asked), ShareAcknowledgeResponse
            )
        except (ClientError, KafkaError) as error:
            log.info("a share session was not ended", extra={"broker": broker.node, "reason": str(error)})
            self._settle_all(broker, asked.acknowledgements, None, error)
            return
        if response.error_code != ErrorCode.NONE:
            self._settle_all(broker, asked.acknowledgements, response.error_code, response.error_message)
        for topic in response.responses:
            for data in topic.partitions:
                key = SharePartition(topic.topic_id, data.partition_index)
                self._settle(broker, key, asked, data.error_code, data.error_message)
        self._settle_all(broker, asked.acknowledgements, ErrorCode.NONE, None)


def _failure(partition: TopicPartition, offset: int, code: int | None, why: object) -> Exception | None:
    return None if code == ErrorCode.NONE else AcknowledgementFailed(partition, offset, code, why)
