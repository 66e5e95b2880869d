from asyncio import Future
from collections.abc import Callable

from ottla.broker.log.log import Log, Slice
from ottla.broker.replication.partition import Effect, Partition
from ottla.protocol.topics import TopicPartition

class PartitionAppends:
    """The native half of `hosted.HostedPartition`: the steps that every append takes, each in one place.

    The general path (`HostedPartition.append`) checks, appends to the log by its general rules, and calls
    `grown`. The fast path (`append_plain`) takes the same first and last step; between them the log's end
    appends what is plain.
    """

    topic_partition: TopicPartition
    log: Log
    core: Partition
    watchers: dict[Callable[[], None], None]
    """Called when there may be more to read: new records, a higher high watermark, a change of role."""
    _first_new_offset: int
    """Records from here on were written by this process."""
    _waiting: list[tuple[int, int, Future[None]]]

    def __init__(self, topic_partition: TopicPartition, log: Log, core: Partition) -> None: ...
    def set_log(self, log: Log) -> None:
        """Go on with another log, which holds the same records."""
    def check_append(self, required_acks: int) -> None:
        """Check that this broker leads, and for acks=all that the ISR has min.insync.replicas members.

        Raises `NotLeaderOrFollower`, `NotEnoughReplicas`.
        """
    def append_plain(self, batches: bytearray | memoryview, required_acks: int, now_ms: int) -> int:
        """Append v2 batches of a client if they are plain and nothing about the log is unusual.

        Returns the first offset, or -1 when `append` has to do it; nothing was appended then. Raises what
        `check_append` raises, and `KafkaStorageError`.
        """
    def grown(self, now_ms: int) -> None:
        """Tell the core that this leader has appended, end waits that are over, wake watchers."""
    def is_cold(self, offset: int, records: Slice) -> bool:
        """Whether sending records that were read from `offset` may have to wait for the disk.

        Recent records of this process are in the page cache; of others the page cache is asked.
        """
    def perform(self, effects: list[Effect]) -> None:
        """Carry out what the core decided."""
    def wake(self) -> None:
        """Call all watchers, and forget them: each is called once."""
    def release(self, high_watermark: int) -> None:
        """End the waits for a high watermark that has been reached."""
