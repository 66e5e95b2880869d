"""The short way of Fetch: a consumer's requests for one partition that can be answered at once.

The network finds them in the bytes (`FrameReader.next_fetch`), so no message object is made. Whatever is not
plain, or has to wait, or fails, goes the long way, `handlers.fetch`; where both give an answer it is the
same, byte for byte. The work is native (`_fetch_plain.pyx`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.handlers._fetch_plain import Answers, Target, answer_all
from ottla.broker.replication.partition import Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.broker.handlers.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition

__all__ = ["Answers", "PlainFetches", "Reader"]


class Reader(Protocol):
    """Where requests come from (`network.frames.FrameReader`)."""

    def next_fetch(self, index: Mapping[bytes, Any], /) -> Any:
        """Take the plain request that stands here, or return None."""
        ...

    def give_back_fetch(self, fetch: Any, /) -> None:
        """Put it back."""
        ...


class PlainFetches:
    """Answers plain requests for one broker. The long way adds partitions to `index` as they are fetched."""

    def __init__(self, topic_metrics: TopicMetrics, fetch_max_bytes: int) -> None:
        self.index: dict[bytes, Target] = {}
        self.fetch_max_bytes = fetch_max_bytes
        self._topic_metrics = topic_metrics
        self._all = topic_metrics.all_topics

    def admit(self, partition: HostedPartition) -> None:
        """Let later fetches from this partition take the fast path; call it after a fetch that went well."""
        topic, number = partition.topic_partition
        key = topic.encode() + number.to_bytes(4)
        known = self.index.get(key)
        if known is None or known.partition is not partition:
            self._forget_departed()
            self.index[key] = Target(partition, self._topic_metrics.of(topic).bytes_out)

    def _forget_departed(self) -> None:
        gone = [key for key, known in self.index.items() if known.partition.core.role is not Role.LEADER]
        for key in gone:
            del self.index[key]

    def answer(self, reader: Reader) -> Answers | None:
        """Take and answer the plain requests that stand in a row, up to the first for the long way.

        None where already that is the first.
        """
        answers = answer_all(reader, self.index, self.fetch_max_bytes)
        if answers is not None:
            self._all.fetch_requests.count += answers.count
            self._all.bytes_out.count += answers.records_size
        return answers
