from asyncio import Future
from collections.abc import Callable

from ottla.broker.log.log import Log
from ottla.broker.replication.partition import Effect, Partition
from ottla.protocol.topics import TopicPartition

class PartitionAppends:
    """The native half of `hosted.HostedPartition`: the steps that every append takes, each in one place.

    The general path (`HostedPartition.append`) checks, appends to the log by its general rules, and calls
    `grown`. The fast path (`append_plain`) takes the same first and last step; between them the log's tail
    appends what is plain.
    """

    topic_partition: TopicPartition
    log: Log
    core: Partition
    watchers: dict[Callable[[], None], None]
    """Called whenever there may be more to read: records, high watermark, the end of leadership."""
    _waiting: list[tuple[int, int, Future[None]]]

    def __init__(self, topic_partition: TopicPartition, log: Log, core: Partition) -> None: ...
    def check_append(self, required_acks: int) -> None:
        """Raise unless this broker may append: `NotLeaderOrFollower`, and `NotEnoughReplicas` where acks=all
        meets an ISR below min.insync.replicas.
        """
    def append_plain(self, batches: bytearray | memoryview, required_acks: int, now_ms: int) -> int:
        """Append v2 batches of a client if they are plain and nothing about the log is unusual.

        Returns the first offset, or -1 when `append` has to do it; nothing was appended then. Raises what
        `check_append` raises, and `KafkaStorageError`.
        """
    def grown(self, now_ms: int) -> None:
        """Take in that the log has grown by an append of this leader: tell the core, wake watchers."""
    def perform(self, effects: list[Effect]) -> None:
        """Do what the core decided."""
    def wake(self) -> None:
        """Call everyone who waits for something to read."""
    def release(self, high_watermark: int) -> None:
        """End the waits for a high watermark that has been reached."""
