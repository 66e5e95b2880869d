"""TxnOffsetCommit: commit a group's offsets as a part of a transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.offset_commit import refuse
from ottla.broker.coordinators.internal_topic_log import TransactionalProducer
from ottla.broker.coordinators.response_errors import after_failed_commit
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.log.state.producer_state import NOT_REQUIRED
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_GROUPS, READ_TOPICS, WRITE_TXNS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.transactions.events import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.api.produce.verification import Verifier
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.runtime.environment import Environment

FIRST_WITH_LOAD_IN_PROGRESS: Final = 2
FIRST_WITH_ABORTABLE: Final = 4
FIRST_THAT_JOINS: Final = 5
"""The first version that makes the group's partition part of the transaction, as AddOffsetsToTxn does."""
FIRST_BY_ID: Final = 6
_UNKNOWN_SEQUENCE: Final = -1

Results = Mapping[TopicPartition, ErrorCode]


class Needs(Protocol):
    """The parts of the broker that TxnOffsetCommit uses."""

    environment: Environment
    groups: GroupCoordinator
    metadata: MetadataCache
    replicas: Replicas

    @property
    def verification(self) -> Verifier:
        """Asks transaction coordinators."""
        ...


async def handle(
    services: Needs, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Write the offsets into the transaction; partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION."""
    if (error := _refusal(request, context)) is not None:
        return await _response(request, {}, context, others=error)
    if context.api_version >= FIRST_BY_ID:
        for topic in request.topics:
            topic.name = services.metadata.topic_name(topic.topic_id) or ""
    named = [topic.name for topic in request.topics if topic.name]
    refused = await refused_names(context, READ_TOPICS, named)
    now_ms = services.environment.clock.now_ms()
    offsets = {
        TopicPartition(topic.name, partition.partition_index): _offset(
            partition, now_ms, services.metadata.topic_id(topic.name)
        )
        for topic in request.topics
        if topic.name and topic.name not in refused
        async for partition in context.paced(topic.partitions)
    }
    known = {
        topic_partition: offset
        async for topic_partition, offset in context.paced(offsets.items())
        if services.metadata.partition(topic_partition) is not None
    }
    results = dict(await _commit(services, request, known, context)) if known else {}
    if refused:
        await refuse(results, request.topics, refused, context)
    others = services.groups.offsets.error_of_unknown_topics(request.group_id)
    return await _response(request, results, context, others=others)


def _refusal(request: TxnOffsetCommitRequest, context: RequestContext) -> ErrorCode | None:
    """Return the error of all partitions where the transactional id or the group is not the client's."""
    transactional_id = Resource(ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    if not context.allows(WRITE_TXNS, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return None


def _offset(partition: TxnOffsetCommitRequestPartition, now_ms: int, topic_id: UUID) -> CommittedOffset:
    return CommittedOffset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        topic_id=topic_id,
    )


async def _commit(
    services: Needs,
    request: TxnOffsetCommitRequest,
    offsets: Mapping[TopicPartition, CommittedOffset],
    context: RequestContext,
) -> Results:
    producer = await _verified(services, request, context)
    if isinstance(producer, ErrorCode):
        return dict.fromkeys(offsets, producer)
    return await services.groups.offsets.commit(
        request.group_id,
        offsets,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        producer=producer,
        version=context.api_version,
    )


async def _verified(
    services: Needs, request: TxnOffsetCommitRequest, context: RequestContext
) -> TransactionalProducer | ErrorCode:
    """Return the producer with the guard of its transaction, or why the coordinator refuses it."""
    epoch, producer_id = request.producer_epoch, request.producer_id
    number = services.groups.offsets.partition_of(request.group_id)
    if isinstance(number, ErrorCode):
        return number
    joins = context.api_version >= FIRST_THAT_JOINS
    if not (joins or services.verification.is_enabled):
        return TransactionalProducer(producer_id, epoch, NOT_REQUIRED)
    partition = TopicPartition(GROUP_METADATA_TOPIC, number)
    try:
        producers = services.replicas.leader(partition).log.producers
    except KafkaError as refused:
        return after_failed_commit(refused.code)
    now_ms = services.environment.clock.now_ms()
    guard = producers.begin_verification(producer_id, epoch, _UNKNOWN_SEQUENCE, now_ms, joins=joins)
    if guard is None:
        return TransactionalProducer(producer_id, epoch, None)
    error = await _answered(services, request, partition, context)
    if error is ErrorCode.NONE:
        return TransactionalProducer(producer_id, epoch, guard)
    if error in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.CONCURRENT_TRANSACTIONS):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # which every producer retries
    return after_failed_commit(error)


async def _answered(
    services: Needs, request: TxnOffsetCommitRequest, partition: TopicPartition, context: RequestContext
) -> ErrorCode:
    """Return what the transaction coordinator says of the group's partition: it verifies it, or adds it."""
    producer = Producer(request.producer_id, request.producer_epoch)
    if context.api_version >= FIRST_THAT_JOINS:
        joined = await services.verification.join(request.transactional_id, producer, [partition])
        return joined[partition]
    verified = await services.verification.verify(
        request.transactional_id,
        producer,
        [partition],
        knows_abortable=context.api_version >= FIRST_WITH_ABORTABLE,
    )
    return verified[partition]


async def _response(
    request: TxnOffsetCommitRequest,
    results: Results,
    context: RequestContext,
    *,
    others: ErrorCode,
) -> TxnOffsetCommitResponse:
    by_id = context.api_version >= FIRST_BY_ID
    is_unknown = others is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown_ids = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else others
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=_known_to(
                            context.api_version,
                            unknown_ids
                            if by_id and not topic.name
                            else results.get(TopicPartition(topic.name, partition.partition_index), others),
                        ),
                    )
                    async for partition in context.paced(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )


def _known_to(version: int, error: ErrorCode) -> ErrorCode:
    """Return the error as clients of this version know it: those before 2.0 fail on one of them."""
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < FIRST_WITH_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
