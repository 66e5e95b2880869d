"""Fetch ahead of the application: one outstanding Fetch request per broker, for all of its partitions.

Fetched data are views into the response they arrived in: the whole response stays in memory as long as one
of its partitions has records left. That memory is counted and bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import cast
from uuid import UUID

from ottla.client.cluster import Cluster
from ottla.client.connection_pool import Pool
from ottla.client.errors import ClientError, RequestTimeout
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.positions import NO_LEADER, FetchedData, PartitionState, Positions
from ottla.consumer.fetch.responses import FetchPoint, FetchPoints, FetchResponseReader
from ottla.consumer.fetch.session import FetchSession, SessionRequest, Wanted
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.records import Buffer
from ottla.protocol.topics import TopicPartition

NO_REPLICA = -1
FIRST_BY_ID = 13
"""The first version of Fetch that names topics by their ids: a topic that was created again is not fetched by
a position of the old one (KIP-516)."""

_SESSION_ENDED = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

log = logging.getLogger(__name__)


class Fetcher:
    """Keeps records buffered for all partitions that may be read.

    A partition with the data of two responses buffered is not fetched, and none is while about
    `fetch_max_bytes` are buffered. If all of that belongs to partitions that are paused or not asked for,
    the partitions that are asked for are fetched above the bound.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        config: ConsumerConfig,
        notifier: StateChangeNotifier,
        metrics: ConsumerMetrics,
        responses: FetchResponseReader,
        *,
        look_up_leaders: Callable[[], None],
        look_up_offsets: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._notifier = notifier
        self._metrics = metrics
        self._responses = responses
        self._look_up_leaders = look_up_leaders
        self._look_up_offsets = look_up_offsets
        # Connections of its own: brokers answer in order, and a fetch that waits for records would delay the
        # responses to all other requests.
        self._pool = Pool(cluster.config)
        self._sessions: dict[int, FetchSession] = {}
        self._outstanding: set[int] = set()
        self._wake = asyncio.Event()
        self.asked_for: Sequence[TopicPartition] = ()
        """The partitions of which records were asked for last; empty for all."""

    def wake(self) -> None:
        """Check what may be fetched now."""
        self._wake.set()

    def refetch(self, state: PartitionState) -> None:
        """Fetch a partition again from its position on, after a backoff: a batch could not be read.

        Damage on the way is mended by that. Other partitions are delivered meanwhile.
        """
        state.discard_buffered()
        self._responses.back_off(state)
        self.wake()

    async def run(self) -> None:
        """Fetch, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._wake.clear()
                    # Read once: a backoff that ends between two readings would be neither fetched nor waited
                    # for.
                    now_s = loop.time()
                    for node, states in self._due(now_s).items():
                        self._outstanding.add(node)
                        # Taken now, not when the task begins: a seek in between makes them old.
                        tasks.create_task(self._fetch(node, states, fetch_points(states)))
                    await self._next_turn(now_s)
        finally:
            await self._pool.close()

    # --- what to fetch

    async def _next_turn(self, now_s: float) -> None:
        waits = [state.fetch_not_before_s for state in self._positions if state.fetch_not_before_s > now_s]
        if not waits:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout_at(min(waits)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _due(self, now_s: float) -> dict[int, list[PartitionState]]:
        """Return the partitions to fetch by broker, for brokers without an outstanding fetch."""
        due: dict[int, list[PartitionState]] = defaultdict(list)
        needs_leader = needs_offset = False
        for state in self._positions:
            if state.is_fetchable(now_s):
                node = self._node(state, now_s)
                if node == NO_LEADER:
                    needs_leader = True
                elif node not in self._outstanding:
                    due[node].append(state)
            elif state.must_validate or state.needs_position:
                needs_offset = True
        if needs_leader:
            self._look_up_leaders()
        if needs_offset:
            self._look_up_offsets()
        return due if self._is_below_bound() else self._due_above_bound(due)

    def _is_below_bound(self) -> bool:
        """Return whether less than the bound is buffered, if need be after releasing responses."""
        buffered = [fetched for state in self._positions for fetched in state.buffered]
        if held_bytes(buffered) < self._config.fetch_max_bytes:
            return True
        copy_leftovers(buffered)
        return held_bytes(buffered) < self._config.fetch_max_bytes

    def _due_above_bound(self, due: Mapping[int, list[PartitionState]]) -> dict[int, list[PartitionState]]:
        if any(
            state.buffered and state.is_deliverable and self._is_asked_for(state) for state in self._positions
        ):
            return {}
        wanted = {
            node: [state for state in states if self._is_asked_for(state)] for node, states in due.items()
        }
        return {node: states for node, states in wanted.items() if states}

    def _is_asked_for(self, state: PartitionState) -> bool:
        return not self.asked_for or state.partition in self.asked_for

    def _node(self, state: PartitionState, now_s: float) -> int:
        """Return the broker to fetch from: the leader, or the replica that it recommended (KIP-392)."""
        if state.preferred != NO_LEADER:
            if now_s < state.preferred_until_s and state.preferred in self._cluster.nodes:
                return state.preferred
            state.preferred = NO_LEADER
        return state.leader if state.leader in self._cluster.nodes else NO_LEADER

    # --- one fetch

    async def _fetch(self, node: int, states: list[PartitionState], points: FetchPoints) -> None:
        session = self._sessions.setdefault(node, FetchSession())
        try:
            response = await self._send(node, session, states)
        except (ClientError, KafkaError) as error:
            session.reset()
            self._failed(error, node, states)
        else:
            session.answered(response.session_id, response.error_code)
            if response.error_code != ErrorCode.NONE:
                self._refused(node, response.error_code, states)
            await self._responses.read(node, response, points)
            await self._end_of_throttle(node)
        finally:
            self._outstanding.discard(node)
            self._wake.set()

    async def _end_of_throttle(self, node: int) -> None:
        """Wait until the broker may be asked again; the next fetch is made of the positions at that time."""
        known = self._cluster.nodes.get(node)
        connection = None if known is None else self._pool.opened(known.address)
        if connection is not None:
            with suppress(ClientError):  # of a login that was due: the next fetch meets it
                await connection.end_of_throttle()

    async def _send(self, node: int, session: FetchSession, states: list[PartitionState]) -> FetchResponse:
        known = self._cluster.nodes.get(node)
        if known is None:
            raise BrokerNotAvailable(f"broker {node} left the cluster")
        connection = await self._pool.get(known.address)
        ids = connection.versions.get(FetchRequest.API_KEY, (0, 0))[1] >= FIRST_BY_ID
        ids = ids and all(state.topic_id != ZERO_UUID for state in states)
        wanted = {
            state.partition: Wanted(
                state.fetch_offset, state.leader_epoch, state.topic_id if ids else ZERO_UUID
            )
            for state in states
        }
        bound_s = (self._config.fetch_max_wait_ms + self._config.client.request_timeout_ms) / 1_000
        request = self._request(session.next_request(wanted))
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        version = FIRST_BY_ID if ids else FIRST_BY_ID - 1
        response = await connection.send(request, FetchResponse, timeout_s=bound_s, max_version=version)
        self._metrics.answered((loop.time() - since_s) * 1_000, response.throttle_time_ms)
        return response

    def _request(self, asked: SessionRequest) -> FetchRequest:
        topics: dict[tuple[str, UUID], list[FetchPartition]] = defaultdict(list)
        for partition, wanted in asked.partitions.items():
            topics[partition.topic, wanted.topic_id].append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=wanted.leader_epoch,
                    fetch_offset=wanted.offset,
                    partition_max_bytes=self._config.max_partition_fetch_bytes,
                )
            )
        forgotten: dict[tuple[str, UUID], list[int]] = defaultdict(list)
        for partition, topic_id in asked.forgotten.items():
            forgotten[partition.topic, topic_id].append(partition.partition)
        return FetchRequest(
            replica_id=NO_REPLICA,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=int(self._config.reads_committed),
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in topics.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in forgotten.items()
            ],
            rack_id=self._config.client_rack or "",
        )

    def _failed(self, error: ClientError | KafkaError, node: int, states: list[PartitionState]) -> None:
        """Back off and look up leaders after a fetch without a response; fail on errors that do not pass."""
        log.info("fetch failed", extra={"broker": node, "reason": str(error)})
        if not is_retriable(error) and not isinstance(error, BrokerNotAvailable):
            for state in states:
                state.failure = error
            self._notifier.notify()
            return
        if isinstance(error, RequestTimeout):
            self._cluster.avoid(node)  # else the leaders might be asked of the broker that is silent
        for state in states:
            if state.is_read_from(node):
                state.preferred = NO_LEADER
                self._responses.back_off(state)
        self._look_up_leaders()

    def _refused(self, node: int, code: int, states: list[PartitionState]) -> None:
        """Back off after an error of the whole response, unless it only ended the fetch session."""
        log.debug("fetch refused", extra={"broker": node, "code": code})
        if code not in _SESSION_ENDED:
            for state in states:
                self._responses.back_off(state)


def fetch_points(states: list[PartitionState]) -> FetchPoints:
    """Return the positions of partitions, to compare with them later."""
    return {state.partition: (state, FetchPoint(state.generation, state.fetch_offset)) for state in states}


def held_bytes(buffered: Iterable[FetchedData]) -> int:
    """Return how many bytes the buffered data keep alive, batches decompressed ahead included."""
    responses: dict[int, int] = {}
    extra = 0
    for fetched in buffered:
        response = _response(fetched)
        responses[id(response)] = len(response)
        extra += fetched.cursor.size_in_bytes - len(fetched.data)
    return sum(responses.values()) + extra


def copy_leftovers(buffered: Iterable[FetchedData]) -> None:
    """Release responses of which less than half is still needed, by copying the rest.

    At most half of the fetched bytes is ever copied, and only when memory is short.
    """
    by_response: dict[int, list[FetchedData]] = defaultdict(list)
    for fetched in buffered:
        by_response[id(_response(fetched))].append(fetched)
    for left in by_response.values():
        if 2 * sum(len(fetched.data) for fetched in left) < len(_response(left[0])):
            for fetched in left:
                fetched.copy()


def _response(fetched: FetchedData) -> Buffer:
    """Return the memory that the data point into."""
    data = fetched.data
    return cast("Buffer", data.obj) if isinstance(data, memoryview) else data
