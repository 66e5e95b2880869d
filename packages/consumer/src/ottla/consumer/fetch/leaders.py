"""Keep metadata fresh: the leaders of assigned partitions, and the topics a subscription matches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.client.cluster import Cluster
from ottla.client.environment import chance
from ottla.client.errors import ClientError
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import named_error
from ottla.consumer.fetch.positions import NO_EPOCH, NO_LEADER, PartitionState, Positions
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_TRANSIENT = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class PartitionLeaders:
    """Refreshes metadata when they expire or prove stale, and updates the leader of each partition.

    `wanted` returns the topics to ask for, None for all; `on_metadata` receives each response first.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        positions: Positions,
        notifier: StateChangeNotifier,
        wanted: Callable[[], frozenset[str] | None],
        on_metadata: Callable[[MetadataResponse], None],
        *,
        on_leaders: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._notifier = notifier
        self._wanted = wanted
        self._on_metadata = on_metadata
        self._may_create = config.allow_auto_create_topics
        self._on_leaders = on_leaders
        self._stale = asyncio.Event()

    def refresh_soon(self) -> None:
        """Refresh metadata soon: a response showed that they are stale."""
        self._stale.set()

    async def run(self) -> None:
        """Refresh metadata, until cancelled."""
        attempt = 0
        while True:
            self._stale.clear()
            if not await self._refresh():
                # Metadata and brokers may contradict each other for a while: back off.
                await asyncio.sleep(self._cluster.backoff.delay_ms(attempt, chance()) / 1_000)
                attempt += 1
                continue
            attempt = 0
            try:
                if not self._stale.is_set():
                    async with asyncio.timeout(self._cluster.config.metadata_max_age_ms / 1_000):
                        await self._stale.wait()
            except TimeoutError:
                continue

    async def _refresh(self) -> bool:
        wanted = self._wanted()
        if wanted is not None and not wanted:
            return True
        try:
            answer = await self._cluster.refresh(wanted, may_create=self._may_create)
        except (ClientError, KafkaError) as error:
            if not is_retriable(error):
                self._fail(error, {state.partition.topic for state in self._positions})
            log.info("metadata refresh failed", extra={"reason": str(error)})
            return False
        self._on_metadata(answer)
        return self._apply(answer)

    def _apply(self, answer: MetadataResponse) -> bool:
        """Update the leaders of all partitions; return whether each partition has one."""
        for topic in answer.topics:
            if topic.error_code not in (ErrorCode.NONE, *_TRANSIENT):
                name = topic.name or ""
                self._fail(named_error(f"topic {name!r}", topic.error_code, name or ""), {name})
        self._compare_topic_ids(answer)
        for state in self._positions:
            self._update_leader(state)
        self._on_leaders()
        self._notifier.notify()
        return all(state.leader != NO_LEADER or state.failure for state in self._positions)

    def _update_leader(self, state: PartitionState) -> None:
        topic = self._cluster.known_topic(state.partition.topic)
        known = topic.partitions.get(state.partition.partition) if topic is not None else None
        if known is None or known.leader not in self._cluster.nodes:
            state.leader = NO_LEADER
            return
        state.leader = known.leader
        if known.leader_epoch > state.leader_epoch != NO_EPOCH and state.fetch_epoch != NO_EPOCH:
            # The new leader may lack the end of what was read (KIP-320).
            state.must_validate = True
        if known.leader_epoch > state.leader_epoch:
            # The backoff was for a leader that refused, or that went away: this is another, or a new one.
            state.fetch_not_before_s = 0.0
        state.leader_epoch = known.leader_epoch

    def _compare_topic_ids(self, answer: MetadataResponse) -> None:
        """Seek to the beginning of topics that were deleted and created again.

        Until a response of this task shows the new id, partitions are fetched by the id that their positions
        belong to, and brokers refuse that.
        """
        ids = {topic.name: topic.topic_id for topic in answer.topics if topic.error_code == ErrorCode.NONE}
        recreated = set()
        for state in self._positions:
            topic_id = ids.get(state.partition.topic, ZERO_UUID)
            if topic_id in (ZERO_UUID, state.topic_id):
                continue
            if state.topic_id != ZERO_UUID:
                recreated.add(state.partition.topic)
                state.leader_epoch = NO_EPOCH
                state.seek(0)
            state.topic_id = topic_id
        for name in recreated:
            facts = {"topic": name}
            log.warning("a topic was deleted and created again, it is read from its beginning", extra=facts)

    def _fail(self, error: Exception, topics: set[str]) -> None:
        for state in self._positions:
            if state.partition.topic in topics:
                state.failure = error
        self._notifier.notify()


def partitions_of(topic: MetadataResponseTopic) -> list[TopicPartition]:
    """Return a topic's partitions."""
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    return [TopicPartition(topic.name or "", index) for index in indexes]
