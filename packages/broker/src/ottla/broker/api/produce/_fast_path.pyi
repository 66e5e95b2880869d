from ottla.broker.api.topic_metrics import TopicMeters
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.protocol.native import ProduceRun

class Target:
    """A partition and its topic's meters, shared by the indexes of all sessions."""

    key: bytes
    partition: HostedPartition
    retired: bool
    meters: TopicMeters

    def __init__(self, partition: HostedPartition, meters: TopicMeters, all_meters: TopicMeters) -> None: ...
    def append_now(self, run: ProduceRun, now_ms: int) -> bytes | None:
        """Append a run (`HostedPartition.append_plain`) and return its responses.

        None, and nothing was appended, when it has to take another path: the answer may have to wait for
        followers, or something about the run or the log is unusual. Raises what `append_plain` raises.
        """
    def count(self, run: ProduceRun) -> None:
        """Count a run that was appended; the meters get it with the next `flush`."""
    def retire(self) -> None:
        """Append nothing any more, and let the partition go; from now on there is no `partition`."""
    def flush(self) -> None:
        """Bring the meters up to date."""
