"""ShareAcknowledge: finish, release or renew acquired records; the checks that ShareFetch shares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.api.current_leaders import IS_ELSEWHERE, CurrentLeaders
from ottla.broker.cluster.features import SHARE as SHARE_FEATURE
from ottla.broker.requests.permissions import READ_GROUP, READ_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.share.partition import REJECT, RENEW, Acknowledgement
from ottla.broker.share.sessions import FINAL_EPOCH, Member, ShareSession, TopicIdPartition
from ottla.broker.share.state import SharePartitionKey
from ottla.protocol.errors import (
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from ottla.protocol.messages.fetch import NodeEndpoint
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    LeaderIdAndEpoch,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchRequest,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.share.parts import ShareParts

_MAX_MEMBER_ID: Final = 36
_FIRST_WITH_RENEWAL: Final = 2


class Needs(Protocol):
    """The parts of the broker that ShareAcknowledge uses."""

    metadata: MetadataCache
    replicas: Replicas
    topic_metrics: TopicMetrics

    @property
    def share(self) -> Callable[[], ShareParts]:
        """Returns the parts for share groups."""
        ...

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...


async def handle(
    services: Needs, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    """Respond once what was acknowledged is persisted."""
    try:
        member = member_of(services, request, context)
        share = services.share()
        session = share.sessions.acknowledge(member, request.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=int(error.code), error_message=str(error) or None)
    asked = [
        (TopicIdPartition(topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
        for topic in request.topics
        async for partition in context.paced(topic.partitions)
    ]
    access = TopicAccess(services, context)
    begun = await acknowledge(access, member, asked, is_renewal=request.is_renew_ack)
    results = await outcomes(context, begun)
    await count_acknowledgements(access, results)
    if request.share_session_epoch == FINAL_EPOCH:
        end_session(share, session)
    lock_ms = share.partitions.terms(member.group_id).limits.record_lock_duration_ms
    response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
    leaders = CurrentLeaders(services, context.session.listener_name)
    topics: dict[object, ShareAcknowledgeTopicResponse] = {}
    async for asked_for, failure in context.paced(results.items()):
        topic = topics.setdefault(
            asked_for.topic_id, ShareAcknowledgeTopicResponse(topic_id=asked_for.topic_id)
        )
        code, message = code_of(failure)
        topic.partitions.append(
            ShareAcknowledgePartitionData(
                partition_index=asked_for.partition, error_code=code, error_message=message,
                current_leader=leader_of(leaders, access, asked_for, code),
            )
        )  # fmt: skip
    response.responses = list(topics.values())
    response.node_endpoints = endpoints(leaders)
    return response


# ---- shared with ShareFetch


def member_of(
    services: Needs, request: ShareAcknowledgeRequest | ShareFetchRequest, context: RequestContext
) -> Member:
    """Return the member that a request names. Raises the error of the whole response."""
    if not services.features.level(SHARE_FEATURE):
        raise UnsupportedVersion
    group_id, member_id = request.group_id, request.member_id
    if group_id is None:
        raise InvalidRequest("Invalid group id in the request.")
    if not context.allows(READ_GROUP, Resource(ResourceType.GROUP, group_id)):
        raise GroupAuthorizationFailed
    if not member_id or len(member_id) > _MAX_MEMBER_ID:
        raise InvalidRequest("Invalid member id in the request.")
    return Member(group_id, member_id)


class TopicAccess:
    """The topics of one request: their names, and whether the client may read them."""

    def __init__(self, services: Needs, context: RequestContext) -> None:
        self.services = services
        self.context = context
        self._allowed: dict[str, bool] = {}

    def find(self, asked: TopicIdPartition) -> TopicPartition:
        """Return a partition by its name. Raises KafkaError."""
        metadata = self.services.metadata
        name = metadata.topic_name(asked.topic_id)
        if name is None:
            raise UnknownTopicId
        allowed = self._allowed.get(name)
        if allowed is None:
            allowed = self.context.allows(READ_TOPICS, Resource(ResourceType.TOPIC, name))
            self._allowed[name] = allowed
        if not allowed:
            raise TopicAuthorizationFailed
        if not 0 <= asked.partition < metadata.partition_count(name):
            raise UnknownTopicOrPartition
        return TopicPartition(name, asked.partition)

    def name_of(self, asked: TopicIdPartition) -> TopicPartition | None:
        """Return a partition by its name, or None for an unknown topic."""
        name = self.services.metadata.topic_name(asked.topic_id)
        return None if name is None else TopicPartition(name, asked.partition)

    async def topics_of(self, asked: Iterable[TopicIdPartition]) -> set[str]:
        """Return the topics of partitions that this broker leads, by their names."""
        topics: set[str] = set()
        async for of in self.context.paced(asked):
            found = self.name_of(of)
            if found is not None and found.topic not in topics and self._leads(found):
                topics.add(found.topic)
        return topics

    def _leads(self, topic_partition: TopicPartition) -> bool:
        hosted = self.services.replicas.hosted(topic_partition)
        return hosted is not None and hosted.leads


class Begun(NamedTuple):
    """The acknowledgement of one partition: an error, or the wait until it is persisted."""

    error: KafkaError | None
    settled: Awaitable[None] | None = None


async def acknowledge(
    access: TopicAccess,
    member: Member,
    asked: Iterable[tuple[TopicIdPartition, Sequence[AcknowledgementBatch]]],
    *,
    is_renewal: bool,
) -> dict[TopicIdPartition, Begun]:
    """Begin the acknowledgements of a request, in its order; each partition by itself."""
    context, share = access.context, access.services.share()
    may_renew = context.api_version >= _FIRST_WITH_RENEWAL
    begun: dict[TopicIdPartition, Begun] = {}
    async for of, batches in context.paced(asked):
        if not batches:
            continue
        try:
            access.find(of)
            checked = await _checked(context, batches, may_renew=may_renew, is_renewal=is_renewal)
            topic_partition = access.find(of)  # the check may have taken turns of the loop
            hosted = share.partitions.get(SharePartitionKey(member.group_id, *of), topic_partition)
            if hosted is None:
                access.services.replicas.leader(topic_partition)
                raise UnknownTopicOrPartition("No member has fetched from the share partition.")
            begun[of] = Begun(None, hosted.acknowledge(member.member_id, checked))
        except KafkaError as error:
            begun[of] = Begun(error)
    return begun


async def _checked(
    context: RequestContext, batches: Sequence[AcknowledgementBatch], *, may_renew: bool, is_renewal: bool
) -> list[Acknowledgement]:
    """Return the acknowledgements. Raises InvalidRequest for ranges and types that say nothing.

    Of one that is repeated again and again two are left, which have the outcome of all.
    """
    last_type, previous_end = RENEW if may_renew else REJECT, -1
    checked: list[Acknowledgement] = []
    async for batch in context.paced(batches):
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first > last or first < previous_end:
            raise InvalidRequest("Acknowledgements must be ranges of offsets in their order.")
        if not types or (len(types) > 1 and len(types) != last - first + 1):
            raise InvalidRequest("An acknowledgement has one type, or one for each offset.")
        if min(types) < 0 or max(types) > last_type or (not is_renewal and RENEW in types):
            raise InvalidRequest("There is no such type of acknowledgement.")
        previous_end = last
        acknowledgement = Acknowledgement(first, last, types)
        if checked[-2:] != [acknowledgement] * 2:
            checked.append(acknowledgement)
    return checked


async def outcomes(
    context: RequestContext, begun: Mapping[TopicIdPartition, Begun]
) -> dict[TopicIdPartition, KafkaError | None]:
    """Wait until everything is persisted; return the error of each partition."""
    results: dict[TopicIdPartition, KafkaError | None] = {}
    async for of, (error, settled) in context.paced(begun.items()):
        results[of] = error
        if settled is not None:
            try:
                await asyncio.shield(settled)  # persisted also when the client has gone
            except KafkaError as failure:
                results[of] = failure
    return results


async def count_acknowledgements(
    access: TopicAccess, results: Mapping[TopicIdPartition, KafkaError | None]
) -> None:
    """Count a request for each of its topics, and those of them that have an error."""
    metrics = access.services.topic_metrics
    for topic in await access.topics_of(results):
        for meters in (metrics.all_topics, metrics.of(topic)):
            meters.share_acknowledgements.mark()
    for topic in await access.topics_of(of for of, error in results.items() if error is not None):
        for meters in (metrics.all_topics, metrics.of(topic)):
            meters.failed_share_acknowledgements.mark()


def end_session(share: ShareParts, session: ShareSession) -> None:
    """End a session, and release what its member holds."""
    if share.sessions.end(session):
        share.release(session)


def code_of(error: KafkaError | None) -> tuple[int, str | None]:
    """Return code and message of a result."""
    return (0, None) if error is None else (int(error.code), str(error) or None)


def leader_of(
    leaders: CurrentLeaders, access: TopicAccess, asked: TopicIdPartition, code: int
) -> LeaderIdAndEpoch:
    """Return the leader of a partition that is led elsewhere; else no leader."""
    topic_partition = access.name_of(asked) if code in IS_ELSEWHERE else None
    if topic_partition is None:
        return LeaderIdAndEpoch()
    found = leaders.of(topic_partition)
    return LeaderIdAndEpoch(leader_id=found.leader_id, leader_epoch=found.epoch)


def endpoints(leaders: CurrentLeaders) -> list[NodeEndpoint]:
    """Return the addresses of the leaders that were named."""
    return [NodeEndpoint(**node._asdict()) for node in leaders.nodes.values()]


REFUSED: Final = frozenset({ErrorCode.SHARE_SESSION_LIMIT_REACHED})
"""Errors that a member repeats at once: its answer waits as long as it would for records."""
