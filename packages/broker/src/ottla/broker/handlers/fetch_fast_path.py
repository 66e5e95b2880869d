"""The fast path of Fetch: a consumer's requests for one partition that can be answered at once.

The network finds them in the bytes (`FrameReader.next_fetch`), so no message object is made. Requests that
are not plain, have to wait, or fail, take the general path, `handlers.fetch`; where both answer, the answers
are the same, byte for byte. The work is native (`_fetch_fast_path.pyx`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.handlers._fetch_fast_path import Answers, Target, answer_all
from ottla.broker.handlers.known_partitions import KnownPartitions

if TYPE_CHECKING:
    from ottla.broker.handlers.request_context import RequestContext
    from ottla.broker.handlers.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition

__all__ = ["Answers", "FetchFastPath", "Reader"]


class Reader(Protocol):
    """Where requests come from (`network.frames.FrameReader`)."""

    def next_fetch(self, index: dict[bytes, Any], /) -> Any:
        """Take the plain request that stands here, or return None."""
        ...

    def give_back_fetch(self, fetch: Any, /) -> None:
        """Put it back."""
        ...


class FetchFastPath:
    """Answers plain requests for one broker, from the partitions that the session has in its index."""

    def __init__(self, topic_metrics: TopicMetrics, fetch_max_bytes: int) -> None:
        self.known: KnownPartitions[Target] = KnownPartitions()
        self.fetch_max_bytes = fetch_max_bytes
        self._topic_metrics = topic_metrics
        self._all = topic_metrics.all_topics

    def admit(self, context: RequestContext, partition: HostedPartition) -> None:
        """Let later fetches of the session from this partition take the fast path.

        The general path calls it after a fetch that went well.
        """
        topic_partition = partition.topic_partition
        target = self.known.get(topic_partition)
        if target is None or target.partition is not partition:
            if not partition.leads:
                return
            target = Target(partition, self._topic_metrics.of(topic_partition.topic).bytes_out)
            self.known.put(topic_partition, target)
        context.session.admit_fetches(target, context.index_epoch)

    def answer(self, reader: Reader, targets: dict[bytes, Target]) -> Answers | None:
        """Take and answer the plain requests that stand in a row, up to the first for the general path.

        `targets` is the session's index. None when the first request is already one for the general path.
        """
        answers = answer_all(reader, targets, self.fetch_max_bytes)
        if answers is not None:
            self._all.fetch_requests.count += answers.count
            self._all.bytes_out.count += answers.records_size
        return answers
