"""What can go wrong in the consumer that shares its group through ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ottla.client.errors import ClientError
from ottla.protocol.topics import TopicPartition


class ConsumerTimeout(ClientError):
    """No record came within `consumer_timeout_ms`. The stream can be iterated over again."""

    retriable: ClassVar[bool] = True

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(f"no record within {timeout_ms} ms")
        self.timeout_ms = timeout_ms


class ConsumerRebalanceFailed(ClientError):
    """The partitions could not be shared out in all tries; `__cause__` is what the last one met.

    The connector goes on trying: a stream that is iterated over again gives records once it succeeds.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, consumer_id: str, tries: int, last: BaseException | None) -> None:
        because = f": {last}" if last is not None else ""
        super().__init__(f"{consumer_id} cannot rebalance after {tries} tries{because}")
        self.consumer_id = consumer_id
        self.tries = tries


class PartitionsOwned(ClientError):
    """Partitions to claim have other owners, who have not given them up yet."""

    retriable: ClassVar[bool] = True

    def __init__(self, owners: Sequence[tuple[TopicPartition, str]]) -> None:
        super().__init__("; ".join(f"{partition} is owned by {owner}" for partition, owner in owners))
        self.owners = tuple(owners)


class ConsumerIdInUse(ClientError):
    """Another session is registered under this consumer's name; one of our own ends with its timeout."""

    retriable: ClassVar[bool] = True

    def __init__(self, consumer_id: str) -> None:
        super().__init__(f"the group already has a consumer {consumer_id}")
        self.consumer_id = consumer_id


class MessageStreamsExist(ClientError):
    """Streams were made before: a connector makes them once."""


class NoBrokers(ClientError):
    """ZooKeeper knows no broker with a listener this consumer may use."""

    retriable: ClassVar[bool] = True
