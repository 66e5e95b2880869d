"""Errors of the consumer whose group uses ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ottla.client.errors import ClientError
from ottla.protocol.topics import TopicPartition


class ConsumerTimeout(ClientError):
    """No record arrived within `consumer_timeout_ms`. The stream can be iterated over again."""

    retriable: ClassVar[bool] = True

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(f"no record within {timeout_ms} ms")
        self.timeout_ms = timeout_ms


class ConsumerRebalanceFailed(ClientError):
    """All tries of a rebalance failed; `__cause__` is the error of the last one.

    The connector continues trying: a stream that is iterated over again delivers records once it succeeds.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, consumer_id: str, tries: int, last: BaseException | None) -> None:
        because = f": {last}" if last is not None else ""
        super().__init__(f"{consumer_id} cannot rebalance after {tries} tries{because}")
        self.consumer_id = consumer_id
        self.tries = tries


class PartitionsOwned(ClientError):
    """Partitions to claim are still owned by other members."""

    retriable: ClassVar[bool] = True

    def __init__(self, owners: Sequence[tuple[TopicPartition, str]]) -> None:
        super().__init__("; ".join(f"{partition} is owned by {owner}" for partition, owner in owners))
        self.owners = tuple(owners)


class ConsumerIdInUse(ClientError):
    """Another session is registered with this consumer id; an earlier session of this consumer expires."""

    retriable: ClassVar[bool] = True

    def __init__(self, consumer_id: str) -> None:
        super().__init__(f"the group already has a consumer {consumer_id}")
        self.consumer_id = consumer_id


class MessageStreamsExist(ClientError):
    """Streams exist already: a connector creates them once."""


class NoBrokers(ClientError):
    """No broker in ZooKeeper has a listener for this consumer's security protocol."""

    retriable: ClassVar[bool] = True
