"""The fast path of Fetch: a consumer's requests for one partition that can be answered at once.

They are taken from the received bytes (`protocol.native.fetch`), so no message object is made. Requests that
are not plain, or fail, take the general path (`general`); where both answer, the answers are the same, byte
for byte. The work is native (`_fast_path.pyx`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.fetch._fast_path import NativeFetchFastPath, Target
from ottla.broker.api.fetch.delayed_fast import DelayedFastFetch
from ottla.broker.api.fetch.response import FIRST_BY_ID
from ottla.broker.api.known_partitions import KnownPartitions

if TYPE_CHECKING:
    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.broker.requests.context import ClientSession, RequestContext
    from ottla.protocol.native import PlainFetch


class FetchFastPath(NativeFetchFastPath):
    """Answers plain requests for one broker, from the partitions that the session has in its index."""

    def __init__(
        self, topic_metrics: TopicMetrics, delayed_fetches: DelayedFetches, fetch_max_bytes: int
    ) -> None:
        self.known: KnownPartitions[Target] = KnownPartitions()
        self.fetch_max_bytes = fetch_max_bytes
        self.all_meters = topic_metrics.all_topics
        self._delayed_fetches = delayed_fetches
        self._topic_metrics = topic_metrics

    def admit(self, context: RequestContext, partition: HostedPartition) -> None:
        """Admit later fetches of the session from this partition to the fast path.

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
            context.session.admit(self, key, target, context.index_epoch)

    def wait_of(self, fetch: PlainFetch, session: ClientSession) -> DelayedFastFetch:
        """Return the wait of a request for which there are too few records now."""
        answer = partial(self.answer_waiting, quotas=session.quotas)
        return DelayedFastFetch(fetch, answer, self._delayed_fetches, session)
