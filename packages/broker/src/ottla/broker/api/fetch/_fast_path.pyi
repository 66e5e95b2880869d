from typing import Any

from ottla.broker.api.topic_metrics import TopicMeters
from ottla.broker.metrics import Meter
from ottla.broker.quotas.rates import SessionQuotas
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.requests.fast_path import FastAnswers, FastPath, ReceivedBytes
from ottla.protocol.native import PlainFetch

class Target:
    """A partition and its topic's meter, shared by the indexes of all sessions."""

    key: bytes
    partition: HostedPartition
    bytes_out: Meter
    retired: bool
    def __init__(self, partition: HostedPartition, bytes_out: Meter) -> None: ...
    def id_key(self) -> bytes | None:
        """The key of the partition by its topic's id; None where the log knows no id."""
    def retire(self) -> None:
        """Answer nothing any more, and let the partition go; from now on there is no `partition`."""

def fetch_at_hand(received: ReceivedBytes, targets: dict[bytes, Any]) -> PlainFetch | None:
    """Return the request that stands first, if it is a plain Fetch of a partition of `targets`."""

def pass_fetch(received: ReceivedBytes, fetch: PlainFetch) -> None:
    """Take the request that `fetch_at_hand` has returned."""

class NativeFetchFastPath(FastPath):
    """Answers plain requests that stand in a row, up to the first for the general path.

    One that has to wait for records is only taken if no answer stands before it; `wait_of`, the subclass's,
    makes its wait.
    """

    fetch_max_bytes: int
    all_meters: TopicMeters

    def answer_waiting(self, fetch: PlainFetch, is_over: bool, quotas: SessionQuotas) -> FastAnswers | None:
        """Answer a request that has waited, with what there is if its time is over.

        Without a response in them, the answers say that it has to wait on. None when the general path has to
        serve it.
        """
