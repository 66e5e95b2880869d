"""Cluster metadata: brokers, topics, leaders, coordinators, and a connection to each of them.

No other module of the clients keeps leaders. A caller that meets a wrong one calls `forget` and asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from ottla.client.config import Address, ClientConfig, parse_bootstrap_servers
from ottla.client.connection import Connection
from ottla.client.connection_pool import BOOTSTRAP_STAGGER_S, STAGGER_S, Pool, first_answer
from ottla.client.errors import ClientError, Need, error_about
from ottla.client.retry import Backoff, retrying
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import (
    BrokerNotAvailable,
    ErrorCode,
    KafkaError,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition

R = TypeVar("R", bound=Message)
T = TypeVar("T")

NO_NODE = -1
GROUP = 0
TRANSACTION = 1
METADATA_BY_ID = 12
_ATTEMPT_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Node:
    """A broker."""

    id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and its replicas, by broker id; `leader` is -1 where there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic with its partitions by index."""

    name: str
    id: UUID
    is_internal: bool
    partitions: Mapping[int, Partition]

    def _repr_html_(self) -> str:
        from ottla.client.displays import Table  # in notebooks only, and not in brokers

        columns = ("partition", "leader", "replicas", "in sync")
        rows = [
            (index, found.leader, ", ".join(map(str, found.replicas)), ", ".join(map(str, found.isr)))
            for index, found in sorted(self.partitions.items())
        ]
        return Table(f"Topic {self.name}, {len(rows)} partitions", columns, rows).html()


class Cluster:
    """Metadata of a cluster, and requests to its brokers.

        async with Cluster("127.0.0.1:9092") as cluster:
            topic = await cluster.topic("orders")

    Calls retry retriable errors until `default_api_timeout_ms` is over, then raise `DeadlineExceeded` from
    the last error.
    """

    def __init__(self, bootstrap_servers: str | Iterable[str], config: ClientConfig | None = None) -> None:
        self.config = config or ClientConfig()
        self.bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self.pool = Pool(self.config)
        self.backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_NODE
        self._topics: dict[str, tuple[Topic, float]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._avoided_until_s: dict[Address, float] = {}

    async def __aenter__(self) -> Self:
        self.pool.open()  # closed if this object was entered before
        bound_s = self.config.bootstrap_timeout_ms / 1_000
        try:
            # An attempt ends before the call does, so that its error can name each server and its cause.
            attempt_s = bound_s * _ATTEMPT_SHARE
            await self.retry(
                "reaching the cluster", lambda: self.refresh([], timeout_s=attempt_s), timeout_s=bound_s
            )
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()

    async def retry(
        self, what: str, call: Callable[[], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """Await `call()` again while it fails with a retriable error."""
        bound_s = self.config.default_api_timeout_ms / 1_000 if timeout_s is None else timeout_s
        return await retrying(what, call, timeout_s=bound_s, backoff=self.backoff)

    # --- sending

    async def connection(self, node_id: int) -> Connection:
        """Return a connection to one broker. Raises BrokerNotAvailable for an unknown id."""
        node = self.nodes.get(node_id)
        if node is None:
            raise BrokerNotAvailable(not_alive(node_id, self.nodes))
        return await self.pool.get(node.address)

    def opened_connection(self, node_id: int) -> Connection | None:
        """Return the connection that `connection` would return at once, or None."""
        node = self.nodes.get(node_id)
        return None if node is None else self.pool.opened(node.address)

    async def connection_to_leader(self, node_id: int) -> Connection:
        """Return a connection to a broker that metadata named as a leader.

        Raises LeaderNotAvailable when it is not in the cluster any more: another task may have refreshed
        metadata since. Unlike an unknown id, that error is retriable.
        """
        try:
            return await self.connection(node_id)
        except BrokerNotAvailable as error:
            raise LeaderNotAvailable(str(error)) from error

    async def send(
        self,
        node_id: int,
        request: Message,
        response_type: type[R],
        *,
        timeout_s: float | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        in_thread: bool = False,
    ) -> R:
        """Send a request to one broker. Raises BrokerNotAvailable for an id that is not in the cluster.

        With `in_thread` a thread decodes the response (`Connection.send`).
        """
        connection = await self.connection(node_id)
        return await connection.send(
            request, response_type, timeout_s=timeout_s, min_version=min_version, max_version=max_version,
            in_thread=in_thread,
        )  # fmt: skip

    async def send_to_any(
        self, request: Message, response_type: type[R], *, min_version: int | None = None
    ) -> R:
        """Send a request once, to the broker with the least to do of those that can be reached."""
        connection = await self._ask_any(self.pool.get)
        return await connection.send(request, response_type, min_version=min_version)

    async def ask_any(self, request: Message, response_type: type[R]) -> R:
        """Send a request that changes nothing to a broker; to others as well while it is silent."""

        async def ask(address: Address) -> R:
            return await (await self.pool.get(address)).send(request, response_type)

        return await self._ask_any(ask)

    async def send_to_controller(
        self, request: Message, response_type: type[R], *, min_version: int | None = None
    ) -> R:
        """Send a request to the controller, or to any broker when none is known (Kafka before 0.10)."""
        if self.controller_id not in self.nodes:
            await self.refresh([])
        if self.controller_id not in self.nodes:
            return await self.send_to_any(request, response_type, min_version=min_version)
        try:
            return await self.send(self.controller_id, request, response_type, min_version=min_version)
        except ClientError:
            self.controller_id = NO_NODE  # it may be gone: the next attempt looks it up
            raise

    def raise_controller_error(self, code: int, message: str | None = None, *needs: Need) -> None:
        """Raise the error of a controller's response, unless it is NONE; forget a controller that moved.

        `needs` has the permissions that the request needs, of which the error names the missing one.
        """
        if code == ErrorCode.NOT_CONTROLLER:
            self.controller_id = NO_NODE
        raise_for(code, message, *needs)

    def avoid(self, node_id: int) -> None:
        """Ask other brokers first for a while: this one did not answer, on a connection of the caller's."""
        node = self.nodes.get(node_id)
        if node is not None:
            until_s = asyncio.get_running_loop().time() + self.config.request_timeout_ms / 1_000
            self._avoided_until_s[node.address] = until_s

    async def _ask_any(self, ask: Callable[[Address], Awaitable[T]], timeout_s: float | None = None) -> T:
        stagger_s = STAGGER_S if self.nodes else BOOTSTRAP_STAGGER_S
        return await first_answer(self._servers(), ask, stagger_s=stagger_s, timeout_s=timeout_s)

    def _servers(self) -> list[Address]:
        """Return brokers and bootstrap servers, best first: those that answer, by the requests in flight."""
        known = [node.address for node in self.nodes.values()]
        now_s = asyncio.get_running_loop().time()
        for address in [late for late, until_s in self._avoided_until_s.items() if until_s <= now_s]:
            del self._avoided_until_s[address]

        def rank(address: Address) -> tuple[bool, bool, bool, int]:
            connected = self.pool.is_connected(address)
            avoided, failed = address in self._avoided_until_s, self.pool.has_failed(address)
            return avoided, not connected, failed, self.pool.in_flight(address)

        return sorted(dict.fromkeys([*known, *self.bootstrap]), key=rank)

    # --- metadata

    async def refresh(
        self, topics: Iterable[str] | None, *, may_create: bool = False, timeout_s: float | None = None
    ) -> MetadataResponse:
        """Request metadata of the brokers and some topics once; None means all topics. Returns the response.

        Errors of topics are in the response; they are not raised. Raises NoBrokerAvailable.
        """
        wanted = None if topics is None else list(topics)
        response = await self._ask_metadata(wanted, may_create, timeout_s)
        now_s = asyncio.get_running_loop().time()
        for topic in response.topics:
            self._remember(topic, now_s)
        return response

    async def all_topics(self) -> list[Topic]:
        """Request metadata of all topics once, and return those without an error, sorted by name.

        Threads decode and sort them, so that tens of thousands do not hold the loop up. Raises
        NoBrokerAvailable.
        """
        response = await self._ask_metadata(None, False, None, in_thread=True)
        now_s = asyncio.get_running_loop().time()
        topics, known = await asyncio.to_thread(_known_topics, response, now_s)
        self._topics = known
        return topics

    async def _ask_metadata(
        self, topics: list[str] | None, may_create: bool, timeout_s: float | None, *, in_thread: bool = False
    ) -> MetadataResponse:
        async def ask(address: Address) -> MetadataResponse:
            connection = await self.pool.get(address)
            request = self._request(connection, topics, may_create)
            return await connection.send(request, MetadataResponse, in_thread=in_thread)

        response = await self._ask_any(ask, timeout_s)
        self.nodes = {
            broker.node_id: Node(broker.node_id, Address(broker.host, broker.port), broker.rack)
            for broker in response.brokers
        }
        self.cluster_id, self.controller_id = response.cluster_id, response.controller_id
        return response

    async def topic_names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Request the names of topics by their ids once (KIP-516), and remember their metadata.

        Topics that do not exist, or may not be described, are left out. Raises NoBrokerAvailable.
        """
        wanted = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)

        async def ask(address: Address) -> MetadataResponse:
            connection = await self.pool.get(address)
            return await connection.send(
                request, MetadataResponse, min_version=METADATA_BY_ID, max_version=METADATA_BY_ID
            )

        response = await self._ask_any(ask)
        now_s = asyncio.get_running_loop().time()
        found = [topic for topic in response.topics if topic.error_code == ErrorCode.NONE]
        for topic in found:
            self._remember(topic, now_s)
        return {topic.topic_id: topic.name or "" for topic in found}

    def _request(
        self, connection: Connection, topics: Iterable[str] | None, may_create: bool
    ) -> MetadataRequest:
        has_null = connection.versions.get(MetadataRequest.API_KEY, (0, 0))[1] >= 1
        # Before version 4 (0.11) a request for a topic always creates it, if the broker auto-creates topics.
        has_choice = connection.versions.get(MetadataRequest.API_KEY, (0, 0))[1] >= 4
        allowed = may_create or not has_choice
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        if wanted is None or (wanted and not may_create and not has_choice):
            # In version 0 an empty list means all topics.
            return MetadataRequest(topics=None if has_null else [], allow_auto_topic_creation=allowed)
        return MetadataRequest(topics=wanted, allow_auto_topic_creation=allowed)

    def _remember(self, topic: MetadataResponseTopic, now_s: float) -> None:
        name = topic.name or ""
        if topic.error_code != ErrorCode.NONE:
            self._topics.pop(name, None)
            return
        self._topics[name] = (_topic(name, topic), now_s)

    async def topic(self, name: str, *, may_create: bool = False, timeout_s: float | None = None) -> Topic:
        """Return a topic, from memory while its metadata is fresh.

        With `may_create` the broker may create it, if it auto-creates topics. Raises the broker's error:
        UnknownTopicOrPartition, InvalidTopicException, TopicAuthorizationFailed.
        """
        if (known := self.known_topic(name)) is not None:
            return known

        async def ask() -> Topic:
            response = await self.refresh([name], may_create=may_create)
            codes = {topic.name: topic.error_code for topic in response.topics}
            error = codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not may_create:
                raise NoSuchTopic(name)
            if error != ErrorCode.NONE:
                need = Need(Operation.DESCRIBE, ResourceType.TOPIC, name)
                raise error_about(error, f"topic {name!r}: {ErrorCode(error).name}", need)
            found = self.known_topic(name)
            if found is None or not found.partitions:
                raise LeaderNotAvailable(f"topic {name!r} is being created")
            return found

        return await self.retry(f"finding topic {name!r}", ask, timeout_s=timeout_s)

    def known_topic(self, name: str) -> Topic | None:
        """Return a topic from memory, unless it is unknown or too old."""
        topic, since_s = self._topics.get(name, (None, 0.0))
        age_ms = (asyncio.get_running_loop().time() - since_s) * 1_000
        return topic if age_ms < self.config.metadata_max_age_ms else None

    def forget(self, *topics: str) -> None:
        """Drop the metadata of topics, after an error showed that it is stale."""
        for name in topics:
            self._topics.pop(name, None)

    async def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """Return broker id and leader epoch of a partition's leader, requesting metadata once if unknown.

        Raises LeaderNotAvailable while there is no leader, UnknownTopicOrPartition for an unknown partition.
        """
        known = self.known_topic(partition.topic)
        if known is None or known.partitions.get(partition.partition, _LEADERLESS).leader not in self.nodes:
            self.forget(partition.topic)
            await self.refresh([partition.topic])
            known = self.known_topic(partition.topic)
        if known is None or partition.partition not in known.partitions:
            raise UnknownTopicOrPartition(f"there is no partition {partition}")
        found = known.partitions[partition.partition]
        if found.leader not in self.nodes:
            raise LeaderNotAvailable(f"{partition} has no leader")
        return found.leader, found.leader_epoch

    def known_leader(self, partition: TopicPartition) -> int | None:
        """Return the leader of a partition from memory, or None."""
        topic = self.known_topic(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        return known.leader if known is not None and known.leader in self.nodes else None

    # --- coordinators

    async def coordinator(self, key: str, kind: int = GROUP) -> int:
        """Return the coordinator of a group or transactional id, from memory if known."""
        node_id = self._coordinators.get((kind, key))
        if node_id is not None and node_id in self.nodes:
            return node_id
        request = FindCoordinatorRequest(key=key, key_type=kind)
        response = await self.ask_any(request, FindCoordinatorResponse)
        if response.error_code != ErrorCode.NONE:
            resource = ResourceType.GROUP if kind == GROUP else ResourceType.TRANSACTIONAL_ID
            need = Need(Operation.DESCRIBE, resource, key)
            raise error_about(response.error_code, response.error_message, need)
        self._remember_node(response.node_id, Address(response.host, response.port))
        self._coordinators[(kind, key)] = response.node_id
        return response.node_id

    def _remember_node(self, node_id: int, address: Address) -> None:
        """Take over where a coordinator is: it may have moved since the last metadata."""
        known = self.nodes.get(node_id)
        if known is None or known.address != address:
            self.nodes[node_id] = Node(node_id, address, None if known is None else known.rack)

    async def send_to_coordinator(self, group: str, request: Message, response_type: type[R]) -> R:
        """Send a request to a group's coordinator."""
        try:
            return await self.send(await self.coordinator(group), request, response_type)
        except ClientError:
            self.forget_coordinator(group)  # it may be gone, and another broker may have taken over
            raise

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Forget a coordinator, after it answered that it is not the coordinator."""
        self._coordinators.pop((kind, key), None)

    def raise_coordinator_error(
        self, group: str, code: int, operation: Operation = Operation.READ, *needs: Need
    ) -> None:
        """Raise the error of a group's response, unless it is NONE; forget a coordinator that moved.

        The request needs `operation` on the group, and `needs`.
        """
        if code == ErrorCode.NONE:
            return
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.forget_coordinator(group)
        raise error_about(code, None, Need(operation, ResourceType.GROUP, group), *needs)


class NoSuchTopic(UnknownTopicOrPartition):
    """The topic does not exist; unlike UnknownTopicOrPartition, not retriable."""

    retriable = False

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} does not exist")
        self.name = name


_LEADERLESS = Partition(-1, -1, -1, (), (), ())


def _known_topics(
    response: MetadataResponse, now_s: float
) -> tuple[list[Topic], dict[str, tuple[Topic, float]]]:
    """Return the topics without an error, sorted, and the same by name with the time of their metadata."""
    found = [_topic(topic.name or "", topic) for topic in response.topics if not topic.error_code]
    found.sort(key=lambda topic: topic.name)
    return found, {topic.name: (topic, now_s) for topic in found}


def _topic(name: str, given: MetadataResponseTopic) -> Topic:
    partitions = {found.partition_index: _partition(found) for found in given.partitions}
    return Topic(name, given.topic_id, given.is_internal, partitions)


def _partition(given: MetadataResponsePartition) -> Partition:
    return Partition(
        given.partition_index,
        given.leader_id,
        given.leader_epoch,
        tuple(given.replica_nodes),
        tuple(given.isr_nodes),
        tuple(given.offline_replicas),
    )


def raise_for(code: int, message: str | None = None, *needs: Need) -> None:
    """Raise the error of a code, unless it is NONE; it names the one of `needs` that is missing."""
    if code != ErrorCode.NONE:
        raise error_about(code, message, *needs)


def not_alive(broker: int, alive: Iterable[int]) -> str:
    """Return the words about a broker that is not among those alive: metadata give no reason."""
    known = ", ".join(map(str, sorted(alive))) or "none"
    return f"broker {broker} is down, or not in the cluster: alive are {known}"


def is_stale(error: BaseException) -> bool:
    """Return whether an error means that metadata must be refreshed."""
    return isinstance(error, ClientError) or (isinstance(error, KafkaError) and error.refresh_metadata)
