"""Offsets and metadata of a consumer group, as a consumer gives them to a transactional producer.

`commit_without_member` commits offsets of a group for tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster
    from ottla.protocol.errors import NonEmptyGroup
    from ottla.protocol.topics import TopicPartition

NO_EPOCH = -1
NO_GENERATION = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the next record to read, with a note of the application.

    `leader_epoch` is that of the last record that was read, -1 if unknown. It shows whether the log was
    truncated since (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


class GroupMetadata(NamedTuple):
    """A consumer group and the member that commits for it (KIP-447).

    Without a generation the commit has no member; the broker accepts it while the group is empty.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


def has_members(group: str) -> NonEmptyGroup:
    """Return the error for a change that a group allows only while it has no members."""
    from ottla.protocol.errors import NonEmptyGroup

    return NonEmptyGroup(f"group {group!r} has members; stop them first")


async def commit_without_member(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets in Kafka for a group that has no members there. Raises NonEmptyGroup."""
    # Producers import this module too, and commit no offsets in this way.
    from ottla.client.errors import Need
    from ottla.protocol.acls import Operation, ResourceType
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
        OffsetCommitResponse,
    )
    from ottla.protocol.topics import by_topic

    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offsets[partition],
                    committed_metadata="",
                )
                for partition in partitions
            ],
        )
        for topic, partitions in by_topic(offsets).items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1, topics=topics
    )

    async def commit() -> None:
        response = await cluster.send_to_coordinator(group, request, OffsetCommitResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise has_members(group)
                need = Need(Operation.READ, ResourceType.TOPIC, topic.name)
                cluster.raise_coordinator_error(group, partition.error_code, Operation.READ, need)

    await cluster.retry(f"committing offsets of group {group!r}", commit)
