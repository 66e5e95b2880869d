from typing import Any

from ottla.broker.api.topic_metrics import TopicMeters
from ottla.broker.quotas.rates import SessionQuotas
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.requests.context import ClientSession
from ottla.broker.requests.fast_path import FastAnswers, FastPath, Outcome, ReceivedBytes
from ottla.protocol.native import ProduceRun

class Target:
    """A partition and its topic's meters, shared by the indexes of all sessions."""

    key: bytes
    partition: HostedPartition
    retired: bool
    meters: TopicMeters

    def __init__(self, partition: HostedPartition, meters: TopicMeters, all_meters: TopicMeters) -> None: ...
    def id_key(self) -> bytes | None:
        """Return the key of a partition whose topic is named by its id; None for a log without one."""
    def append_now(self, run: ProduceRun, now_ms: int, quotas: SessionQuotas) -> bytes | None:
        """Append a run (`HostedPartition.append_plain`), charge the quotas, and return its responses.

        None, and nothing was appended, when it has to take another path: the answer may have to wait for
        followers, or something about the run or the log is unusual. Raises what `append_plain` raises.
        """
    def count(self, run: ProduceRun) -> None:
        """Count a run that was appended; the meters get it with the next `flush`."""
    def retire(self) -> None:
        """Append nothing any more, and let the partition go; from now on there is no `partition`."""
    def flush(self) -> None:
        """Bring the meters up to date."""

def run_at_hand(
    received: ReceivedBytes, targets: dict[bytes, Any], quotas: SessionQuotas
) -> ProduceRun | None:
    """Return the run of plain requests to one partition of `targets` that stands first, or None.

    A run ends where version, acks, timeout or partition do.
    """

def charge(run: ProduceRun, quotas: SessionQuotas) -> None:
    """Charge the quotas for a run that was appended; its responses carry the throttle time."""

def pass_run(received: ReceivedBytes, run: ProduceRun) -> None:
    """Take the requests of the run that `run_at_hand` has returned."""

class NativeProduceFastPath(FastPath):
    """Appends runs whose answers wait for nothing; the others are the subclass's."""

    def append(self, run: ProduceRun, session: ClientSession, now_ms: int, answers: FastAnswers) -> Outcome:
        """Append a run that `Target.append_now` did not take."""
