"""Fetch: whole batches from logs, at once or after a wait for more (Kafka's delayed fetch)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.handlers.fetch_response import FetchAnswer, FetchedPartition
from ottla.broker.handlers.fetch_sessions import FetchContext, RequestedPartition
from ottla.broker.handlers.request_context import RequestContext
from ottla.broker.log.slices import warm
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnsupportedCompressionType,
    UnsupportedVersion,
)
from ottla.protocol.records import convert_down
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.environment import Environment
    from ottla.broker.handlers.fetch_fast_path import FetchFastPath
    from ottla.broker.handlers.fetch_sessions import FetchSessions
    from ottla.broker.handlers.topic_metrics import TopicMetrics
    from ottla.broker.log.log import Slice
    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.protocol.messages.fetch import FetchRequest

_log = logging.getLogger(__name__)

READ_COMMITTED: Final = 1
NO_REPLICA: Final = -1
_FIRST_WITH_TOTAL_LIMIT: Final = 3
_FIRST_WITH_V2: Final = 4
_FIRST_WITH_ZSTD: Final = 10


class Needs(Protocol):
    """The parts of the broker that Fetch uses."""

    config: BrokerConfig
    environment: Environment
    fetch_sessions: FetchSessions
    fetch_fast_path: FetchFastPath
    replicas: Replicas
    topic_metrics: TopicMetrics


class FetchTerms:
    """The terms of one request: the reader, its limits, and how far it may see."""

    __slots__ = ("committed_only", "context", "magic", "max_bytes", "replica", "services", "version")

    def __init__(self, services: Needs, request: FetchRequest, context: RequestContext) -> None:
        version = context.api_version
        self.services = services
        self.context = context
        self.version = version
        self.replica = request.replica_id
        self.committed_only = request.isolation_level == READ_COMMITTED
        limit = services.config.fetch_max_bytes
        self.max_bytes = min(request.max_bytes, limit) if version >= _FIRST_WITH_TOTAL_LIMIT else limit
        self.magic = 2 if version >= _FIRST_WITH_V2 else 1 if version >= 2 else 0

    @property
    def is_follower(self) -> bool:
        """Whether the reader is a follower."""
        return self.replica >= 0


def handle(
    services: Needs, request: FetchRequest, context: RequestContext
) -> FetchAnswer | Awaitable[FetchAnswer]:
    """Respond at once if there is enough; otherwise return the wait for it."""
    terms = FetchTerms(services, request, context)
    try:
        fetch = _open(services, request, terms)
    except KafkaError as error:
        return FetchAnswer(error_code=int(error.code))
    _count_requests(services, fetch)
    results = read_all(terms, fetch.wanted)
    if not _is_enough(request, fetch, results):
        return _wait(terms, request, fetch, context)
    if terms.magic < 2 or any(one.is_cold for one in results):
        return _prepared_answer(terms, fetch, results)
    return _answer(terms, fetch, results)


def _open(services: Needs, request: FetchRequest, terms: FetchTerms) -> FetchContext:
    wanted = [
        RequestedPartition(
            TopicPartition(topic.topic, one.partition),
            one.fetch_offset,
            one.partition_max_bytes,
            one.current_leader_epoch,
            one.last_fetched_epoch,
            one.log_start_offset,
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    forgotten = [
        TopicPartition(topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return services.fetch_sessions.open(
        request.session_id,
        request.session_epoch,
        wanted,
        forgotten,
        privileged=terms.is_follower,
        now_ms=services.environment.clock.monotonic_ms(),
    )


# ---- terms


def read_all(terms: FetchTerms, wanted: list[RequestedPartition]) -> list[FetchedPartition]:
    """Read every partition, in order, within the request's limit.

    The first partition with records returns at least one batch, however large: a reader with limits below the
    size of a batch would make no progress otherwise (KIP-74).
    """
    left, results = terms.max_bytes, []
    nothing_yet = True
    for one in wanted:
        result = _read_or_fail(terms, one, min(one.max_bytes, left), nothing_yet)
        if result.size:
            nothing_yet = False
            left = max(0, left - result.size)
        results.append(result)
    return results


def _read_or_fail(
    terms: FetchTerms, wanted: RequestedPartition, max_bytes: int, at_least_one: bool
) -> FetchedPartition:
    topic_partition = wanted.topic_partition
    try:
        partition = terms.services.replicas.leader(topic_partition, wanted.current_leader_epoch)
        return _read(terms, partition, wanted, max_bytes, at_least_one)
    except KafkaError as error:
        _count_failure(terms.services, topic_partition, error)
        return FetchedPartition(topic_partition.partition, error_code=int(error.code))
    except (OSError, CorruptStorage) as error:
        _log.warning("%s cannot be read at %d: %s", topic_partition, wanted.fetch_offset, error)
        _count_failure(terms.services, topic_partition, KafkaStorageError(str(error)))
        return FetchedPartition(topic_partition.partition, error_code=int(ErrorCode.KAFKA_STORAGE_ERROR))


def _read(
    terms: FetchTerms,
    partition: HostedPartition,
    wanted: RequestedPartition,
    max_bytes: int,
    at_least_one: bool,
) -> FetchedPartition:
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
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        raise OffsetOutOfRange
    up_to = _visible_end(terms, partition)
    if wanted.fetch_offset < up_to and (max_bytes > 0 or at_least_one):
        records = partition.read(wanted.fetch_offset, max_bytes, up_to=up_to, at_least_one=at_least_one)
        if records.length:
            result.records = records
            result.is_cold = partition.is_cold(wanted.fetch_offset, records)
            if result.aborted is not None:
                result.aborted = _aborted(partition, wanted.fetch_offset, up_to)
    return result


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
    return [(one.producer_id, one.first_offset) for one in partition.log.aborted_transactions(start, end)]


# ---- waiting


def _is_enough(request: FetchRequest, fetch: FetchContext, results: list[FetchedPartition]) -> bool:
    if request.max_wait_ms <= 0 or not fetch.wanted:
        return True
    size = 0
    for result in results:
        if result.error_code or result.diverging_epoch is not None:
            return True
        size += result.size
    return size >= request.min_bytes


async def _wait(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext, context: RequestContext
) -> FetchAnswer:
    """Wait until there are enough records, a partition has an error, or the time is over."""
    clock = terms.services.environment.clock
    began_ms = clock.monotonic_ms()
    try:
        async with asyncio.timeout(request.max_wait_ms / 1000):
            results = await _until_enough(terms, request, fetch)
    except TimeoutError:
        results = read_all(terms, fetch.wanted)
    context.remote_ms += clock.monotonic_ms() - began_ms
    return await _prepared_answer(terms, fetch, results)


async def _until_enough(
    terms: FetchTerms, request: FetchRequest, fetch: FetchContext
) -> list[FetchedPartition]:
    changed = asyncio.Event()
    watched = _watch(terms, fetch, changed)
    try:
        while True:
            changed.clear()
            results = read_all(
                terms, fetch.wanted
            )  # also records appended between the first read and the watch
            if _is_enough(request, fetch, results):
                return results
            del results  # close the files of a read that was not enough
            await changed.wait()
    finally:
        for partition in watched:
            partition.watchers.pop(changed.set, None)


def _watch(terms: FetchTerms, fetch: FetchContext, changed: asyncio.Event) -> list[HostedPartition]:
    watched: list[HostedPartition] = []
    for one in fetch.wanted:
        partition = terms.services.replicas.hosted(one.topic_partition)
        if partition is not None:
            partition.watchers[changed.set] = None
            watched.append(partition)
    return watched


# ---- answering


def _answer(terms: FetchTerms, fetch: FetchContext, results: list[FetchedPartition]) -> FetchAnswer:
    answer = FetchAnswer(session_id=fetch.session_id)
    carried = [
        (wanted, result)
        for wanted, result in zip(fetch.wanted, results, strict=True)
        if fetch.must_respond(wanted, result)
    ]
    last_topic: str | None = None
    for wanted, result in carried:
        topic = wanted.topic_partition.topic
        if topic != last_topic:
            answer.topics.append((topic, []))
            last_topic = topic
        answer.topics[-1][1].append(result)
        if result.size and not terms.is_follower:
            terms.services.topic_metrics.of(topic).bytes_out.mark(result.size)
            terms.services.topic_metrics.all_topics.bytes_out.mark(result.size)
    fetch.answered(carried)
    if len(carried) == 1 and carried[0][1].size and not terms.is_follower:
        partition = terms.services.replicas.hosted(carried[0][0].topic_partition)
        if partition is not None:
            terms.services.fetch_fast_path.admit(terms.context, partition)
    return answer


async def _prepared_answer(
    terms: FetchTerms, fetch: FetchContext, results: list[FetchedPartition]
) -> FetchAnswer:
    """Respond after work on a thread: cold records are read from the disk, old formats are converted."""
    if terms.magic < 2:
        await _convert_all(terms, fetch, results)
    else:
        await warm(
            one.records
            for one in results
            if one.is_cold and one.records is not None and not isinstance(one.records, bytes)
        )
    return _answer(terms, fetch, results)


async def _convert_all(terms: FetchTerms, fetch: FetchContext, results: list[FetchedPartition]) -> None:
    """Convert the records for a client that knows older formats only, on a thread, one by one."""
    for wanted, result in zip(fetch.wanted, results, strict=True):
        records = result.records
        if records is None or isinstance(records, bytes):
            continue
        try:
            result.records = await asyncio.to_thread(_convert, records, terms.magic)
        except KafkaError as error:
            result.records, result.error_code = None, int(error.code)
        terms.services.topic_metrics.of(wanted.topic_partition.topic).fetch_conversions.mark()
        terms.services.topic_metrics.all_topics.fetch_conversions.mark()


def _convert(records: Slice, magic: int) -> bytes:
    return bytes(convert_down(records.read(), magic))


def _count_requests(services: Needs, fetch: FetchContext) -> None:
    services.topic_metrics.all_topics.fetch_requests.mark(len(fetch.wanted))


def _count_failure(services: Needs, topic_partition: TopicPartition, error: KafkaError) -> None:
    services.topic_metrics.all_topics.failed_fetch_requests.mark()
    if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        services.topic_metrics.of(topic_partition.topic).failed_fetch_requests.mark()
