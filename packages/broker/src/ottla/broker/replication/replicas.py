"""The partitions this broker hosts: logs, roles, high watermarks and the waits on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig, LogConfig
    from ottla.broker.environment import Environment
    from ottla.broker.log.log import Appended, Log, Slice
    from ottla.broker.log.logs import Logs
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
    from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
    from ottla.protocol.topics import TopicPartition


class LeadershipListener(Protocol):
    """Told, on the loop and in order, whenever this broker starts or stops leading partitions."""

    def leadership_changed(
        self,
        elected: Sequence[tuple[TopicPartition, int]],
        resigned: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        """`elected` and `resigned` hold (partition, leader epoch); a new epoch of one's own is elected again."""
        ...


class LeaderPartition:
    """A partition that this broker leads."""

    topic_partition: TopicPartition
    log: Log
    leader_epoch: int
    high_watermark: int

    def append(
        self, batches: bytes | bytearray | memoryview, *, required_acks: int = -1, now_ms: int
    ) -> Appended:
        """Append v2 batches and advance what can be advanced at once.

        Raises `NotEnoughReplicas` where acks=all meets an ISR below min.insync.replicas, and what `Log.append`
        raises.
        """
        raise NotImplementedError

    async def replicated(self, offset: int) -> None:
        """Wait until the high watermark is at `offset` or above: pass the last offset + 1.

        Raises `NotLeaderOrFollower` when leadership ends first, `NotEnoughReplicasAfterAppend` when the
        records are in but the ISR fell below the minimum. The bound is the caller's (`asyncio.timeout`).
        """
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool = True) -> Slice:
        """Return whole batches from `offset` on, below `up_to`."""
        raise NotImplementedError


class Replicas:
    """Every partition hosted here. Lives on the loop; nothing in it blocks longer than a file creation."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        logs: Logs,
        log_config: Callable[[str], LogConfig],
    ) -> None:
        """`log_config` gives the configuration of a topic's logs by the topic's name."""

    def leader(self, topic_partition: TopicPartition, current_leader_epoch: int = -1) -> LeaderPartition:
        """Return the partition if it is led here.

        Raises `UnknownTopicOrPartition`, `NotLeaderOrFollower`, `KafkaStorageError`, and
        `FencedLeaderEpoch` or `UnknownLeaderEpoch` when the caller's epoch is another one.
        """
        raise NotImplementedError

    def leaders(self) -> Iterator[LeaderPartition]:
        """Iterate over all partitions led here."""
        raise NotImplementedError

    def subscribe(self, listener: LeadershipListener) -> None:
        """Tell `listener` about leadership from now on."""

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Take the roles a controller assigned, refusing what is older than what is known here."""
        raise NotImplementedError

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop hosting partitions, and delete their logs where asked to."""
        raise NotImplementedError

    def checkpoint_high_watermarks(self) -> Awaitable[None]:
        """Write every directory's `replication-offset-checkpoint`, on a thread."""
        raise NotImplementedError
