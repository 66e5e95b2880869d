from ottla.broker.api.fetch.fast_path import Reader
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.metrics import Meter
from ottla.broker.replication.hosted_partition import HostedPartition
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

class Answers:
    """Whole responses, one behind the other, to requests of one version."""

    parts: list[bytes | Slice]
    version: int
    count: int
    size_in_bytes: int
    """Of the requests, without their sizes."""
    size: int
    """Of the responses."""
    records_size: int
    waiting: PlainFetch | None
    """The request that has to wait for records, if it is the first: then there are no responses."""

def answer_all(reader: Reader, index: dict[bytes, Target], most_bytes: int) -> Answers | None: ...
def answer_waiting(ask: PlainFetch, most_bytes: int, is_over: bool) -> Answers | None: ...
