"""ShareFetch: acquire records of share partitions for a member, and take its acknowledgements with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.current_leaders import CurrentLeaders
from ottla.broker.api.share_acknowledge import (
    REFUSED,
    TopicAccess,
    acknowledge,
    code_of,
    count_acknowledgements,
    end_session,
    endpoints,
    leader_of,
    member_of,
    outcomes,
)
from ottla.broker.share.partition import Acquisition
from ottla.broker.share.sessions import FINAL_EPOCH, Member, TopicIdPartition
from ottla.broker.share.state import SharePartitionKey
from ottla.protocol.errors import InvalidRequest, KafkaError, KafkaStorageError
from ottla.protocol.messages.share_sessions import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.storage import CorruptStorage

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.share.hosted_partition import Delivered, HostedSharePartition
    from ottla.broker.share.parts import ShareParts

BATCH_OPTIMIZED: Final = 0
RECORD_LIMIT: Final = 1
_READS_WITHOUT_RECORDS: Final = 100
"""Reads of one fetch that only find records which nobody gets, before it waits for others."""


class Needs(Protocol):
    """The parts of the broker that ShareFetch uses."""

    config: BrokerConfig
    delayed_fetches: DelayedFetches
    environment: Environment
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


async def handle(services: Needs, request: ShareFetchRequest, context: RequestContext) -> ShareFetchResponse:
    """Respond when records were acquired, or the time is over, and all acknowledgements are persisted."""
    asked = [
        (TopicIdPartition(topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
        for topic in request.topics
        async for partition in context.paced(topic.partitions)
    ]
    wanted = {of: None async for of, _ in context.paced(asked)}
    try:
        member = member_of(services, request, context)
        _check(request)
        share = services.share()
        session = share.sessions.fetch(
            member,
            request.share_session_epoch,
            wanted,
            [
                TopicIdPartition(topic.topic_id, number)
                for topic in request.forgotten_topics_data
                async for number in context.paced(topic.partitions)
            ],
            acknowledges=any(batches for _, batches in asked),
            connection_id=context.session.connection_id,
        )
    except KafkaError as error:
        if error.code in REFUSED:
            await _wait_as_fetch(services, request.max_wait_ms)
        return ShareFetchResponse(error_code=int(error.code), error_message=str(error) or None)
    context.session.on_gone = share.connection_ended
    if context.session.is_gone:  # before this request was begun
        share.connection_ended(context.session.connection_id)
    access = TopicAccess(services, context)
    begun = await acknowledge(access, member, asked, is_renewal=request.is_renew_ack)
    is_last = request.share_session_epoch == FINAL_EPOCH
    fetch = _Fetch(services, share, access, member, request)
    if not is_last and not request.is_renew_ack:
        await fetch.run(session.in_turn())
    results = await outcomes(context, begun)
    await count_acknowledgements(access, results)
    if is_last:
        end_session(share, session)
    return await _response(fetch, results)


async def _wait_as_fetch(services: Needs, max_wait_ms: int) -> None:
    """Wait as a fetch without records does: the broker bounds how many wait together."""
    if max_wait_ms <= 0:
        return
    over = asyncio.Event()
    wait = services.delayed_fetches.begin(over.set, is_follower=False, at_most_ms=max_wait_ms)
    try:
        await over.wait()
    finally:
        wait.close()


def _check(request: ShareFetchRequest) -> None:
    """Raise InvalidRequest for an unknown mode, and for a fetch that renews locks and asks for records."""
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise InvalidRequest(
            f"There is no share_acquire_mode {request.share_acquire_mode}: 0 and 1 are known."
        )
    if not request.is_renew_ack:
        return
    for name in ("max_bytes", "min_bytes", "max_records", "max_wait_ms"):
        if getattr(request, name):
            raise InvalidRequest(f"{name} must be 0 in a request that renews locks.")


class _Fetch:
    """The partitions of one fetch, and what it has acquired of each."""

    def __init__(
        self,
        services: Needs,
        share: ShareParts,
        access: TopicAccess,
        member: Member,
        request: ShareFetchRequest,
    ) -> None:
        self.services = services
        self.share = share
        self.access = access
        self.member = member
        self.delivered: dict[TopicIdPartition, Delivered] = {}
        self.errors: dict[TopicIdPartition, KafkaError] = {}
        self.terms = share.partitions.terms(member.group_id)
        self._request = request
        limit = min(request.max_bytes, services.config.fetch_max_bytes)
        quotas = access.context.quotas
        self._max_bytes = min(limit, quotas.most_fetch_bytes) if quotas.is_limited else limit
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        self._wanted: list[TopicIdPartition] = []
        self._hosted: dict[TopicIdPartition, HostedSharePartition] = {}
        self._loading: dict[TopicIdPartition, HostedSharePartition] = {}
        """Share partitions that were being loaded when this fetch last looked at them."""

    async def run(self, wanted: list[TopicIdPartition]) -> None:
        """Acquire records, at once or after a wait."""
        if not wanted or self._request.max_records <= 0 or self._max_bytes <= 0:
            return
        max_wait_ms = self._request.max_wait_ms
        clock, self._wanted = self.services.environment.clock, wanted
        began_ms = clock.monotonic_ms()
        if not await self._look(wanted, is_over=max_wait_ms <= 0) and max_wait_ms > 0:
            await self._wait(wanted, max_wait_ms)
        meters = self.share.metrics.of_group(self.member.group_id)
        meters.fetch_ratio.update(100 * len(self.delivered) // len(wanted))
        if self.delivered:
            meters.acquire_time.update(clock.monotonic_ms() - began_ms)
        elif self._hosted and max_wait_ms > 0:
            self.share.metrics.expired_fetches.mark()

    async def _wait(self, wanted: list[TopicIdPartition], max_wait_ms: int) -> None:
        clock, began_ms = self.services.environment.clock, self.services.environment.clock.monotonic_ms()
        resumed = asyncio.Event()
        wait = self.services.delayed_fetches.begin(resumed.set, is_follower=False, at_most_ms=max_wait_ms)
        watched: dict[HostedSharePartition, None] = {}
        try:
            while True:
                unwatched = [hosted for hosted in self._hosted.values() if hosted not in watched]
                for hosted in unwatched:
                    hosted.wait(wait.wake)
                    watched[hosted] = None
                if any(hosted.has_records(self._committed) for hosted in unwatched):
                    # They may have come since it was looked at, while another one was read from the disk. Of
                    # one that is watched, a change wakes this fetch: records alone, which may be fewer than
                    # min_bytes, would make it look again and again without a pause.
                    resumed.set()
                await resumed.wait()
                resumed.clear()
                wait.is_woken = False
                if await self._look(wanted, is_over=wait.is_over) or wait.is_over:
                    return
                for hosted in watched:
                    hosted.wake_next()
        finally:
            self.access.context.remote_ms += clock.monotonic_ms() - began_ms
            wait.close()
            for hosted in watched:
                hosted.stop_waiting(wait.wake)

    async def _look(self, wanted: list[TopicIdPartition], *, is_over: bool) -> bool:
        """Acquire what there is; return whether the fetch is to be answered."""
        self.errors = {}
        self._hosted = {}
        async for of in self.access.context.paced(wanted):
            try:
                self._hosted[of] = self._find(of)
            except KafkaError as error:
                self.errors[of] = error
        if not self._hosted:
            return True
        for _ in range(_READS_WITHOUT_RECORDS):
            ready = {of: hosted for of, hosted in self._hosted.items() if hosted.has_records(self._committed)}
            if not ready or (not is_over and not self._is_enough(ready)):
                return False
            if not await self._deliver(ready) or self.delivered:
                break
        return bool(self.delivered)

    @property
    def _committed(self) -> bool:
        return self.terms.committed_only

    def _find(self, of: TopicIdPartition) -> HostedSharePartition:
        topic_partition = self.access.find(of)
        partition = self.services.replicas.leader(topic_partition)
        loading = self._loading.pop(of, None)
        if loading is not None:
            loading.check()  # of one that has failed: the next fetch loads it again
        hosted = self.share.partitions.find(SharePartitionKey(self.member.group_id, *of), partition)
        if hosted.core is None:
            self._loading[of] = hosted
        return hosted

    def _is_enough(self, ready: dict[TopicIdPartition, HostedSharePartition]) -> bool:
        if self._min_bytes <= 1:
            return True
        each = self._max_bytes // len(ready)
        size = sum(hosted.readable_bytes(each, self._committed) for hosted in ready.values())
        return size >= self._min_bytes

    async def _deliver(self, ready: dict[TopicIdPartition, HostedSharePartition]) -> bool:
        """Acquire records of partitions that have some; return whether anything has changed."""
        left, each, has_changed = self._request.max_records, max(1, self._max_bytes // len(ready)), False
        for of, hosted in ready.items():
            if left <= 0:
                break
            try:
                delivered = await hosted.deliver(self._asked(left), each, at_least_one=not self.delivered)
            except KafkaError as error:
                self.errors[of] = error
                continue
            except (OSError, CorruptStorage) as error:
                self.errors[of] = KafkaStorageError(str(error))
                continue
            has_changed = has_changed or delivered.has_changed
            if delivered.acquired:
                self.delivered[of] = delivered
                left -= sum(last - first + 1 for first, last, _ in delivered.acquired)
        return has_changed

    def _asked(self, left: int) -> Callable[[int], Acquisition]:
        request = self._request
        return lambda offset: Acquisition(
            self.member.member_id,
            offset,
            max(1, request.batch_size),
            left,
            request.share_acquire_mode == RECORD_LIMIT,
        )

    # ---- response

    async def count(self) -> None:
        """Count the request and the records sent, and throttle a client that has exceeded its quota."""
        size = 0
        metrics = self.services.topic_metrics
        for topic in await self.access.topics_of(self._wanted):
            for meters in (metrics.all_topics, metrics.of(topic)):
                meters.share_fetch_requests.mark()
        for topic in await self.access.topics_of(self.errors):
            for meters in (metrics.all_topics, metrics.of(topic)):
                meters.failed_share_fetch_requests.mark()
        for of, delivered in self.delivered.items():
            topic_partition = self.access.name_of(of)
            size += len(delivered.records)
            if topic_partition is not None:
                metrics.of(topic_partition.topic).bytes_out.mark(len(delivered.records))
        metrics.all_topics.bytes_out.mark(size)
        quotas, context = self.access.context.quotas, self.access.context
        if quotas.is_limited and size:
            context.throttle_time_ms = max(context.throttle_time_ms, quotas.throttle_fetch(size))


async def _response(
    fetch: _Fetch, acknowledged: dict[TopicIdPartition, KafkaError | None]
) -> ShareFetchResponse:
    await fetch.count()
    leaders = CurrentLeaders(fetch.services, fetch.access.context.session.listener_name)
    topics: dict[object, ShareFetchableTopicResponse] = {}
    answered = dict.fromkeys((*fetch.delivered, *fetch.errors, *acknowledged))
    async for of in fetch.access.context.paced(answered):
        topic = topics.setdefault(of.topic_id, ShareFetchableTopicResponse(topic_id=of.topic_id))
        code, message = code_of(fetch.errors.get(of))
        acknowledge_code, acknowledge_message = code_of(acknowledged.get(of))
        delivered = fetch.delivered.get(of)
        topic.partitions.append(
            ShareFetchPartitionData(
                partition_index=of.partition,
                error_code=code,
                error_message=message,
                acknowledge_error_code=acknowledge_code,
                acknowledge_error_message=acknowledge_message,
                current_leader=leader_of(leaders, fetch.access, of, code or acknowledge_code),
                records=b"" if delivered is None else delivered.records,
                acquired_records=[
                    AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
                    for first, last, count in (() if delivered is None else delivered.acquired)
                ],
            )
        )
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=fetch.terms.limits.record_lock_duration_ms,
        responses=list(topics.values()),
        node_endpoints=endpoints(leaders),
    )
