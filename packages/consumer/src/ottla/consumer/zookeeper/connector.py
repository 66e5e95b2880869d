"""The high-level consumer of Kafka 0.8: a group that shares its partitions through ZooKeeper."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from ottla.client.context_manager_task import ContextTask
from ottla.client.environment import now_ms, unique_suffix
from ottla.client.settings import config_from
from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.zookeeper.assignment import TopicFilter
from ottla.consumer.zookeeper.brokers import ClusterBrokers
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.errors import MessageStreamsExist
from ottla.consumer.zookeeper.membership import GroupMembership, OpenBrokers, Streams
from ottla.consumer.zookeeper.streams import MessageStream, StreamPositions
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.session import Session
from ottla.zookeeper.znodes import ConsumerRegistration

OpenSession = Callable[[ZookeeperConsumerConfig], AbstractAsyncContextManager[Session]]

RECORDS_PER_CHUNK = 500
STOP_S = 15.0
_NOT_OPEN = "the connector is not open; use it inside `async with`"


def new_consumer_id(group: str, name: str | None = None) -> str:
    """Return a member's id: `group_host-milliseconds-random`, or `group_name`."""
    if name is None:
        name = f"{socket.gethostname()}-{now_ms()}-{unique_suffix()}"
    return f"{group}_{name}"


@asynccontextmanager
async def kazoo_session(config: ZookeeperConsumerConfig) -> AsyncIterator[Session]:
    """Connect to ZooKeeper; kazoo is imported here and not earlier."""
    from ottla.zookeeper.embedded.access import access_for
    from ottla.zookeeper.kazoo_session import KazooSession

    timeout_ms = config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms
    hosts, credentials = await access_for(config.zookeeper_connect, timeout_ms / 1000)
    async with KazooSession(
        hosts,
        session_timeout_ms=config.zookeeper_session_timeout_ms,
        connection_timeout_ms=timeout_ms,
        credentials=credentials,
        security=await asyncio.to_thread(config.zookeeper_security.client_security),
    ) as session:
        yield session


class ZookeeperConsumerConnector:
    """A member of a group that shares partitions through ZooKeeper, as Kafka 0.8 to 1.1 did it.

        config = ZookeeperConsumerConfig(group_id="g", zookeeper_connect="127.0.0.1:2181")
        async with ZookeeperConsumerConnector(config) as connector:
            streams = await connector.create_message_streams({"orders": 1})
            async for record in streams["orders"][0]:
                print(record.partition, record.offset, record.value)

    Each partition is owned by one stream of one member, and moves as members join and leave; members may be
    written in Java. Finished records are committed before a partition is given up; a record is finished when
    the next one of its stream is asked for. After failures records may be delivered twice, but none is lost.
    The methods of `listener`, a `RebalanceListener`, are called before partitions are given up, and before
    the first record of new ones. Instead of `async with`, `start` and `shutdown` may be called.
    """

    def __init__(
        self,
        config: ZookeeperConsumerConfig | None = None,
        *,
        listener: object | None = None,
        open_session: OpenSession = kazoo_session,
        open_brokers: OpenBrokers = ClusterBrokers,
        **settings: Any,
    ) -> None:
        self.config = config_from(ZookeeperConsumerConfig, config, settings)
        self.consumer_id = new_consumer_id(self.config.group_id, self.config.consumer_id)
        self._listener = listener
        self._open_session = open_session
        self._open_brokers = open_brokers
        self._positions = StreamPositions()
        self._session: Session | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._member: GroupMembership | None = None
        self._taking_part: asyncio.Task[None] | None = None
        self._block: AbstractAsyncContextManager[None] | None = None
        self._running: ContextTask | None = None
        self._ended = False

    @classmethod
    async def create(
        cls, config: ZookeeperConsumerConfig | None = None, **settings: Any
    ) -> ZookeeperConsumerConnector:
        """Return a connector that is connected to ZooKeeper; end it with `shutdown`."""
        connector = cls(config, **settings)
        await connector.start()
        return connector

    async def start(self) -> None:
        """Connect to ZooKeeper. Raises ottla.zookeeper.errors.Unavailable when it cannot be reached."""
        if self._running is not None or self._block is not None:
            raise ConsumerClosed("a connector starts once")
        self._running = ContextTask(self._opened())
        await self._running.start()

    async def shutdown(self) -> None:
        """End the streams, commit finished records, and leave the group."""
        self._ended = True
        await self._leave_group()
        if self._running is not None:
            await self._running.stop()

    async def __aenter__(self) -> Self:
        if self._running is not None or self._block is not None:
            raise ConsumerClosed("a connector starts once")
        self._block = self._opened()
        await self._block.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._block is not None
        await self._block.__aexit__(kind, error, trace)

    # --- streams

    async def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group with so many streams per topic; return them once they own their partitions.

        Raises ConsumerRebalanceFailed when the rebalance failed, MessageStreamsExist on a second call: a
        connector creates its streams once.
        """
        _check_counts(topics)
        streams: dict[tuple[str | None, int], MessageStream] = {
            (topic, number): self._new_stream(f"{topic}-{number}")
            for topic, count in topics.items()
            for number in range(count)
        }
        await self._join(topics, "static", streams)
        return {topic: [streams[topic, number] for number in range(topics[topic])] for topic in topics}

    async def create_message_streams_by_filter(
        self, topics: TopicFilter, streams: int = 1
    ) -> list[MessageStream]:
        """Join the group for all topics that a Whitelist or Blacklist matches, later ones included."""
        counts = {topics.regex: streams}
        _check_counts(counts)
        made: dict[tuple[str | None, int], MessageStream] = {
            (None, number): self._new_stream(f"{topics.regex}-{number}") for number in range(streams)
        }
        await self._join(counts, topics.pattern, made)
        return list(made.values())

    async def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`; None commits after the last record delivered, finished or not.

        Raises ConsumerClosed unless the connector is open and has streams, and the errors of ZooKeeper and
        the brokers.
        """
        self._check_open()
        if self._member is None:
            raise ConsumerClosed("the connector has no streams yet; create them before committing")
        await self._member.commits.now(offsets)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member's streams own now."""
        return frozenset() if self._member is None else self._member.partitions

    def _new_stream(self, name: str) -> MessageStream:
        return MessageStream(
            name,
            self._positions,
            self._spawn,
            capacity=self.config.queued_max_message_chunks * RECORDS_PER_CHUNK,
            timeout_ms=self.config.consumer_timeout_ms,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._tasks is None:
            work.close()
            raise ConsumerClosed(_NOT_OPEN)
        return self._tasks.create_task(work)

    def _check_open(self) -> tuple[Session, asyncio.TaskGroup]:
        """Return the session and the task group. Raises ConsumerClosed before the start and after the end."""
        if self._session is None or self._tasks is None or self._ended:
            raise ConsumerClosed(_NOT_OPEN)
        return self._session, self._tasks

    async def _join(self, counts: Mapping[str, int], pattern: str, streams: Streams) -> None:
        if self._member is not None:
            raise MessageStreamsExist("a connector creates its streams once")
        session, tasks = self._check_open()
        registration = ConsumerRegistration(self.config.group_id, self.consumer_id, dict(counts), pattern, -1)
        member = self._member = GroupMembership(
            self.config,
            session,
            self._open_brokers,
            self._positions,
            registration,
            streams,
            self._listener,
        )
        running = self._taking_part = tasks.create_task(self._take_part(member))
        try:
            await asyncio.wait([running, member.balanced], return_when=asyncio.FIRST_COMPLETED)
            if not member.balanced.done():
                raise ConsumerClosed("the connector was shut down")
            member.balanced.result()
        except BaseException:
            await self._leave_group()
            self._member = None
            raise

    # --- lifetime

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        async with self._open_session(self.config) as session:
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._session, self._tasks = session, tasks
                    try:
                        yield
                    finally:
                        await self._leave_group()
                        self._session = self._tasks = None
            except BaseExceptionGroup as group:
                if len(group.exceptions) == 1:
                    raise group.exceptions[0] from None
                raise

    async def _leave_group(self) -> None:
        member, running = self._member, self._taking_part
        if member is not None and running is not None:
            member.stop()
            await asyncio.wait([running], timeout=STOP_S)
            running.cancel()  # it may still wait for brokers or for ZooKeeper
            await asyncio.wait([running])

    async def _take_part(self, member: GroupMembership) -> None:
        """Run a member with its automatic commits; streams raise an error that ends it, too."""
        regularly = member.commits.regularly(
            self.config.auto_commit_interval_ms,
            # Without ZooKeeper, other members may own these partitions and have committed higher offsets.
            lambda: self.config.auto_commit_enable and member.is_present,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                committing = tasks.create_task(regularly)
                try:
                    await member.run()
                finally:
                    committing.cancel()
        except BaseExceptionGroup as group:
            for stream in member.streams:
                stream.fail(ConsumerClosed(f"the connector failed: {group.exceptions[0]!r}"))
            raise group.exceptions[0] from None


def _check_counts(counts: Mapping[str, int]) -> None:
    if not counts or any(count < 1 for count in counts.values()):
        raise ValueError("name topics, each with at least one stream")
