"""The subscription of a consumer: topics, or partitions that were assigned by hand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ottla.client.cluster import Cluster
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import WrongMode
from ottla.consumer.fetch.leaders import partitions_of
from ottla.consumer.fetch.offset_lookups import EARLIEST
from ottla.consumer.fetch.prefetch import Prefetch
from ottla.consumer.group.consumer_group import ConsumerGroup
from ottla.consumer.subscription import Subscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.topics import TopicPartition


class SubscriptionState:
    """The subscription or manual assignment, and how it becomes assigned partitions.

    With a group, the group assigns. Without, all partitions of the subscribed topics are assigned as metadata
    show them.
    """

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, fetch: Prefetch, group: ConsumerGroup | None
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._fetch = fetch
        self._group = group
        self._subscription: Subscription | None = None
        self._is_manual = False
        self._knows_topics = False

    @property
    def is_subscribed(self) -> bool:
        """Whether the consumer is subscribed to topics."""
        return self._subscription is not None

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to: those named, or those found that match."""
        if self._subscription is None:
            return frozenset()
        return self._subscription.names or frozenset(
            partition.topic for partition in self._fetch.positions.assigned
        )

    def check_chosen(self) -> None:
        """Raise WrongMode if neither topics nor partitions were chosen."""
        if self._subscription is None and not self._is_manual:
            raise WrongMode("there is nothing to read: subscribe to topics, or assign partitions")

    def subscribe(self, wanted: Subscription, listener: Any) -> None:
        """Read topics instead of what was subscribed to before."""
        self._subscription = wanted
        self._knows_topics = False
        if self._group is not None:
            self._fetch.assigned.is_manual = False
            self._group.subscribe(wanted, listener)
        self._fetch.leaders.refresh_soon()

    def check_subscribable(self) -> None:
        """Raise WrongMode if partitions were assigned by hand."""
        if self._is_manual:
            raise WrongMode("partitions were assigned by hand; unsubscribe before subscribing to topics")

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        if self._subscription is not None and self._group is not None:
            self._fetch.delivery.suspend(self._fetch.positions.assigned)
            self._group.unsubscribe()
        else:
            self._fetch.delivery.unassign(self._fetch.positions.assigned)
        self._subscription = None
        self._is_manual = False
        self._fetch.notifier.notify()  # tasks that wait for records must notice that there will be none

    def assign(self, wanted: Collection[TopicPartition]) -> None:
        """Read exactly these partitions. Raises WrongMode for a member of a group."""
        if self._subscription is not None and self._group is not None:
            raise WrongMode("the group assigns partitions; unsubscribe before assigning some by hand")
        positions, assigned = self._fetch.positions, self._fetch.assigned
        self._fetch.delivery.unassign(positions.assigned - frozenset(wanted))
        positions.assign(wanted)
        self._subscription = None
        self._is_manual = assigned.is_manual = True
        # A membership that is still leaving may hold some of them, and will not release them any more.
        assigned.release(positions.assigned)
        self._fetch.leaders.refresh_soon()
        self._fetch.wake()

    # --- topics

    def topics_wanted(self) -> frozenset[str] | None:
        """Return the topics whose metadata are needed; None for all."""
        held = frozenset(partition.topic for partition in self._fetch.positions.assigned)
        wanted = self._subscription
        if wanted is None or self._group is not None:
            return held
        return None if wanted.filter is not None else wanted.names | held

    async def find_topics(self) -> None:
        """Assign the partitions of named topics before reading begins. Raises NoSuchTopic."""
        if self._subscription is None or self._group is not None:
            return
        names = self._subscription.names
        for name in sorted(names):
            await self._cluster.topic(name, may_create=self._config.allow_auto_create_topics)
        response = await self._cluster.retry(
            "finding topics", lambda: self._cluster.refresh(sorted(names) or None)
        )
        self.topics_seen(response)

    def topics_seen(self, response: MetadataResponse) -> None:
        """Without a group, assign all partitions of subscribed topics; later ones from their beginning."""
        wanted = self._subscription
        if wanted is None or self._group is not None:
            return
        positions = self._fetch.positions
        found = self._partitions(wanted, response)
        added = found - positions.assigned
        self._fetch.delivery.unassign(positions.assigned - found)
        positions.assign(sorted(found))
        if self._knows_topics:
            for partition in added:
                positions[partition].seek_time(EARLIEST)
        self._knows_topics = True
        self._fetch.wake()

    def _partitions(self, wanted: Subscription, response: MetadataResponse) -> frozenset[TopicPartition]:
        """Return the partitions of subscribed topics; those of topics in trouble stay as they are."""
        assigned = self._fetch.positions.assigned
        known = {
            topic.name or "": topic.is_internal
            for topic in response.topics
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        topics = wanted.topics(known, exclude_internal=self._config.exclude_internal_topics)
        found = {
            partition
            for topic in response.topics
            if topic.name in topics
            for partition in partitions_of(topic)
        }
        healthy = {topic.name for topic in response.topics if topic.error_code == ErrorCode.NONE}
        missing = {partition.topic for partition in assigned} & topics - healthy
        return frozenset(found | {partition for partition in assigned if partition.topic in missing})
