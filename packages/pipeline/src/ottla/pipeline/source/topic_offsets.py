"""Lookups of a driver: the partitions of topics, and their start and end offsets."""

from __future__ import annotations

import asyncio
import difflib
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ottla.client.blocking import LoopThread
from ottla.client.cluster import NO_NODE, Cluster
from ottla.client.errors import ClientError
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, NOT_FOUND, OffsetLookups
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge, OffsetLookup
from ottla.pipeline.source.offsets import Offsets, TopicIds, partition_names
from ottla.protocol.errors import ErrorCode, KafkaError, UnknownTopicOrPartition, error_for
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.storage.checkpoints import encode_uuid
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0

_TIMES = {Edge.EARLIEST: EARLIEST, Edge.LATEST: LATEST}
_PASSING = (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(frozen=True, slots=True)
class LookupClient:
    """An open connection to the cluster, for lookups."""

    cluster: Cluster
    lookups: OffsetLookups


@asynccontextmanager
async def lookup_client(config: ConsumerConfig) -> AsyncIterator[LookupClient]:
    """Connect to the cluster."""
    async with Cluster(config.client.bootstrap_servers, config.client) as cluster:
        yield LookupClient(cluster, OffsetLookups(cluster, read_committed=config.reads_committed))


Connect = Callable[[], AbstractAsyncContextManager[LookupClient]]


class Selected(NamedTuple):
    """The existing partitions to read, and the ids of their topics where brokers have ids."""

    partitions: frozenset[TopicPartition]
    ids: TopicIds


class TopicOffsets(OffsetLookup):
    """Partitions and their start and end offsets."""

    @abstractmethod
    def selected(self, *, all_there: bool = True) -> Selected:
        """Return the existing partitions to read. Raises the broker's error for a topic.

        Topics given by name and assigned partitions must exist, unless `all_there` is false.
        """

    @abstractmethod
    def agreed_ids(self, topics: frozenset[str]) -> dict[str, str | None] | None:
        """Return the ids of those topics that exist; None if brokers disagree, or one does not answer.

        A broker without a controller has not heard of any topic yet, so its answer does not count.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections; the next lookup opens them again."""


class BrokerTopicOffsets(TopicOffsets):
    """Asks a cluster, on a thread that the first lookup starts and `close` stops.

    The client retries errors that may pass. When it gives up, the lookup is repeated over new connections,
    `fetchOffset.numRetries` times; not if no broker was ever reached.
    """

    def __init__(self, config: SourceConfig, connect: Connect | None = None) -> None:
        self._config = config
        self._connect = connect
        self._thread: LoopThread[LookupClient] | None = None
        self._was_reached = False

    def close(self) -> None:
        """Stop the thread; the next lookup starts a new one. An error in closing is only logged."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.close(CLOSE_TIMEOUT_S)
        except Exception as error:  # the lookup has its answer, or raises its own error
            log.warning("closing connections failed", extra={"reason": f"{type(error).__name__}: {error}"})

    def selected(self, *, all_there: bool = True) -> Selected:
        """Return the existing partitions to read. Raises the broker's error for a topic."""
        wanted = self._config.wanted

        async def ask(client: LookupClient) -> Selected:
            answer = await client.cluster.refresh(wanted.names)
            found = frozenset(_partitions(answer, wanted.matches, by_name=wanted.names is not None))
            if all_there:
                missing = (wanted.names or frozenset()) - {partition.topic for partition in found}
                if missing:
                    raise _missing(missing, await client.cluster.refresh(None))
                _refuse_unassignable(wanted.partitions - found)
            return Selected(found & wanted.partitions if wanted.partitions else found, _ids(answer))

        return self._ask(ask)

    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return start or end offsets; the end depends on `isolation.level`."""
        times = dict.fromkeys(partitions, _TIMES[edge])
        return self._ask(lambda client: client.lookups.offsets(times)) if times else {}

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp in ms; None if no record is late enough."""
        if not times:
            return {}
        found = self._ask(lambda client: client.lookups.by_time(times))
        return {partition: None if at.offset == NOT_FOUND else at.offset for partition, at in found.items()}

    def agreed_ids(self, topics: frozenset[str]) -> dict[str, str | None] | None:
        """Return the ids of those topics that exist; None if brokers disagree, or one does not answer."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in sorted(topics)],
            allow_auto_topic_creation=False,
        )

        async def ask(client: LookupClient) -> list[MetadataResponse]:
            cluster = client.cluster
            return await asyncio.gather(
                # Before version 4 a request for a topic could create it.
                *(cluster.send(node, request, MetadataResponse, min_version=4) for node in cluster.nodes)
            )

        try:
            answers = [_known_ids(answer, topics) for answer in self._ask_once(ask)]
        except (ClientError, KafkaError, TimeoutError) as error:
            log.info("not all brokers confirm the deletion of topics", extra={"reason": str(error)})
            return None
        return answers[0] if answers and all(answer == answers[0] for answer in answers) else None

    def _ask(self, question: Callable[[LookupClient], Coroutine[Any, Any, T]]) -> T:
        retries = self._config.fetch_retries
        for retry in range(1, retries + 1):
            try:
                return self._ask_once(question)
            except (ClientError, KafkaError, TimeoutError) as error:
                if not self._was_reached:
                    # The client tried for all of bootstrap.timeout.ms; the address is probably wrong.
                    raise
                log.warning(
                    "brokers asked again", extra={"reason": str(error), "retry": retry, "retries": retries}
                )
                self.close()
                time.sleep(self._config.fetch_retry_interval_ms / 1_000)
        return self._ask_once(question)

    def _ask_once(self, question: Callable[[LookupClient], Coroutine[Any, Any, T]]) -> T:
        if self._thread is None:
            self._thread = LoopThread(self._connect or self._to_brokers(), name="offsets of topics")
        thread, opened = self._thread, self._thread.start()
        self._was_reached = True
        return thread.call(lambda: question(opened))  # the client's own timeouts bound it

    def _to_brokers(self) -> Connect:
        """Return a function that connects to the brokers. Raises OptionError for an invalid setting."""
        consumer = self._config.consumer_config()
        return lambda: lookup_client(consumer)


def _partitions(
    answer: MetadataResponse, matches: Callable[[str], bool], *, by_name: bool
) -> Iterable[TopicPartition]:
    for topic in answer.topics:
        name = topic.name or ""
        if not matches(name) or (not by_name and (topic.is_internal or name in INTERNAL_TOPICS)):
            continue
        # Other errors are raised, for example a missing permission.
        if topic.error_code not in (ErrorCode.NONE, *_PASSING):
            raise error_for(topic.error_code, f"topic {name!r}")
        yield from (TopicPartition(name, partition.partition_index) for partition in topic.partitions)


def _ids(answer: MetadataResponse) -> TopicIds:
    return {
        topic.name or "": encode_uuid(topic.topic_id)
        for topic in answer.topics
        if topic.topic_id != ZERO_UUID
    }


def _known_ids(answer: MetadataResponse, asked: frozenset[str]) -> dict[str, str | None] | None:
    """Return the ids of existing topics (None: without an id); None unless the broker is certain."""
    codes = {topic.name or "": topic.error_code for topic in answer.topics}
    sure = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    if answer.controller_id == NO_NODE or codes.keys() != asked or not sure.issuperset(codes.values()):
        return None
    ids = _ids(answer)
    return {name: ids.get(name) for name, code in codes.items() if code == ErrorCode.NONE}


def _refuse_unassignable(missing: Collection[TopicPartition]) -> None:
    if missing:
        raise UnknownTopicOrPartition(f"option 'assign': {partition_names(missing)} does not exist")


def _missing(names: Iterable[str], listed: MetadataResponse) -> UnknownTopicOrPartition:
    """Return the error for missing topics, with the most similar name that the cluster lists."""
    known = [topic.name for topic in listed.topics if topic.name is not None and not topic.is_internal]
    near = [name for missing in sorted(names) for name in difflib.get_close_matches(missing, known, 1)]
    hint = f"; did you mean {' and '.join(map(repr, near))}?" if near else ""
    return UnknownTopicOrPartition(f"topic {', '.join(map(repr, sorted(names)))} does not exist{hint}")
