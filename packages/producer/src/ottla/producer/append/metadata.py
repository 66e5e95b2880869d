"""The producer's metadata: finds the partitions of its topics, and refreshes them in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID

from ottla.client.cluster import Cluster, Topic
from ottla.client.errors import ClientError
from ottla.producer.accumulator import Acknowledgement, Appender, TopicInfo
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.append.record_admission import RecordAdmission
from ottla.producer.config import ProducerConfig
from ottla.producer.record import ProducerRecord
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import why_illegal_topic_name

log = logging.getLogger(__name__)

FOREVER_S = 1e9
# Metadata is refreshed after this share of `metadata_max_age_ms`, so that it is never too old to be used.
REFRESH_SHARE = 0.8


class ProducerMetadata:
    """Brings the topics of the cluster to the accumulator, and pending records to their partitions.

    `append` appends a pending record once its topic is known. `on_recreated` is called with a topic that was
    deleted and created again, before anything is sent to its new partitions.
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
        on_recreated: Callable[[str], None],
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
        self._now_ms = now_ms

    def known(self, topic: str) -> TopicInfo | None:
        """Return a topic's partitions if they are known."""
        return self._accumulator.topics.get(topic)

    async def topic(self, topic: str) -> TopicInfo:
        """Return a topic's partitions, from the cluster if need be, within `max_block_ms`.

        A `max_block_ms` of 0 allows one request, since nothing could be sent otherwise.
        """
        found = self._accumulator.topics.get(topic)
        if found is not None:
            return found
        self._admission.check_open()
        check_topic_name(topic)
        return await self._find(topic)

    async def find_for_pending(self, topic: str) -> None:
        """Find a topic for the records that wait for it; they fail if it is not found."""
        try:
            await self._find(topic)  # even while the producer closes: records that were taken are sent
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
            for topic in idle:
                self._ids.pop(topic, None)
            topics = list(self._accumulator.topics)
            try:
                if topics:
                    await self._cluster.refresh(topics)
            except (ClientError, KafkaError):
                continue  # the sender asks again for the leaders it needs
            for topic in topics:
                self.update(topic)

    async def _find(self, topic: str) -> TopicInfo:
        timeout_ms = self._config.max_block_ms or self._config.client.request_timeout_ms
        timeout_s = FOREVER_S if timeout_ms < 0 else timeout_ms / 1_000
        return self._admit(await self._cluster.topic(topic, may_create=True, timeout_s=timeout_s))

    def _admit(self, known: Topic) -> TopicInfo:
        self._check_id(known)
        led = [index for index, each in sorted(known.partitions.items()) if each.leader >= 0]
        info = self._accumulator.update_topic(known.name, len(known.partitions), led)
        # Before the caller goes on: pending records were sent before the caller's.
        self._pending.append_all(known.name, lambda record: self._append(info, record))
        return info

    def _check_id(self, known: Topic) -> None:
        if known.id == ZERO_UUID:
            return  # a broker before 2.8 knows no topic ids
        before, self._ids[known.name] = self._ids.get(known.name, known.id), known.id
        if before != known.id:
            log.warning("topic %s was deleted and created again: numbering starts anew", known.name)
            self._on_recreated(known.name)


def check_topic_name(topic: str) -> None:
    """Raise for a name that no topic can have, without asking a broker."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    reason = why_illegal_topic_name(topic)
    if reason is not None:
        raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
