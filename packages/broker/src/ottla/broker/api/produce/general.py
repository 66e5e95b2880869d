"""Produce: append batches to logs, and answer when they are as safe as the client asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ottla.broker.api.current_leaders import tell_producer
from ottla.broker.api.produce.delayed import (
    ALL_ACKS,
    FIRST_BY_ID,
    LEADER_ACKS,
    NO_ACKS,
    Placed,
    nothing_to_wait_for,
    when_safe,
)
from ottla.broker.api.produce.verification import (
    Verified,
    Verifier,
    is_transactional,
    verified_now,
    verify,
)
from ottla.broker.log.append.batch_preparation import (
    TakesLong,
    convert,
    must_be_opened,
    needs_conversion,
    opened,
    quick_bytes,
)
from ottla.broker.log.append.batch_validation import MAX_OPENED_BYTES
from ottla.broker.log.append.record_checks import are_many_packed, is_packed
from ottla.broker.requests.authorization import refusing_names
from ottla.broker.requests.context import CloseConnection, Ordering, RequestContext
from ottla.broker.requests.permissions import WRITE_TOPICS, WRITE_TXNS
from ottla.broker.runtime.loop_budget import at_once
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnsupportedCompressionType,
)
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.records import BATCH_HEADER_SIZE, Codec, magic_at, read_header
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.api.produce.fast_path import ProduceFastPath
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.log.state.producer_state import VerificationGuard
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads

ADMIN_CLIENT_ID: Final = "__admin_client"
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_V2_ONLY: Final = 3
_OUTSIDE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
"""Errors that say nothing about the records; a topic that does not exist gets no metrics of its own."""


_OF_REQUEST: Final = (InvalidRequiredAcks, InvalidProducerIdMapping, TransactionalIdAuthorizationFailed)
"""Errors of a whole request, which every partition gets."""

Outcomes: TypeAlias = "dict[int, KafkaError | None]"
"""The entries of a request that are refused or whose records were opened, by `id`, with their error or None.

Not by partition: a request may name one twice, and the records of each entry are checked.
"""


class Needs(Protocol):
    """The parts of the broker that Produce uses."""

    environment: Environment
    metadata: MetadataCache
    produce_fast_path: ProduceFastPath
    record_threads: RecordThreads
    replicas: Replicas
    topic_metrics: TopicMetrics

    @property
    def verification(self) -> Verifier:
        """Asks transaction coordinators."""
        ...


def handle(
    services: Needs, request: ProduceRequest, context: RequestContext
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    """Append at once and in order; wait only for replicas, a flush, or records that must be opened."""
    if context.is_long:  # its bytes are its own, and the connection begins nothing else meanwhile
        return _in_line(services, request, context, None)
    refused: Outcomes = {}
    try:
        if context.has_authorizer or context.api_version >= FIRST_BY_ID:
            refused = at_once(_refusing_topics(services, request, context))
        _check_acks(request)
        if context.session.ordering.behind is not None or _must_open(services, request, context.api_version):
            return _in_line(services, _detached(request), context, refused)
        verified = verified_now(services, request, context)
    except _OF_REQUEST as error:
        return at_once(refusing(request, error, refused))
    if verified is None:
        return _in_line(services, _detached(request), context, refused)
    return _appended(services, request, context, refused, verified)


def _check_acks(request: ProduceRequest) -> None:
    if request.acks not in (NO_ACKS, LEADER_ACKS, ALL_ACKS):
        raise InvalidRequiredAcks


def _refusing_topics(
    services: Needs, request: ProduceRequest, context: RequestContext
) -> Generator[None, None, Outcomes]:
    """Name the topics and ask for them, in steps; return the entries of those that are refused.

    Their records are dropped, so that nothing behind this sees them. Raises
    `TransactionalIdAuthorizationFailed`.
    """
    refused: Outcomes = {}
    if request.transactional_id is not None and context.has_authorizer:
        yield from _asking_for_transaction(request, request.transactional_id, context)
    if context.api_version >= FIRST_BY_ID:
        for topic in request.topic_data:
            topic.name = services.metadata.topic_name(topic.topic_id) or ""
            if not topic.name:
                yield from _refusing_one(topic, UnknownTopicId, refused)
    if not context.has_authorizer:
        return refused
    names = yield from refusing_names(
        context, WRITE_TOPICS, (topic.name for topic in request.topic_data if topic.name)
    )
    for topic in request.topic_data:
        if topic.name in names:
            yield from _refusing_one(topic, TopicAuthorizationFailed, refused)
    return refused


def _refusing_one(
    topic: TopicProduceData, error: type[KafkaError], refused: Outcomes
) -> Generator[None, None, None]:
    for data in topic.partition_data:
        refused[id(data)] = error()
        data.records = None
        yield


def _asking_for_transaction(
    request: ProduceRequest, transactional_id: str, context: RequestContext
) -> Generator[None, None, None]:
    """Ask for the transactional id, if a batch is transactional. A batch without one is refused by itself."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            if is_transactional(data.records):
                if not context.allows(WRITE_TXNS, Resource(ResourceType.TRANSACTIONAL_ID, transactional_id)):
                    raise TransactionalIdAuthorizationFailed
                return
            yield


def refusing(
    request: ProduceRequest, error: KafkaError, refused: Outcomes
) -> Generator[None, None, ProduceResponse]:
    """Answer every partition with an error, one in each step; those that are refused have their own.

    Raises CloseConnection where the producer expects no answer.
    """
    if request.acks == NO_ACKS:
        raise CloseConnection
    response = ProduceResponse()
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            answer = Placed(PartitionProduceResponse(index=data.index))
            answer.failed(refused.get(id(data)) or error)
            answers.append(answer.response)
            yield
        response.responses.append(_answer_of_topic(topic, answers))
    return response


def _answer_of_topic(
    topic: TopicProduceData, answers: list[PartitionProduceResponse]
) -> TopicProduceResponse:
    return TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)


def _must_open(services: Needs, request: ProduceRequest, version: int) -> bool:
    return _unfolds_many(request) or any(
        partition.records
        and _is_to_be_opened(
            services, TopicPartition(topic.name, partition.index), partition.records, version
        )
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def _is_to_be_opened(
    services: Needs, topic_partition: TopicPartition, records: bytes | memoryview, version: int
) -> bool:
    """Whether records must be opened on a thread: old formats, another codec than the topic's, key checks."""
    try:
        if needs_conversion(records):
            return version < _FIRST_WITH_V2_ONLY
        return to_be_opened(services, topic_partition, records)
    except CorruptMessage:
        return False  # the append raises the error


def to_be_opened(services: Needs, topic_partition: TopicPartition, records: bytes | memoryview) -> bool:
    """Return whether batches of format 2 must be opened. Raises CorruptMessage for torn ones."""
    partition = services.replicas.hosted(topic_partition)
    return partition is not None and must_be_opened(records, partition.log.config)


def _unfolds_many(request: ProduceRequest) -> bool:
    """Whether so many batches are compressed that their checks together would hold the event loop."""
    entries = (data.records for topic in request.topic_data for data in topic.partition_data)
    return are_many_packed(records for records in entries if records and _is_packed(records))


def _is_packed(records: bytes | memoryview | None) -> bool:
    if not records or len(records) < BATCH_HEADER_SIZE:
        return False
    return magic_at(records) == 2 and is_packed(records)


def _detached(request: ProduceRequest) -> ProduceRequest:
    """Copy the records: the network's buffer may be reused once `handle` has returned."""
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if partition.records is not None:
                partition.records = bytes(partition.records)
    return request


def _in_line(
    services: Needs, request: ProduceRequest, context: RequestContext, refused: Outcomes | None
) -> Awaitable[ProduceResponse | None]:
    """Append behind earlier requests of this connection, and open records on a thread.

    Nothing has been checked yet where `refused` is None.
    """
    ordering = context.session.ordering
    before = ordering.behind
    placed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ordering.behind = placed
    return _open_then_append(services, request, context, refused, ordering, before, placed)


async def _open_then_append(
    services: Needs,
    request: ProduceRequest,
    context: RequestContext,
    refused: Outcomes | None,
    ordering: Ordering,
    before: Awaitable[Any] | None,
    placed: asyncio.Future[None],
) -> ProduceResponse | None:
    try:
        if refused is None:
            refused = await context.turn.run(_refusing_topics(services, request, context))
            _check_acks(request)
        outcomes = {**refused, **await _open_all(services, request, context)}
        verified = await verify(services, request, context)
        if before is not None:
            await before
        steps = appending(services, request, context, outcomes, verified)
        response, appended = await context.turn.run(steps) if context.is_long else at_once(steps)
        answer = _answer(services, request, context, response, appended)
    except _OF_REQUEST as error:
        return await context.turn.run(refusing(request, error, refused or {}))
    finally:
        if ordering.behind is placed:
            ordering.behind = None
        placed.set_result(None)
    return await answer if isinstance(answer, Awaitable) else answer


async def _open_all(services: Needs, request: ProduceRequest, context: RequestContext) -> Outcomes:
    """Open the records that must be; return the error of each partition, or None."""
    outcomes: Outcomes = {}
    many = _unfolds_many(request)
    for topic in request.topic_data:
        async for data in context.paced(topic.partition_data):
            topic_partition = TopicPartition(topic.name, data.index)
            if not data.records:
                continue
            if not (many and _is_packed(data.records)) and not _is_to_be_opened(
                services, topic_partition, data.records, context.api_version
            ):
                continue
            try:
                data.records = await open_one(services, topic_partition, data.records)
                outcomes[id(data)] = None
            except KafkaError as error:
                outcomes[id(data)] = error
    return outcomes


async def open_one(services: Needs, topic_partition: TopicPartition, records: bytes | memoryview) -> bytes:
    """Return records as they are stored, after they were opened on a thread. Raises KafkaError."""
    config, threads = services.replicas.leader(topic_partition).log.config, services.record_threads
    try:
        return await _open_on(threads.run, quick_bytes(config), services, topic_partition, records)
    except TakesLong:
        return await _open_on(threads.run_long, MAX_OPENED_BYTES, services, topic_partition, records)


async def _open_on(
    run: Callable[..., Awaitable[bytes]],
    most_bytes: int,
    services: Needs,
    topic_partition: TopicPartition,
    records: bytes | memoryview,
) -> bytes:
    config = services.replicas.leader(topic_partition).log.config
    now_ms = services.environment.clock.now_ms()
    if not needs_conversion(records):
        return await run(opened, records, config, now_ms, most_bytes)
    converted = await run(convert, records, now_ms, config, most_bytes)
    finished = await run(opened, converted, config, now_ms)
    services.topic_metrics.of(topic_partition.topic).produce_conversions.mark()
    services.topic_metrics.all_topics.produce_conversions.mark()
    return finished


def _appended(
    services: Needs, request: ProduceRequest, context: RequestContext, refused: Outcomes, verified: Verified
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    response, placed = at_once(appending(services, request, context, refused, verified))
    return _answer(services, request, context, response, placed)


def _answer(
    services: Needs,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    placed: list[Placed],
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks == NO_ACKS:
        if any(placement.response.error_code for placement in placed):
            raise CloseConnection  # the only way to tell a producer that expects no answer
        return None
    if nothing_to_wait_for(request.acks, placed):
        return tell_producer(services, context.session.listener_name, context.api_version, response)
    return _when_safe(services, request, context, response, placed)


async def _when_safe(
    services: Needs,
    request: ProduceRequest,
    context: RequestContext,
    response: ProduceResponse,
    placed: list[Placed],
) -> ProduceResponse:
    await when_safe(request, context, response, placed, services.environment.clock)
    return tell_producer(services, context.session.listener_name, context.api_version, response)


def appending(
    services: Needs,
    request: ProduceRequest,
    context: RequestContext,
    outcomes: Outcomes,
    verified: Verified,
) -> Generator[None, None, tuple[ProduceResponse, list[Placed]]]:
    """Append to every partition, one in each step; each partition's answer has its offsets or its error."""
    response = ProduceResponse()
    placed: list[Placed] = []
    now_ms = services.environment.clock.now_ms()
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            result = Placed(PartitionProduceResponse(index=data.index))
            topic_partition = TopicPartition(topic.name, data.index)
            try:
                if (failure := outcomes.get(id(data))) is not None:
                    raise failure
                _append_one(
                    services,
                    request,
                    context,
                    topic_partition,
                    topic.topic_id,
                    data.records,
                    result,
                    now_ms,
                    opened=id(data) in outcomes,
                    guard=verified.guard_of(topic_partition),
                )
            except KafkaError as error:
                result.failed(error)
            except OSError as error:
                result.failed(KafkaStorageError(str(error)))
            if result.response.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                count(services, topic.name, data.records, result)
            answers.append(result.response)
            placed.append(result)
            yield
        response.responses.append(_answer_of_topic(topic, answers))
    return response, placed


def _append_one(
    services: Needs,
    request: ProduceRequest,
    context: RequestContext,
    topic_partition: TopicPartition,
    topic_id: UUID,
    records: bytes | memoryview | None,
    result: Placed,
    now_ms: int,
    *,
    opened: bool,
    guard: VerificationGuard | None,
) -> None:
    if topic_partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicException(f"{topic_partition.topic} is written by brokers only")
    partition = services.replicas.leader(topic_partition)
    if context.api_version >= FIRST_BY_ID and partition.log.topic_id not in (None, topic_id):
        raise UnknownTopicId  # the topic was deleted and created again
    check_records(records, request, context.api_version)
    assert records is not None
    appended = partition.append(
        records, required_acks=request.acks, now_ms=now_ms, opened=opened, guard=guard
    )
    result.placed(partition, appended)
    services.produce_fast_path.admit(context, partition)


def check_records(records: bytes | memoryview | None, request: ProduceRequest, version: int) -> None:
    """Raise unless this version of Produce may carry these records."""
    if not records:
        raise InvalidRecord("a partition's records are empty")
    if magic_at(records) != 2:
        raise InvalidRecord(f"Produce version {version} carries record batches of format 2 only")
    header = read_header(records)
    if version >= _FIRST_WITH_V2_ONLY and header.size_in_bytes < len(records):
        raise InvalidRecord(f"Produce version {version} carries exactly one record batch for a partition")
    if header.codec == Codec.ZSTD and version < _FIRST_WITH_ZSTD:
        raise UnsupportedCompressionType("zstd needs Produce version 7")
    if header.is_control:
        raise InvalidRecord("control batches are written by brokers only")
    if header.is_transactional and request.transactional_id is None:
        raise TransactionalIdAuthorizationFailed("a transactional batch needs a transactional.id")


def count(services: Needs, topic: str, records: bytes | memoryview | None, result: Placed) -> None:
    """Count a write to a partition."""
    for_all, error_code = services.topic_metrics.all_topics, result.response.error_code
    meters = [for_all] if error_code in _OUTSIDE else [for_all, services.topic_metrics.of(topic)]
    for meter in meters:
        meter.produce_requests.mark()
        if error_code:
            meter.failed_produce_requests.mark()
            meter.bytes_rejected.mark(len(records or b""))
        elif result.appended is not None:
            meter.bytes_in.mark(len(records or b""))
            meter.messages_in.mark(result.appended.last_offset - result.appended.base_offset + 1)
