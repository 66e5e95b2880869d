"""The parts of a broker for share groups, made with the first request that needs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.internal_topic_log import ReplicatedStore
from ottla.broker.runtime.loop_budget import LONG, at_once
from ottla.broker.share.coordinator import ShareCoordinator
from ottla.broker.share.dead_letters import DeadLetterTopics
from ottla.broker.share.hosting import SharePartitions
from ottla.broker.share.metrics import ShareGroupMetrics
from ottla.broker.share.persister import SharePersister
from ottla.broker.share.sessions import ShareSession, ShareSessions
from ottla.broker.share.state import SharePartitionKey
from ottla.broker.share.terms import ShareGroupSettings
from ottla.protocol.records import Codec
from ottla.protocol.topics import SHARE_GROUP_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from uuid import UUID

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig, LogConfig
    from ottla.broker.metrics import Metrics
    from ottla.broker.peers.client import Peers
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.loop_budget import LoopBudget
    from ottla.broker.runtime.threads import RecordThreads


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareParts:
    """The parts that handlers of share groups act on."""

    coordinator: ShareCoordinator
    persister: SharePersister
    partitions: SharePartitions
    sessions: ShareSessions
    metrics: ShareGroupMetrics
    metadata: MetadataCache
    tasks: BackgroundTasks
    budget: LoopBudget

    def connection_ended(self, connection_id: str) -> None:
        """End the sessions of a connection, and release what their members hold; in steps if it is much."""
        steps = self._end_all(connection_id)
        if self.sessions.is_long(connection_id):
            self.tasks.spawn(self.budget.turn().run(steps), "share-sessions-end")
        else:
            at_once(steps)

    def _end_all(self, connection_id: str) -> Generator[None, None, None]:
        for session in self.sessions.connection_ended(connection_id):
            self.metrics.evicted_sessions.mark()
            yield from self._release(session)

    def release(self, session: ShareSession) -> None:
        """Release what a member holds in the partitions of its session, which has ended."""
        if len(session.partitions) > LONG:
            self.tasks.spawn(self.budget.turn().run(self._release(session)), "share-session-end")
        else:
            at_once(self._release(session))

    def _release(self, session: ShareSession) -> Generator[None, None, None]:
        """Release the records of a member; after the last one of its group drop the share partitions.

        The next member finds the offsets that were set meanwhile.
        """
        group_id, member_id = session.member
        for count, (topic_id, number) in enumerate(session.partitions, 1):
            if count % _IN_A_STEP == 0:
                yield
            if self.sessions.has(session.member):
                return  # it has begun another one, and may hold records by that
            topic = self.metadata.topic_name(topic_id)
            if topic is None:
                continue
            hosted = self.partitions.get(
                SharePartitionKey(group_id, topic_id, number), TopicPartition(topic, number)
            )
            if hosted is not None:
                hosted.release(member_id)
        if not self.sessions.has_group(group_id):
            self.partitions.group_left(group_id)
        yield


_IN_A_STEP: Final = 8
"""Partitions whose records are released at once: each has thousands in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSources:
    """The parts of the broker that those for share groups are made from."""

    config: Callable[[], BrokerConfig]
    group_settings: Callable[[str], Mapping[str, str]]
    log_config: Callable[[str], LogConfig]
    has_dead_letters: Callable[[], bool]
    """Whether the cluster's level of share groups has dead-letter topics."""
    append_own: Callable[[TopicPartition, bytes], Awaitable[None]]
    """Appends a batch of the broker's own to a partition that it leads."""
    environment: Environment
    metrics: Metrics
    replicas: Replicas
    metadata: MetadataCache
    topics: Topics
    peers: Peers
    record_threads: RecordThreads
    tasks: BackgroundTasks
    """They must be entered."""
    connections: AsyncExitStack
    """Closes connections to other brokers, after the tasks have ended."""
    session_id: Callable[[], int]


def make_share_parts(sources: ShareSources) -> ShareParts:
    """Make the parts and start them."""
    settings, replicas, tasks = sources.config(), sources.replicas, sources.tasks
    coordinator, metrics = _coordinator(sources), _metrics(sources)
    persister = SharePersister(
        metadata=sources.metadata,
        topics=sources.topics,
        here=coordinator,
        connect=partial(
            sources.peers.broker, purpose="share-coordinator", timeout_ms=settings.request_timeout_ms
        ),
    )
    partitions = SharePartitions(
        environment=sources.environment,
        persister=persister,
        tasks=tasks,
        record_threads=sources.record_threads,
        terms=ShareGroupSettings(sources.config, sources.group_settings, sources.has_dead_letters),
        session_id=sources.session_id,
        dead_letters=_dead_letters(sources, metrics),
        metrics=metrics,
    )
    sources.connections.push_async_callback(persister.close)
    replicas.subscribe(coordinator)
    replicas.subscribe(partitions)
    coordinator.start(
        [(partition.topic_partition, partition.leader_epoch) for partition in replicas.leaders()]
    )
    partitions.start()
    _schedule(tasks, settings, coordinator)
    sessions = ShareSessions(settings.group_share_max_share_sessions)
    metrics.show_sessions(sessions.__len__, lambda: sessions.partitions)
    return ShareParts(
        coordinator=coordinator,
        persister=persister,
        partitions=partitions,
        sessions=sessions,
        metrics=metrics,
        metadata=sources.metadata,
        tasks=tasks,
        budget=sources.environment.budget,
    )


def _metrics(sources: ShareSources) -> ShareGroupMetrics:
    return ShareGroupMetrics(sources.metrics, sources.config().metrics_group_partitions_max)


def _dead_letters(sources: ShareSources, metrics: ShareGroupMetrics) -> DeadLetterTopics:
    timeout_ms = sources.config().request_timeout_ms + _BEYOND_THE_WRITE_MS
    topics = DeadLetterTopics(
        environment=sources.environment,
        config=sources.config,
        metadata=sources.metadata,
        topics=sources.topics,
        log_config=sources.log_config,
        append_here=sources.append_own,
        connect=partial(sources.peers.broker, purpose="share-dead-letters", timeout_ms=timeout_ms),
        record_threads=sources.record_threads,
        metrics=metrics,
    )
    sources.connections.push_async_callback(topics.close)
    return topics


_BEYOND_THE_WRITE_MS: Final = 5_000
"""How long the answer of another broker may take beyond the time that its write may wait for replicas."""


def _coordinator(sources: ShareSources) -> ShareCoordinator:
    settings, metadata, replicas = sources.config(), sources.metadata, sources.replicas
    store = ReplicatedStore(
        replicas,
        SHARE_GROUP_STATE_TOPIC,
        lambda: (
            metadata.partition_count(SHARE_GROUP_STATE_TOPIC)
            or settings.share_coordinator_state_topic_num_partitions
        ),
        codec=Codec(settings.share_coordinator_state_topic_compression_codec),
        read_bytes=settings.share_coordinator_load_buffer_size,
    )

    def partition_count(topic_id: UUID) -> int:
        name = metadata.topic_name(topic_id)
        return 0 if name is None else metadata.partition_count(name)

    async def metadata_arrived() -> None:
        """Wait, within a bound, for the metadata: without them every topic seems to be deleted."""
        await metadata.known(sources.topics.published)

    return ShareCoordinator(
        config=settings,
        environment=sources.environment,
        store=store,
        metrics=sources.metrics,
        tasks=sources.tasks,
        partition_count=partition_count,
        delete_before=partial(_delete_before, replicas),
        ready=metadata_arrived,
    )


def _schedule(tasks: BackgroundTasks, config: BrokerConfig, coordinator: ShareCoordinator) -> None:
    prune_ms = config.share_coordinator_state_topic_prune_interval_ms
    cold_ms = config.share_coordinator_cold_partition_snapshot_interval_ms
    tasks.every("share-state-pruning", prune_ms, coordinator.prune)
    tasks.every("share-state-snapshots", cold_ms, coordinator.write_cold_snapshots)
    tasks.every("share-state-of-deleted-topics", cold_ms, coordinator.remove_states_of_deleted_topics)


def _delete_before(replicas: Replicas, number: int, position: int) -> None:
    """Delete records of the state topic before a position, as far as they are committed."""
    partition = replicas.leader(TopicPartition(SHARE_GROUP_STATE_TOPIC, number))
    wanted = min(position, partition.high_watermark)
    if wanted > partition.log.log_start_offset:
        partition.log.advance_log_start(wanted)
        partition.core.log_start_moved(partition.log.log_start_offset)
