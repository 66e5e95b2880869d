"""Reading for Fetch: every partition of one request, within the limits of the request and the reader."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ottla.broker.api.fetch.response import FIRST_BY_ID, FetchedPartition, failed
from ottla.broker.quotas.rates import UNLIMITED
from ottla.broker.replication.read_replicas import check_readable
from ottla.broker.requests.permissions import READ_TOPICS
from ottla.broker.runtime.loop_budget import LONG, at_once
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import (
    ErrorCode,
    InconsistentTopicId,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicId,
    UnsupportedCompressionType,
    UnsupportedVersion,
)
from ottla.protocol.storage import CorruptStorage

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.api.fetch.fast_path import FetchFastPath
    from ottla.broker.api.fetch.sessions import FetchSessions, RequestedPartition
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.quotas.replication import ReplicaQuota, ReplicationQuotas
    from ottla.broker.replication.read_replicas import ReadReplicas
    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.protocol.messages.fetch import FetchRequest
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

Reads: TypeAlias = "list[tuple[RequestedPartition, FetchedPartition]]"
"""Partitions in the order of a request, and what was read of each."""

READ_COMMITTED: Final = 1
CONSUMER: Final = -1
DEBUGGING: Final = -2
"""The replica id of tools that compare replicas: served by each of them."""
_FIRST_WITH_TOTAL_LIMIT: Final = 3
_FIRST_WITH_V2: Final = 4
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_RACK: Final = 11
_SAY_NOTHING_OF_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Needs(Protocol):
    """The parts of the broker that Fetch uses."""

    config: BrokerConfig
    delayed_fetches: DelayedFetches
    environment: Environment
    fetch_sessions: FetchSessions
    fetch_fast_path: FetchFastPath
    inter_broker: InterBrokerAccess
    metadata: MetadataCache
    read_replicas: ReadReplicas
    record_threads: RecordThreads
    replicas: Replicas
    replication_quotas: ReplicationQuotas
    topic_metrics: TopicMetrics


class FetchTerms:
    """The terms of one request: the reader, its limits, and how far it may see."""

    __slots__ = (
        "allowed",
        "by_id",
        "committed_only",
        "context",
        "index_epoch",
        "magic",
        "max_bytes",
        "may_read_followers",
        "quotas",
        "rack",
        "replica",
        "services",
        "version",
    )

    def __init__(self, services: Needs, request: FetchRequest, context: RequestContext) -> None:
        version = context.api_version
        self.services = services
        self.context = context
        self.index_epoch = context.index_epoch
        """The client session's when its permissions were asked for."""
        self.allowed: dict[str, bool] | None = None
        """Whether the client may read each topic that was asked for; None where nothing is asked."""
        self.version = version
        self.by_id = version >= FIRST_BY_ID
        self.replica = request.replica_id
        self.rack = request.rack_id if services.read_replicas.by_rack else ""
        # A consumer without a rack is never sent to a follower: it has not heard of a new leader (KIP-392).
        in_rack = self.replica == CONSUMER and version >= _FIRST_WITH_RACK and bool(request.rack_id)
        self.may_read_followers = in_rack or self.replica == DEBUGGING
        self.committed_only = request.isolation_level == READ_COMMITTED
        limit = services.config.fetch_max_bytes
        self.max_bytes = min(request.max_bytes, limit) if version >= _FIRST_WITH_TOTAL_LIMIT else limit
        self.quotas = UNLIMITED if self.is_follower else context.quotas
        if self.quotas.is_limited:
            # A response larger than all of the quota's windows would be throttled for ever.
            self.max_bytes = min(self.max_bytes, self.quotas.most_fetch_bytes)
            request.min_bytes = min(request.min_bytes, self.max_bytes)
        self.magic = 2 if version >= _FIRST_WITH_V2 else 1 if version >= 2 else 0

    @property
    def is_follower(self) -> bool:
        """Whether the reader is a follower."""
        return self.replica >= 0

    @property
    def asks(self) -> bool:
        """Whether the client has to be allowed to read each topic. A follower may read all of them."""
        return self.context.has_authorizer and not self.is_follower

    def refuses(self, topic: str) -> bool:
        """Return whether the client may not read a topic; each is asked for once."""
        if self.allowed is None:
            return False
        is_allowed = self.allowed.get(topic)
        if is_allowed is None:
            resource = Resource(ResourceType.TOPIC, topic)
            is_allowed = self.allowed[topic] = self.context.allows(READ_TOPICS, resource)
        return not is_allowed

    def ask_again(self) -> bool:
        """Forget the answers if the client's permissions have changed; return whether they have."""
        index_epoch = self.context.session.index_epoch
        if self.allowed is None or index_epoch == self.index_epoch:
            return False
        self.index_epoch, self.allowed = index_epoch, {}
        return True


class PartitionReads:
    """Reads partitions one after the other, within the request's limit.

    The first partition with records returns at least one batch, however large: a reader with limits below the
    size of a batch would make no progress otherwise (KIP-74).
    """

    __slots__ = ("_left", "_terms", "size")

    def __init__(self, terms: FetchTerms) -> None:
        self.size = 0
        """Bytes of records so far."""
        self._left = terms.max_bytes
        self._terms = terms

    def read(self, partition: RequestedPartition) -> FetchedPartition:
        """Read the next partition."""
        result = _read_or_fail(self._terms, partition, min(partition.max_bytes, self._left), not self.size)
        if size := result.size:
            self.size += size
            self._left = max(0, self._left - size)
        return result


def estimated_size(version: int, reads: Reads) -> int:
    """Return about how many bytes a response has, before it is made: some bytes off for each topic."""
    size = 24
    partition_size = 34 if version >= 11 else 30 if version >= 5 else 22
    named: object = None
    for wanted, result in reads:
        topic = wanted.topic_partition.topic
        if topic != named:
            size, named = size + 6 + (16 if version >= FIRST_BY_ID else len(topic)), topic
        size += partition_size + result.size + 16 * len(result.aborted or ())
    return size


def reading(terms: FetchTerms, wanted: list[RequestedPartition]) -> Generator[None, None, Reads]:
    """Read every partition, in order, within the request's limit; one in each step."""
    reads, results = PartitionReads(terms), []
    for requested in wanted:
        results.append((requested, reads.read(requested)))
        yield
    return results


async def read_all(terms: FetchTerms, wanted: list[RequestedPartition]) -> Reads:
    """Read every partition; a long list is read as the event loop has time."""
    steps = reading(terms, wanted)
    return at_once(steps) if len(wanted) <= LONG else await terms.context.turn.run(steps)


def _read_or_fail(
    terms: FetchTerms, wanted: RequestedPartition, max_bytes: int, at_least_one: bool
) -> FetchedPartition:
    topic_partition = wanted.topic_partition
    is_named = wanted.topic_id is None or bool(topic_partition.topic)  # an unknown id is no secret
    if is_named and terms.refuses(topic_partition.topic):
        return failed(topic_partition.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    try:
        if wanted.topic_id is not None:
            _check_id(terms, topic_partition, wanted.topic_id)
        find = (
            terms.services.read_replicas.for_consumer
            if terms.may_read_followers
            else terms.services.replicas.leader
        )
        partition = find(topic_partition, wanted.current_leader_epoch)
        return _read(terms, partition, wanted, max_bytes, at_least_one)
    except KafkaError as error:
        _count_failure(terms.services, topic_partition, error)
        return FetchedPartition(topic_partition.partition, error_code=int(error.code))
    except (OSError, CorruptStorage) as error:
        _log.warning(
            "partition not read",
            extra={"partition": str(topic_partition), "offset": wanted.fetch_offset, "reason": str(error)},
        )
        _count_failure(terms.services, topic_partition, KafkaStorageError(str(error)))
        return FetchedPartition(topic_partition.partition, error_code=int(ErrorCode.KAFKA_STORAGE_ERROR))


def _check_id(terms: FetchTerms, topic_partition: TopicPartition, topic_id: UUID) -> None:
    """Raise unless the topic is known and is the one whose log is here, not another one of its name."""
    if not topic_partition.topic:
        raise UnknownTopicId
    partition = terms.services.replicas.hosted(topic_partition)
    if partition is not None and partition.log.topic_id not in (None, topic_id):
        raise InconsistentTopicId


def _read(
    terms: FetchTerms,
    partition: HostedPartition,
    wanted: RequestedPartition,
    max_bytes: int,
    at_least_one: bool,
) -> FetchedPartition:
    # Kafka's order: refusals of the format come first, then a divergence, by which a follower truncates
    # before it reads, then the range of offsets, and last a replica that is nearer to the consumer.
    log = partition.log
    if terms.version < _FIRST_WITH_ZSTD and log.config.compression_type == "zstd":
        raise UnsupportedCompressionType
    if terms.magic < 2 and not log.config.message_downconversion_enable:
        raise UnsupportedVersion
    if terms.is_follower:
        _note_follower(terms, partition, wanted)
    result = FetchedPartition(
        wanted.topic_partition.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        aborted=[] if terms.committed_only and terms.version >= _FIRST_WITH_V2 else None,
    )
    if wanted.last_fetched_epoch >= 0:
        result.diverging_epoch = _divergence(partition, wanted)
        if result.diverging_epoch is not None:
            return result
    if terms.may_read_followers:
        check_readable(partition, wanted.fetch_offset)
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        raise OffsetOutOfRange
    if terms.rack and partition.leads:
        preferred = terms.services.read_replicas.preferred(partition, terms.rack, wanted.fetch_offset)
        if preferred >= 0:
            result.preferred_read_replica = preferred
            return result
    if terms.is_follower and _is_held_up(terms, partition):
        return result
    up_to = _visible_end(terms, partition)
    result.is_settled = wanted.fetch_offset >= up_to and _is_at_rest(terms, partition)
    if wanted.fetch_offset < up_to and (max_bytes > 0 or at_least_one):
        records = partition.read(wanted.fetch_offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
        if records.length:
            result.records = records
            result.is_cold = partition.is_cold(wanted.fetch_offset, records)
            if result.aborted is not None:
                result.aborted = _aborted(partition, wanted.fetch_offset, records.end_offset)
    return result


def _is_at_rest(terms: FetchTerms, partition: HostedPartition) -> bool:
    """Whether nothing that a reader hears of a partition changes by time or by other reads alone.

    A consumer with a rack is sent to the follower that has most; how far those are wakes no watcher. Each
    fetch of a follower may propose it for the ISR, or move a high watermark that waits for another one.
    """
    if not terms.is_follower:
        return not terms.rack
    core = partition.core
    return terms.replica in core.isr and partition.high_watermark == partition.log.log_end_offset


def _is_held_up(terms: FetchTerms, partition: HostedPartition) -> bool:
    """Whether a throttle keeps records from a follower; never from one in sync: writes wait for those."""
    quota = terms.services.replication_quotas.leader
    return is_throttled(quota, partition) and terms.replica not in partition.core.isr and quota.is_exceeded


def is_throttled(quota: ReplicaQuota, partition: HostedPartition) -> bool:
    """Whether reads of followers from a partition count for the leader's throttle."""
    replicas = partition.log.config.leader_replication_throttled_replicas
    return quota.selects(partition.topic_partition, replicas)


def _visible_end(terms: FetchTerms, partition: HostedPartition) -> int:
    if terms.is_follower:
        return partition.log.log_end_offset
    return partition.log.last_stable_offset if terms.committed_only else partition.high_watermark


def _note_follower(terms: FetchTerms, partition: HostedPartition, wanted: RequestedPartition) -> None:
    if terms.replica not in partition.core.followers:
        raise NotLeaderOrFollower(f"broker {terms.replica} is no replica of {partition.topic_partition}")
    if wanted.last_fetched_epoch < 0 or _divergence(partition, wanted) is None:
        now_ms = terms.services.environment.clock.now_ms()
        partition.fetched(terms.replica, wanted.fetch_offset, wanted.log_start_offset, now_ms)


def _divergence(partition: HostedPartition, wanted: RequestedPartition) -> tuple[int, int] | None:
    """Return where the reader's log diverges from the leader's, if it does (KIP-320, KIP-595)."""
    epoch, end = partition.log.leader_epochs.end_offset_for(
        wanted.last_fetched_epoch, partition.log.log_end_offset
    )
    if epoch < 0 or end < 0:
        raise OffsetOutOfRange
    if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
        return epoch, end
    return None


def _aborted(partition: HostedPartition, start: int, end: int) -> list[tuple[int, int]]:
    return [
        (transaction.producer_id, transaction.first_offset)
        for transaction in partition.log.aborted_transactions(start, end)
    ]


def _count_failure(services: Needs, topic_partition: TopicPartition, error: KafkaError) -> None:
    services.topic_metrics.all_topics.failed_fetch_requests.mark()
    if error.code not in _SAY_NOTHING_OF_TOPIC:
        services.topic_metrics.of(topic_partition.topic).failed_fetch_requests.mark()
