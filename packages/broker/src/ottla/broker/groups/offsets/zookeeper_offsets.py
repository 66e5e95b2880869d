"""Offsets of Kafka's first consumers: a number in `/consumers/[group]/offsets/[topic]/[partition]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import InvalidGroupId, KafkaError, RequestTimedOut, UnknownServerError
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, NodeExists, NoNode, ZooKeeperError

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition
    from ottla.zookeeper.session import Session


async def write_offset(session: Session, group_id: str, partition: TopicPartition, offset: int) -> None:
    """Commit an offset. Raises InvalidGroupId, or RequestTimedOut when ZooKeeper does not answer."""
    try:
        path = paths.consumer_offset(group_id, partition.topic, partition.partition)
        await _set_or_create(session, path, str(offset).encode())
    except ZooKeeperError as error:
        raise _in_kafkas_words(error) from error


async def _set_or_create(session: Session, path: str, data: bytes) -> None:
    try:
        await session.set(path, data)
    except NoNode:
        try:
            await session.create(path, data, make_parents=True)
        except NodeExists:
            await session.set(path, data)


async def read_offset(session: Session, group_id: str, partition: TopicPartition) -> int | None:
    """Return the committed offset, None when there is none. Raises as `write_offset`."""
    try:
        data, _ = await session.get(paths.consumer_offset(group_id, partition.topic, partition.partition))
        return int(data)
    except NoNode:
        return None
    except ZooKeeperError as error:
        raise _in_kafkas_words(error) from error
    except ValueError as error:
        raise UnknownServerError(f"The offset in ZooKeeper is not a number: {error}") from error


def _in_kafkas_words(error: ZooKeeperError) -> KafkaError:
    if isinstance(error, IllegalName):
        return InvalidGroupId(str(error))
    return RequestTimedOut(f"ZooKeeper did not answer: {error}")
