"""Fetch: whole batches from logs, at once or after a wait for more.

`reading` reads the partitions, `delayed_general` waits, `response` encodes the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Final

from ottla.broker.api.current_leaders import FIRST_FETCH, IS_ELSEWHERE, CurrentLeaders
from ottla.broker.api.fetch.delayed_general import (
    WatchedReads,
    is_enough,
    read_when_enough,
    wait_for_enough,
)
from ottla.broker.api.fetch.reading import (
    FetchTerms,
    Needs,
    Reads,
    estimated_size,
    is_throttled,
    read_all,
    reading,
)
from ottla.broker.api.fetch.response import FIRST_BY_ID, FetchAnswer, FetchedPartition, failed
from ottla.broker.api.fetch.sessions import FetchContext, Key, RequestedPartition
from ottla.broker.log.append.batch_validation import MAX_OPENED_BYTES
from ottla.broker.log.files.file_slices import warm
from ottla.broker.requests.authorization import may_be_refused, refusal_of_replica
from ottla.broker.runtime.loop_budget import LONG, at_once
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import convert_down
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.log.log import Slice
    from ottla.broker.requests.context import RequestContext
    from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

__all__ = ["Needs", "handle"]

MAX_CONVERTED_BYTES: Final = 8 * 1024 * 1024
"""Converted records that one answer holds in memory; others are sent from the file."""

_FIRST_WITH_REPLICA_STATE: Final = 15


def handle(
    services: Needs, request: FetchRequest, context: RequestContext
) -> FetchAnswer | Awaitable[FetchAnswer]:
    """Respond at once if there is enough; otherwise return the wait for it."""
    if context.api_version >= _FIRST_WITH_REPLICA_STATE:
        request.replica_id = request.replica_state.replica_id
    if context.is_long or may_be_refused(services, request, context):
        return _in_steps(services, request, context)
    terms = FetchTerms(services, request, context)
    wanted: dict[Key, RequestedPartition] = {}
    for topic in request.topics:
        named = _name(terms, topic)
        for partition in topic.partitions:
            _want(wanted, *named, partition)
    return _served(terms, request, list(wanted.values()))


async def _in_steps(services: Needs, request: FetchRequest, context: RequestContext) -> FetchAnswer:
    refusal = await refusal_of_replica(services, request, context)
    if refusal is not None:
        return await _refused(request, refusal, context)
    terms = FetchTerms(services, request, context)
    wanted: dict[Key, RequestedPartition] = {}
    for topic in request.topics:
        named = _name(terms, topic)
        async for partition in context.paced(topic.partitions):
            _want(wanted, *named, partition)
    answer = _served(terms, request, list(wanted.values()))
    return await answer if isinstance(answer, Awaitable) else answer


async def _refused(request: FetchRequest, refusal: KafkaError, context: RequestContext) -> FetchAnswer:
    answer = FetchAnswer()
    for topic in request.topics:
        partitions = [
            failed(partition.partition, refusal.code) async for partition in context.paced(topic.partitions)
        ]
        by_id = context.api_version >= FIRST_BY_ID
        answer.topics.append((topic.topic_id if by_id else topic.topic, partitions))
    return answer


def _name(terms: FetchTerms, topic: FetchTopic) -> tuple[str, UUID | None]:
    """The name of a topic and, where it is asked for by it, its id; of an unknown id the name is empty."""
    if not terms.by_id:
        return topic.topic, None
    return terms.services.metadata.topic_name(topic.topic_id) or "", topic.topic_id


def _want(
    wanted: dict[Key, RequestedPartition], topic: str, topic_id: UUID | None, partition: FetchPartition
) -> None:
    """Ask for a partition; one that is named again is asked for as it was named last, as Kafka does it."""
    requested = RequestedPartition(
        TopicPartition(topic, partition.partition),
        partition.fetch_offset,
        partition.partition_max_bytes,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
        partition.log_start_offset,
        topic_id,
        place=len(wanted),
    )
    wanted[requested.key] = requested


def _served(
    terms: FetchTerms, request: FetchRequest, wanted: list[RequestedPartition]
) -> FetchAnswer | Awaitable[FetchAnswer]:
    try:
        fetch = _open(terms, request, wanted)
    except KafkaError as error:
        return FetchAnswer(error_code=int(error.code))
    if terms.asks:
        _ask_for_topics(terms, fetch)
    _count_requests(terms.services, fetch)
    if len(fetch.wanted) > LONG:
        return _long_answer(terms, request, fetch)
    if fetch.session is not None:
        return _session_answer(terms, request, fetch)
    reads = at_once(reading(terms, fetch.wanted))
    if not is_enough(request, fetch, (result for _, result in reads)):
        return _delayed_answer(terms, request, fetch)
    return _answer_of(terms, request, fetch, reads)


def _ask_for_topics(terms: FetchTerms, fetch: FetchContext) -> None:
    """Begin to ask for the topics, each with the first read of it that needs the answer."""
    session, context = fetch.session, terms.context
    if session is None:
        terms.allowed = {}
        return
    terms.allowed = session.allowed_for(context.session.connection_id, context.index_epoch)
    if fetch.incremental:
        fetch.wanted = session.watched.to_read()


def _session_answer(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext
) -> FetchAnswer | Awaitable[FetchAnswer]:
    reads = WatchedReads(terms, request, fetch)
    if reads.read_now() or request.max_wait_ms <= 0:
        return _answer_of(terms, request, fetch, reads.results())
    return _delayed_session_answer(terms, request, fetch, reads)


def _answer_of(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext, reads: Reads
) -> FetchAnswer | Awaitable[FetchAnswer]:
    if terms.magic < 2 or any(result.is_cold for _, result in reads):
        return _prepared_answer(terms, request, fetch, reads)
    return _throttled(terms, fetch, reads) or at_once(_answering(terms, fetch, reads))


def _throttled(terms: FetchTerms, fetch: FetchContext, reads: Reads) -> FetchAnswer | None:
    """Answer with nothing but the throttle time where the client has exceeded a quota, as Kafka does.

    What was read is not counted: the client asks for it again. A session that the request would begin is
    dropped, for its client knows nothing of it.
    """
    quotas = terms.quotas
    if not quotas.is_limited:
        return None
    size = estimated_size(terms.version, reads)
    request_ms = 0 if quotas.request is None else int(quotas.request.wait_ms(quotas.now_ms()))
    throttle_time_ms = max(request_ms, 0 if request_ms else quotas.throttle_fetch(size))
    if not throttle_time_ms:
        return None
    terms.context.throttle_time_ms = throttle_time_ms
    if fetch.session is not None and not fetch.incremental:
        terms.services.fetch_sessions.drop(fetch.session_id)
        return FetchAnswer()
    return FetchAnswer(session_id=fetch.session_id)


def _open(terms: FetchTerms, request: FetchRequest, wanted: list[RequestedPartition]) -> FetchContext:
    services = terms.services
    forgotten = [key for topic in request.forgotten_topics_data for key in _keys(terms, topic)]
    fetch = services.fetch_sessions.open(
        request.session_id,
        request.session_epoch,
        wanted,
        forgotten,
        privileged=terms.is_follower,
        by_id=terms.by_id,
        replica=terms.replica,
        now_ms=services.environment.clock.monotonic_ms(),
        wall_ms=services.environment.clock.now_ms(),
    )
    if terms.by_id:
        for requested in fetch.wanted:
            requested.resolve(services.metadata.topic_name)
    return fetch


def _keys(terms: FetchTerms, topic: ForgottenTopic) -> list[Key]:
    if terms.by_id:
        return [(topic.topic_id, index) for index in topic.partitions]
    return [TopicPartition(topic.topic, index) for index in topic.partitions]


# ---- answering


async def _long_answer(terms: FetchTerms, request: FetchRequest, fetch: FetchContext) -> FetchAnswer:
    if request.max_wait_ms > 0:
        answer = await _delayed_answer(terms, request, fetch)
    elif fetch.session is None:
        answer = await _prepared_answer(terms, request, fetch, await read_all(terms, fetch.wanted))
    else:
        reads = WatchedReads(terms, request, fetch)
        await reads.read_all(keep=True)
        answer = await _prepared_answer(terms, request, fetch, reads.results())
    await terms.context.turn.drop(fetch.wanted)
    return answer


async def _delayed_answer(terms: FetchTerms, request: FetchRequest, fetch: FetchContext) -> FetchAnswer:
    return await _prepared_answer(terms, request, fetch, await read_when_enough(terms, request, fetch))


async def _delayed_session_answer(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext, reads: WatchedReads
) -> FetchAnswer:
    return await _prepared_answer(terms, request, fetch, await wait_for_enough(terms, request, reads))


def _answering(terms: FetchTerms, fetch: FetchContext, reads: Reads) -> Generator[None, None, FetchAnswer]:
    answer = FetchAnswer(session_id=fetch.session_id)
    carried = []
    last_topic: str | UUID | None = None
    leaders = CurrentLeaders(terms.services, terms.context.session.listener_name)
    for wanted, result in reads:
        yield
        if not fetch.must_respond(wanted, result):
            fetch.unchanged(wanted, result)
            continue
        carried.append((wanted, result))
        topic = wanted.topic_partition.topic
        named = topic if wanted.topic_id is None else wanted.topic_id
        if named != last_topic:
            answer.topics.append((named, []))
            last_topic = named
        if result.error_code in IS_ELSEWHERE and terms.version >= FIRST_FETCH:
            result.current_leader = leaders.of(wanted.topic_partition)
        answer.topics[-1][1].append(result)
        if result.size and terms.is_follower:
            _count_replicated(terms, wanted, result)
        if result.size and not terms.is_follower:
            terms.services.topic_metrics.of(topic).bytes_out.mark(result.size)
            terms.services.topic_metrics.all_topics.bytes_out.mark(result.size)
    fetch.answered(carried)
    answer.nodes = list(leaders.nodes.values())
    if terms.is_follower:
        terms.services.topic_metrics.replication_bytes_out.mark(answer.size)
    if len(carried) == 1 and carried[0][1].size and not terms.is_follower and not terms.rack:
        partition = terms.services.replicas.hosted(carried[0][0].topic_partition)
        if partition is not None:
            terms.services.fetch_fast_path.admit(terms.context, partition)
    return answer


def _count_replicated(terms: FetchTerms, wanted: RequestedPartition, result: FetchedPartition) -> None:
    """Count bytes that are throttled, and those that a follower copies to become a replica."""
    services, partition = terms.services, terms.services.replicas.hosted(wanted.topic_partition)
    if partition is None:
        return
    if is_throttled(services.replication_quotas.leader, partition):
        services.replication_quotas.leader.record(result.size)
    if terms.replica in partition.core.adding_replicas:
        services.topic_metrics.reassignment_bytes_out.mark(result.size)


async def _prepared_answer(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext, reads: Reads
) -> FetchAnswer:
    """Respond after work on a thread: cold records are read from the disk, old formats are converted."""
    if (throttled := _throttled(terms, fetch, reads)) is not None:
        return throttled
    if terms.magic < 2:
        reads = await _convert_enough(terms, request, fetch, reads)
    else:
        await warm(
            result.records
            for _, result in reads
            if result.is_cold and result.records is not None and not isinstance(result.records, bytes)
        )
    steps = _answering(terms, fetch, reads)
    return at_once(steps) if len(reads) <= LONG else await terms.context.turn.run(steps)


async def _convert_enough(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext, reads: Reads
) -> Reads:
    """Convert the batches that were read; if no record is left, wait once more for later ones.

    Markers of transactions and batches that compaction has emptied do not exist in older formats. A client
    behind the last record would ask for them again and again without a pause.
    """
    size = sum(result.size for _, result in reads)
    await _convert_all(terms, reads)
    nothing_left = size > 0 and not any(result.size or result.is_answer for _, result in reads)
    if not nothing_left or request.max_wait_ms <= 0:
        return reads
    request.min_bytes = size + 1
    reads = await read_when_enough(terms, request, fetch)
    await _convert_all(terms, reads)
    return reads


async def _convert_all(terms: FetchTerms, reads: Reads) -> None:
    """Convert the records for a client that knows older formats only, on a thread, one by one.

    When the converted records exceed what one answer may hold in memory, the partitions behind have none: the
    client asks for them again.
    """
    converted_bytes = 0
    for wanted, result in reads:
        records = result.records
        if records is None or isinstance(records, bytes):
            continue
        if converted_bytes >= MAX_CONVERTED_BYTES:
            result.records = b""
            continue
        try:
            result.records = await terms.services.record_threads.run(
                _convert, records, terms.magic, wanted.fetch_offset
            )
            converted_bytes += len(result.records)
        except KafkaError as error:
            result.records, result.error_code = None, int(error.code)
        terms.services.topic_metrics.of(wanted.topic_partition.topic).fetch_conversions.mark()
        terms.services.topic_metrics.all_topics.fetch_conversions.mark()


def _convert(records: Slice, magic: int, first_offset: int) -> bytes:
    return convert_down(
        records.read(),
        magic,
        first_offset=first_offset,
        enough_bytes=MAX_CONVERTED_BYTES,
        max_decompressed_bytes=MAX_OPENED_BYTES,
    )


def _count_requests(services: Needs, fetch: FetchContext) -> None:
    services.topic_metrics.all_topics.fetch_requests.mark(fetch.count)
