"""The producer's metadata: finds the partitions of its topics, and refreshes them in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn
from uuid import UUID

from ottla.client.cluster import Cluster, Topic
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.producer.accumulator import Acknowledgement, Appender, Batch, TopicInfo
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.append.record_admission import RecordAdmission
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import NoSuchPartition, TopicRecreated
from ottla.producer.record import ProducerRecord
from ottla.protocol.errors import ErrorCode, KafkaError, UnknownTopicOrPartition, error_for
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import why_illegal_topic_name

log = logging.getLogger(__name__)

FOREVER_S = 1e9
# Metadata is refreshed after this share of `metadata_max_age_ms`, so that it is never too old to be used.
REFRESH_SHARE = 0.8


class ProducerMetadata:
    """Brings the topics of the cluster to the accumulator, and pending records to their partitions.

    `append` appends a pending record once its topic is known. `on_recreated` is called with a topic that was
    deleted and created again, and the batches that have no place in it any more, before anything is sent to
    its new partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        appender: Appender,
        config: ProducerConfig,
        *,
        admission: RecordAdmission,
        pending: PendingMetadata,
        append: Callable[[TopicInfo, ProducerRecord], Acknowledgement],
        on_recreated: Callable[[str, Sequence[Batch], TopicRecreated], None],
        now_ms: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._appender = appender
        self._accumulator = appender.accumulator
        self._config = config
        self._admission = admission
        self._pending = pending
        self._append = append
        self._on_recreated = on_recreated
        self._ids: dict[str, UUID] = {}
        self._former_ids: dict[str, UUID] = {}
        self._looked_ms: dict[str, float] = {}
        """When metadata were last requested for a partition that a topic did not have."""
        self._now_ms = now_ms

    def known(self, topic: str) -> TopicInfo | None:
        """Return a topic's partitions if they are known, and need no refresh before a send."""
        return None if self._config.metadata_refresh_at_each_send else self._accumulator.topics.get(topic)

    async def topic(self, topic: str, partition: int | None = None) -> TopicInfo:
        """Return a topic's partitions, from the cluster if need be, within `max_block_ms`.

        Waits for the topic to get a `partition`; raises NoSuchPartition if it does not. A `max_block_ms` of 0
        allows one request, since nothing could be sent otherwise.
        """
        if self._config.metadata_refresh_at_each_send:
            await self._refresh_before_send(topic)
        found = self._accumulator.topics.get(topic)
        if found is None:
            self._admission.check_open()
            check_topic_name(topic)
            found = await self._find(topic)
        if partition is None or partition < found.count:
            return found
        self._admission.check_open()
        return await self._find_partition(topic, partition)

    async def find_for_pending(self, topic: str) -> None:
        """Find a topic for the records that wait for it, and their partitions; if it is missing they fail."""
        try:
            if self._config.metadata_refresh_at_each_send:
                await self._refresh_before_send(topic)
            # Even while the producer closes: records that were taken are sent.
            info = self._accumulator.topics.get(topic)
            if info is None:
                await self._find(topic)
            else:
                self._append_pending(info)
            while (partition := self._pending.highest_partition(topic)) is not None:
                await self._find_partition(topic, partition)
        except (ClientError, KafkaError) as error:
            self._pending.fail(topic, error)

    def update(self, topic: str) -> None:
        """Admit the cluster's current metadata of a topic."""
        known = self._cluster.known_topic(topic)
        if known is not None and known.partitions:
            self._admit(known)

    async def keep_fresh(self) -> NoReturn:
        """Refresh metadata before it is too old to be used, and so find new partitions.

        Forget topics that had no record for `metadata_max_idle_ms` instead.
        """
        while True:
            await asyncio.sleep(self._config.client.metadata_max_age_ms / 1_000 * REFRESH_SHARE)
            idle = self._appender.forget_idle(self._now_ms() - self._config.metadata_max_idle_ms)
            self._cluster.forget(*idle)
            for remembered in (self._ids, self._former_ids, self._looked_ms):
                for topic in idle:
                    remembered.pop(topic, None)
            topics = list(self._accumulator.topics)
            try:
                if topics:
                    await self._cluster.refresh(topics)
            except (ClientError, KafkaError):
                continue  # the sender asks again for the leaders it needs
            for topic in topics:
                self.update(topic)

    async def _refresh_before_send(self, topic: str) -> None:
        """Refresh a topic's metadata; an error leaves the known one, as in Kafka 0.8."""
        with suppress(ClientError, KafkaError, TimeoutError):
            async with asyncio.timeout(self._block_s):
                await self._cluster.refresh([topic], may_create=True)
            self.update(topic)

    async def _find(self, topic: str) -> TopicInfo:
        return self._admit(await self._cluster.topic(topic, may_create=True, timeout_s=self._block_s))

    @property
    def _block_s(self) -> float:
        timeout_ms = self._config.max_block_ms or self._config.client.request_timeout_ms
        return FOREVER_S if timeout_ms < 0 else timeout_ms / 1_000

    async def _find_partition(self, topic: str, partition: int) -> TopicInfo:
        """Refresh a topic's metadata until it has a partition, as Java's producer does."""
        began_ms = self._now_ms()
        try:
            if self._config.max_block_ms == 0:
                return await self._look_for(topic, partition)
            return await self._cluster.retry(
                f"finding partition {partition} of {topic!r}",
                lambda: self._look_for(topic, partition),
                timeout_s=self._block_s,
            )
        except (UnknownTopicOrPartition, DeadlineExceeded) as error:
            info = self._accumulator.topics.get(topic)
            if info is None or not isinstance(error.__cause__ or error, UnknownTopicOrPartition):
                raise  # the cluster did not answer, or the topic is gone
            raise NoSuchPartition(topic, partition, info.count, self._now_ms() - began_ms) from error

    async def _look_for(self, topic: str, partition: int) -> TopicInfo:
        """Refresh a topic's metadata once; raise UnknownTopicOrPartition, which is retriable."""
        # Any number of calls may wait for partitions of a topic: one request serves all of them.
        if self._now_ms() - self._looked_ms.get(topic, -FOREVER_S) >= self._config.client.retry_backoff_ms:
            self._looked_ms[topic] = self._now_ms()
            await self._cluster.refresh([topic], may_create=True)
            self.update(topic)
        info = self._accumulator.topics.get(topic)
        if info is None or partition >= info.count:
            raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {partition}")
        return info

    def _admit(self, known: Topic) -> TopicInfo:
        info = self._updated(known)
        # Before the caller goes on: pending records were sent before the caller's.
        self._append_pending(info)
        return info

    def _append_pending(self, info: TopicInfo) -> None:
        self._pending.append_all(info.topic, info.count, lambda record: self._append(info, record))

    def _updated(self, known: Topic) -> TopicInfo:
        """Bring a topic's partitions to the accumulator; return them.

        The topic id says whether a smaller number of partitions is news or old: under the same id it comes
        from a broker that has not heard of the last partitions, under another one from another topic. A
        broker that lags behind may also name the deleted topic once more; that changes nothing.
        """
        info = self._accumulator.topics.get(known.name)
        if info is not None and known.id != ZERO_UUID and known.id == self._former_ids.get(known.name):
            return info
        count, led = len(known.partitions), _led(known)
        if not self._is_recreated(known):
            return self._accumulator.update_topic(known.name, count, led)
        before = count if info is None else info.count
        facts = {"topic": known.name, "partitions": count}
        log.warning("a topic was deleted and created again", extra=facts)
        displaced = self._accumulator.recreate_topic(known.name, count, led)
        self._on_recreated(known.name, displaced, TopicRecreated(known.name, before, count))
        return self._accumulator.topics[known.name]

    def _is_recreated(self, known: Topic) -> bool:
        """Remember the id of a topic; return whether it had another one. Brokers before 2.8 know no ids."""
        if known.id == ZERO_UUID:
            return False
        before, self._ids[known.name] = self._ids.get(known.name, known.id), known.id
        if before == known.id:
            return False
        self._former_ids[known.name] = before
        return True


def _led(known: Topic) -> list[int]:
    return [index for index, partition in sorted(known.partitions.items()) if partition.leader >= 0]


def check_topic_name(topic: str) -> None:
    """Raise for a name that no topic can have, without asking a broker."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    reason = why_illegal_topic_name(topic)
    if reason is not None:
        raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
