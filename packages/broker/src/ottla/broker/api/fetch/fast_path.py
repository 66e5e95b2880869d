"""The fast path of Fetch: a consumer's requests for one partition that can be answered at once.

The network finds them in the bytes (`FrameReader.next_fetch`), so no message object is made. Requests that
are not plain, have to wait, or fail, take the general path (`general`); where both answer, the answers
are the same, byte for byte. The work is native (`_fast_path.pyx`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.api.fetch._fast_path import Answers, Target, answer_all, answer_waiting
from ottla.broker.api.fetch.delayed_plain import DelayedPlainFetch
from ottla.broker.api.fetch.response import FIRST_BY_ID
from ottla.broker.api.known_partitions import KnownPartitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.broker.requests.context import RequestContext
    from ottla.protocol.native import PlainFetch

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

    def __init__(
        self, topic_metrics: TopicMetrics, delayed_fetches: DelayedFetches, fetch_max_bytes: int
    ) -> None:
        self.known: KnownPartitions[Target] = KnownPartitions()
        self.fetch_max_bytes = fetch_max_bytes
        self._delayed_fetches = delayed_fetches
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
        key = target.key if context.api_version < FIRST_BY_ID else target.id_key()
        if key is not None:
            context.session.admit_fetches(target, context.index_epoch, key)

    def answer(self, reader: Reader, targets: dict[bytes, Target]) -> Answers | None:
        """Take and answer the plain requests that stand in a row, up to the first for the general path.

        `targets` is the session's index. None when the first request is already one for the general path. One
        that has to wait for records is only taken, and `waiting`, if no answer stands before it.
        """
        return self._counted(answer_all(reader, targets, self.fetch_max_bytes))

    def delay(self, fetch: PlainFetch, answered: Callable[[Answers | None], None]) -> DelayedPlainFetch:
        """Begin the wait of a request that `answer` has just found `waiting`."""
        return DelayedPlainFetch(fetch, self.answer_waiting, self._delayed_fetches, answered)

    def answer_waiting(self, fetch: PlainFetch, is_over: bool) -> Answers | None:
        """Answer a request that has waited, with what there is if its time is over.

        It may have to go on `waiting`. None when the general path has to serve it.
        """
        return self._counted(answer_waiting(fetch, self.fetch_max_bytes, is_over))

    def _counted(self, answers: Answers | None) -> Answers | None:
        if answers is not None:
            self._all.fetch_requests.count += answers.count
            self._all.bytes_out.count += answers.records_size
        return answers
