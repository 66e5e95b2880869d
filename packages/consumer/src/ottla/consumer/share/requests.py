"""The requests of share sessions, made of what the session says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.consumer.share.config import ShareConsumerConfig
from ottla.consumer.share.session import Acknowledgement, SharePartition, ShareRequest
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)

WITH_RENEWAL = 2
_MODES: Mapping[str, int] = {"batch_optimized": 0, "record_limit": 1}


def fetch_request(
    config: ShareConsumerConfig, member_id: str, asked: ShareRequest, max_wait_ms: int
) -> ShareFetchRequest:
    """Return the request that acquires records, with the acknowledgements of others."""
    topics: dict[UUID, list[ShareFetchPartition]] = defaultdict(list)
    for partition in dict.fromkeys((*asked.added, *asked.acknowledgements)):
        topics[partition.topic_id].append(
            ShareFetchPartition(
                partition_index=partition.number,
                acknowledgement_batches=_batches(asked.acknowledgements.get(partition, ())),
            )
        )
    return ShareFetchRequest(
        group_id=config.group,
        member_id=member_id,
        share_session_epoch=asked.epoch,
        max_wait_ms=max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        max_records=config.max_poll_records,
        batch_size=config.max_poll_records,
        share_acquire_mode=_MODES[config.share_acquire_mode],
        topics=[
            ShareFetchTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in _by_topic(asked.forgotten).items()
        ],
    )


def acknowledge_request(
    config: ShareConsumerConfig, member_id: str, asked: ShareRequest
) -> ShareAcknowledgeRequest:
    """Return the request that only acknowledges, or ends the session."""
    topics: dict[UUID, list[AcknowledgePartition]] = defaultdict(list)
    for partition, given in asked.acknowledgements.items():
        topics[partition.topic_id].append(
            AcknowledgePartition(partition_index=partition.number, acknowledgement_batches=_batches(given))
        )
    return ShareAcknowledgeRequest(
        group_id=config.group,
        member_id=member_id,
        share_session_epoch=asked.epoch,
        is_renew_ack=asked.renews,
        topics=[
            AcknowledgeTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )


def _batches(given: Iterable[Acknowledgement]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=some.first, last_offset=some.last, acknowledge_types=[some.type])
        for some in given
    ]


def _by_topic(partitions: Iterable[SharePartition]) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = defaultdict(list)
    for partition in partitions:
        found[partition.topic_id].append(partition.number)
    return found
