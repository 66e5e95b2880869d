"""Sends the markers of ended transactions to the partitions' leaders until each is written (KIP-98)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.transactions.marker_queue import (
    EndedTransaction,
    MarkerQueue,
    Markers,
    Partitions,
    Verdict,
    verdict,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.loop_budget import Turn

log = logging.getLogger(__name__)

IDLE_S: Final = 60.0
"""How long a connection without markers stays open."""
LOOK_S: Final = 0.5
"""How often the partitions of unanswered requests are compared with the present leaders."""


class Destination(Protocol):
    """A broker that leads partitions: this one, or another one at the end of a connection."""

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Write markers. Raises ConnectionError, TimeoutError or a KafkaError without an answer."""
        ...

    async def close(self) -> None:
        """Close the connection; a request that waits for its answer fails."""
        ...


class Cluster(Protocol):
    """The partitions of the cluster, as the sender sees them."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return the live leader of a partition; None without one."""
        ...

    def is_known(self, partition: TopicPartition) -> bool:
        """Return whether the metadata have the partition."""
        ...

    async def is_deleted(self, partition: TopicPartition) -> bool:
        """Return whether the partition does not exist any more; False while that cannot be said."""
        ...

    def connect(self, broker_id: int) -> Destination:
        """Return the way to a broker. Its `write` raises KafkaError while the address is not known."""
        ...


class MarkerSender:
    """Sends markers, one request to each broker at a time; `written` hears which partitions have theirs.

    A partition without leader is waited for, a deleted one needs no marker. A transaction whose
    coordinator or producer has been replaced is given up, until this broker coordinates it in a newer epoch.
    """

    def __init__(
        self,
        cluster: Cluster,
        environment: Environment,
        tasks: BackgroundTasks,
        *,
        is_hosted: Callable[[EndedTransaction], bool],
        written: Callable[[EndedTransaction, Partitions], None],
    ) -> None:
        """`is_hosted` returns whether this broker still coordinates a transaction in the same leadership."""
        self.queue = MarkerQueue()
        self._cluster = cluster
        self._clock = environment.clock
        self._budget = environment.budget
        self._tasks = tasks
        self._is_hosted = is_hosted
        self._written = written
        self._work: dict[int, asyncio.Event] = {}
        self._in_flight: dict[int, tuple[Destination, Sequence[Markers]]] = {}
        self._unknown: dict[TopicPartition, list[EndedTransaction]] = {}
        self._given_up: dict[int, list[EndedTransaction]] = {}
        self._changed = asyncio.Event()
        self._missing = asyncio.Event()

    # ---- what to send

    def send(self, ended: EndedTransaction) -> None:
        """Send the markers that a transaction lacks."""
        self._route(Markers(ended, ended.transaction.unmarked))

    def epoch_changed(self, number: int) -> None:
        """Send again what was given up in a partition of `__transaction_state` that is led in a new epoch."""
        for ended in self._given_up.pop(number, []):
            if self._is_hosted(ended) and ended.transaction.unmarked:
                self.send(EndedTransaction.of(ended.transaction, ended.hosted))

    def unloaded(self, number: int) -> None:
        """Forget what was given up in a partition that is not led here any more."""
        self._given_up.pop(number, None)

    def _route(self, markers: Markers) -> None:
        by_leader: dict[int | None, set[TopicPartition]] = defaultdict(set)
        for partition in markers.partitions:
            by_leader[self._cluster.leader_of(partition)].add(partition)
        for leader, partitions in by_leader.items():
            if leader is None:
                self._wait_for_leader(markers.ended, partitions)
            else:
                self.queue.put(leader, Markers(markers.ended, frozenset(partitions)))
                self._wake(leader)

    def _wait_for_leader(self, ended: EndedTransaction, partitions: Iterable[TopicPartition]) -> None:
        known = frozenset(partition for partition in partitions if self._cluster.is_known(partition))
        for partition in partitions:
            if partition not in known:
                self._unknown.setdefault(partition, []).append(ended)
                self._missing.set()
        if known:
            self._defer(Markers(ended, known))

    def _wake(self, broker_id: int) -> None:
        work = self._work.get(broker_id)
        if work is None:
            work = self._work[broker_id] = asyncio.Event()
            self._tasks.spawn(self._serve(broker_id, work), f"txn-markers-{broker_id}")
        work.set()

    # ---- sending

    async def _serve(self, broker_id: int, work: asyncio.Event) -> None:
        """Send the queue of one broker, until it has been empty for a while."""
        destination: Destination | None = None
        # One for all requests: this broker's own answers may come without a turn in between.
        turn = self._budget.turn()
        try:
            while await _within(IDLE_S, work) or work.is_set():
                work.clear()
                while self.queue.has(broker_id):
                    batch = self.queue.take(broker_id, self._is_hosted)
                    if not batch:
                        await asyncio.sleep(0)
                        continue
                    destination = await self._deliver(broker_id, destination, batch, turn)
        finally:
            del self._work[broker_id]
            await _close(destination)

    async def _deliver(
        self, broker_id: int, destination: Destination | None, batch: Sequence[Markers], turn: Turn
    ) -> Destination | None:
        """Send a batch, now or again later; return the connection of the next one, None for a new one."""
        try:
            destination = destination or self._cluster.connect(broker_id)
            response = await self._sent(broker_id, destination, batch)
        except (OSError, KafkaError) as error:
            await self._failed(broker_id, batch, error)
        except Exception:
            # A fault of ours, or an answer that cannot be read. All else that waits for the broker is sent.
            log.exception("transaction markers not sent", extra={"broker": broker_id})
            for markers in batch:
                self._defer(markers)
        else:
            await self._settle(batch, response, turn)
            return destination
        # The next one is opened to where the broker is then.
        await _close(destination)
        return None

    async def _sent(
        self, broker_id: int, destination: Destination, batch: Sequence[Markers]
    ) -> WriteTxnMarkersResponse:
        self._in_flight[broker_id] = destination, batch
        self._changed.set()
        try:
            return await destination.write(_request(batch))
        finally:
            self._in_flight.pop(broker_id, None)

    async def _failed(self, broker_id: int, batch: Sequence[Markers], error: Exception) -> None:
        """Route all that was meant for a broker that does not answer again, later."""
        log.info("transaction markers not sent", extra={"broker": broker_id, "error": repr(error)})
        async for markers in self._budget.turn().over([*batch, *self.queue.take_all(broker_id)]):
            self._defer(markers)

    def _defer(self, markers: Markers) -> None:
        self.queue.defer(markers, self._clock.monotonic_ms())
        self._changed.set()

    async def _settle(self, batch: Sequence[Markers], response: WriteTxnMarkersResponse, turn: Turn) -> None:
        codes = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        for markers in batch:
            try:
                self._settle_one(markers, codes)
            except Exception:
                # Sent once more: a marker that is there already does no harm.
                name = markers.ended.transaction.transactional_id[:200]
                log.exception("transaction markers not settled", extra={"transactional_id": name})
                self._defer(markers)
            await turn.yield_if_spent()

    def _settle_one(self, markers: Markers, codes: Mapping[tuple[int, str, int], int]) -> None:
        ended, partitions = markers
        verdicts: dict[Verdict, set[TopicPartition]] = defaultdict(set)
        for partition in partitions:
            code = codes.get((ended.producer.id, *partition), ErrorCode.UNKNOWN_SERVER_ERROR)
            verdicts[verdict(code)].add(partition)
            if verdict(code) is not Verdict.WRITTEN:
                _report(ended, partition, code)
        self._perform(ended, verdicts)

    def _perform(self, ended: EndedTransaction, verdicts: dict[Verdict, set[TopicPartition]]) -> None:
        if not self._is_hosted(ended):
            return
        if verdicts[Verdict.GIVE_UP]:
            ended.is_given_up = True
            self._given_up.setdefault(ended.hosted.number, []).append(ended)
        elif verdicts[Verdict.AGAIN]:
            self._defer(Markers(ended, frozenset(verdicts[Verdict.AGAIN])))
        if verdicts[Verdict.WRITTEN]:
            self._written(ended, frozenset(verdicts[Verdict.WRITTEN]))

    # ---- trying again

    async def run(self) -> None:
        """Route deferred markers when they are due, until cancelled."""
        while True:
            await _within(self._pause_s(), self._changed)
            self._changed.clear()
            async for markers in self._budget.turn().over(self.queue.due(self._clock.monotonic_ms())):
                if self._is_hosted(markers.ended):
                    self._route(markers)
            await self._close_replaced()

    def _pause_s(self) -> float:
        next_ms = self.queue.next_ms()
        if next_ms is None:
            return LOOK_S if self._in_flight else IDLE_S
        return min(max(next_ms - self._clock.monotonic_ms(), 1.0) / 1000, LOOK_S)

    async def _close_replaced(self) -> None:
        """Give up requests to brokers that lead none of their partitions any more: they may never answer."""
        for broker_id, (destination, batch) in list(self._in_flight.items()):
            leaders = (
                self._cluster.leader_of(partition) for markers in batch for partition in markers.partitions
            )
            if broker_id not in leaders:
                await destination.close()

    async def drop_deleted(self) -> None:
        """Drop the markers of partitions that do not exist any more, until cancelled.

        The metadata alone do not tell: a broker that starts knows few partitions. Markers of the others are
        routed again.
        """
        while True:
            if not self._unknown:
                self._missing.clear()
                await self._missing.wait()
            partition, waiting = self._unknown.popitem()
            deleted = not self._cluster.is_known(partition) and await self._cluster.is_deleted(partition)
            for ended in waiting:
                if not ended.is_decided or not self._is_hosted(ended):
                    continue
                if deleted:
                    self._written(ended, frozenset({partition}))
                else:
                    self._defer(Markers(ended, frozenset({partition})))


async def _close(destination: Destination | None) -> None:
    if destination is not None:
        await destination.close()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _request(batch: Sequence[Markers]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(markers=[_marker(*markers) for markers in batch])


def _marker(ended: EndedTransaction, partitions: Partitions) -> WritableTxnMarker:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return WritableTxnMarker(
        producer_id=ended.producer.id,
        producer_epoch=ended.producer.epoch,
        transaction_result=ended.commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=of) for name, of in topics.items()],
        coordinator_epoch=ended.hosted.leader_epoch,
        transaction_version=ended.version,
    )


def _report(ended: EndedTransaction, partition: TopicPartition, code: int) -> None:
    name = ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)
    log.info(
        "transaction marker not written",
        extra={"transactional_id": ended.transaction.transactional_id[:200], "partition": str(partition),
               "error": name},
    )  # fmt: skip
