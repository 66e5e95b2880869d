"""The metadata of the topics that a group subscribes to: partitions, and the racks of their replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Set

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.consumer.assignors import TopicRacks
from ottla.consumer.errors import named_error
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.rebalance_events import Subscribed, TopicsSeen
from ottla.consumer.subscription import Subscription, TopicFilter
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic

# Subscribed topics that do not exist may be created at any moment.
MISSING_TOPIC_INTERVAL_S = 1.0

# A broker that creates a topic answers first that it is missing.
_CREATION_S = MISSING_TOPIC_INTERVAL_S / 2

_TRANSIENT = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Tell = Callable[[Subscribed | TopicsSeen], None]
Racks = dict[str, list[frozenset[str]]]

log = logging.getLogger(__name__)


class MissingTopics:
    """Finds the topics to warn of, once each: those that are still missing after a creation had its time."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._warned: frozenset[str] = frozenset()

    def to_warn_of(self, missing: Set[str], now_s: float) -> list[str]:
        """Return which of the topics that are missing now have been so for long, and were not returned."""
        self._since_s = {name: self._since_s.get(name, now_s) for name in missing}
        late = {name for name, since_s in self._since_s.items() if now_s - since_s >= _CREATION_S}
        found = sorted(late - self._warned)
        self._warned = frozenset(late)
        return found


class SubscriptionMetadata:
    """Matches the subscription with the topics that exist, and reports changes to the member.

    The leader of the group also gets the partitions of the topics that it assigned. `find_pattern` returns
    the expression by which the coordinator matches a filter; None where topics are matched here.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        find_pattern: Callable[[TopicFilter], Awaitable[str | None]] | None = None,
    ) -> None:
        self._find_pattern = find_pattern
        self._cluster = cluster
        self._config = config
        self._subscription: Subscription | None = None
        self._changed = asyncio.Event()
        self._has_ended = False
        self._reported = Subscribed(None)
        self._missing = MissingTopics()

    def subscribe(self, subscription: Subscription | None) -> None:
        """Change the subscription; None ends it."""
        self._subscription = subscription
        self._has_ended = self._has_ended or subscription is None
        self._changed.set()

    def refresh_now(self) -> None:
        """Refresh now instead of at the next interval: a topic was missing."""
        self._changed.set()

    async def run(self, tell: Tell, watched: Callable[[], TopicRacks]) -> None:
        """Report the subscription at once, and topics every `metadata_max_age_ms`, until cancelled."""
        while True:
            self._changed.clear()
            wait_s = self._config.metadata_max_age_ms / 1_000
            try:
                if not await self._refresh(tell, watched):
                    wait_s = min(wait_s, MISSING_TOPIC_INTERVAL_S)
            except (ClientError, KafkaError) as error:
                extra = {"group": self._config.group_id, "reason": str(error)}
                log.info("topics cannot be looked up", extra=extra)
                wait_s = min(wait_s, MISSING_TOPIC_INTERVAL_S)
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def racks(self, topics: Iterable[str], *, known: TopicRacks | None = None) -> Racks:
        """Request the partitions of topics and the racks of their replicas once; missing topics have none.

        Topics with a transient error keep what is known. Raises TopicAuthorizationFailed and other errors.
        """
        wanted = sorted(topics)
        return self._racks(await self._ask(wanted), wanted, known or {}) if wanted else {}

    async def _ask(self, topics: Iterable[str]) -> MetadataResponse:
        return await self._cluster.refresh(topics, may_create=self._config.allow_auto_create_topics)

    async def _refresh(self, tell: Tell, watched: Callable[[], TopicRacks]) -> bool:
        """Refresh once; return whether all subscribed topics exist."""
        subscription, answer = self._subscription, None
        if self._has_ended:
            # Also if the same topics were subscribed again before this refresh: partitions were unassigned.
            self._has_ended = False
            self._report(Subscribed(None), tell)
        if subscription is None:
            return True
        if (pattern := await self._pattern(subscription.filter)) is not None:
            self._report(Subscribed(frozenset(), pattern), tell)
            return True
        if subscription.filter is not None:
            answer = await self._cluster.refresh(None)
            known = {topic.name or "": topic.is_internal for topic in answer.topics}
            exclude = self._config.exclude_internal_topics
            self._report(Subscribed(subscription.topics(known, exclude_internal=exclude)), tell)
        else:
            self._report(Subscribed(subscription.names), tell)
        # Members that do not assign ask too, as Java's do: a broker creates topics for who asks by name.
        names = sorted({*watched(), *subscription.names})
        if not names:
            return True
        answer = answer or await self._ask(names)
        self._warn(_missing(answer) & subscription.names)
        racks = self._racks(answer, names, watched())
        if seen := {name: racks[name] for name in watched() if name in racks}:
            tell(TopicsSeen(seen))
        return all(racks.values())

    def _warn(self, missing: Set[str]) -> None:
        """Warn of topics that do not exist: a name with a typo would be waited for without a word."""
        for name in self._missing.to_warn_of(missing, asyncio.get_running_loop().time()):
            event = f"topic {name!r} does not exist; it is read once it is created"
            log.warning(event, extra={"group": self._config.group_id, "topic": name})

    async def _pattern(self, wanted: TopicFilter | None) -> str | None:
        return None if wanted is None or self._find_pattern is None else await self._find_pattern(wanted)

    def _report(self, subscribed: Subscribed, tell: Tell) -> None:
        if subscribed != self._reported:
            self._reported = subscribed
            tell(subscribed)

    def _racks(self, answer: MetadataResponse, names: Iterable[str], known: TopicRacks) -> Racks:
        found = {described.name: described for described in answer.topics}
        racks: Racks = {}
        for name in names:
            topic = found.get(name)
            code = topic.error_code if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic is not None and code == ErrorCode.NONE:
                racks[name] = self._topic_racks(topic)
            elif code in _TRANSIENT:
                gone = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                racks[name] = [] if gone else list(known.get(name, ()))
            else:
                raise named_error(f"topic {name!r}", code, name)
        return racks

    def _topic_racks(self, topic: MetadataResponseTopic) -> list[frozenset[str]]:
        partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
        return [self._replica_racks(partition.replica_nodes) for partition in partitions]

    def _replica_racks(self, replicas: Iterable[int]) -> frozenset[str]:
        nodes = (self._cluster.nodes.get(node_id) for node_id in replicas)
        return frozenset(node.rack for node in nodes if node is not None and node.rack is not None)


def _missing(answer: MetadataResponse) -> frozenset[str]:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return frozenset(topic.name or "" for topic in answer.topics if topic.error_code == missing)
