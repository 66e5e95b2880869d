from ottla.broker.handlers.produce_run import Run
from ottla.broker.handlers.topic_metrics import TopicMeters
from ottla.broker.replication.replicas import HostedPartition

class Target:
    """A partition and its topic's meters, shared by the indexes of all sessions."""

    key: bytes
    partition: HostedPartition
    retired: bool
    meters: TopicMeters

    def __init__(self, partition: HostedPartition, meters: TopicMeters, all_meters: TopicMeters) -> None: ...
    def append_alone(self, run: Run, now_ms: int) -> bytes | None:
        """Append a run to a partition that has no followers, if nothing about it is unusual.

        None, and nothing was appended, when it has to go another way. Raises `KafkaStorageError`.
        """
    def count(self, run: Run) -> None:
        """Count a run that was appended; the meters get it with the next `pour`."""
    def retire(self) -> None:
        """Append nothing any more, and let the partition go; from now on there is no `partition`."""
    def pour(self) -> None:
        """Bring the meters up to date."""
