"""The SimpleConsumer of early Kafka: one broker, and offsets kept by the caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from ottla.client.cluster import Cluster, Node, Topic
from ottla.client.config import Address, ClientConfig, parse_bootstrap_servers
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionClosed
from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.fetch.decoding import decode
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.errors import ErrorCode, KafkaError, MessageTooLarge, UnknownTopicOrPartition, error_for
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition

R = TypeVar("R", bound=Message)

EARLIEST: Final = -2
"""The timestamp of the beginning of a partition."""
LATEST: Final = -1
"""The timestamp of its end."""

NO_REPLICA = -1
NO_SESSION, NO_SESSION_EPOCH = 0, -1
DEFAULT_MAX_BYTES = 1024 * 1024


class FetchFrom(NamedTuple):
    """One partition of a `multi_fetch`: the offset to start at, and about how many bytes to return."""

    topic: str
    partition: int
    offset: int
    max_bytes: int = DEFAULT_MAX_BYTES


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch for one partition: records to iterate over, and the offset to fetch next.

    `next_offset` also skips gaps of compaction and control batches. `high_watermark` is the end of the
    replicated log. In the result of `multi_fetch` a partition may have an `error` instead of records;
    iterating over it raises the error.
    """

    topic: str
    partition: int
    next_offset: int
    high_watermark: int = -1
    log_start_offset: int = -1
    records: tuple[ConsumerRecord, ...] = ()
    error: KafkaError | None = None

    def __len__(self) -> int:
        return len(self._checked())

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return iter(self._checked())

    def _checked(self) -> tuple[ConsumerRecord, ...]:
        if self.error is not None:
            raise self.error
        return self.records


class SimpleConsumer:
    """Fetches from one broker and keeps no state: neither offsets, nor leaders, nor a group.

        async with SimpleConsumer("127.0.0.1:9092") as consumer:
            offset = (await consumer.offsets_before("orders", 0, EARLIEST))[0]
            fetched = await consumer.fetch("orders", 0, offset)
            offset = fetched.next_offset  # keep it where you like

    The broker must be the leader of the partitions, else NotLeaderOrFollower is raised; `find_leader`
    returns the leader. A broken connection is opened again once per call. Send one request at a time: a fetch
    that waits for records delays the requests after it.
    """

    def __init__(
        self,
        broker: str | Address,
        *,
        client_id: str = "ottla",
        socket_timeout_ms: int = 30_000,
        fetch_wait_max_ms: int = 100,
        fetch_min_bytes: int = 1,
        config: ClientConfig | None = None,
    ) -> None:
        self.address = broker if isinstance(broker, Address) else _only_address(broker)
        self.config = config or ClientConfig(client_id=client_id, request_timeout_ms=socket_timeout_ms)
        self._fetch_wait_max_ms = fetch_wait_max_ms
        self._fetch_min_bytes = fetch_min_bytes
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        self._connection = await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # --- records

    async def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> Fetched:
        """Return the records of a partition from `offset` on, at least one if there are any.

        At the end of the partition it waits `fetch_wait_max_ms`, and then returns none. Raises
        OffsetOutOfRange for an offset outside of the log (deleted by retention, or not written yet),
        NotLeaderOrFollower, and other errors of the broker; MessageTooLarge when an old broker cuts the first
        record off at `max_bytes`.
        """
        (fetched,) = await self.multi_fetch([FetchFrom(topic, partition, offset, max_bytes)])
        if fetched.error is not None:
            raise fetched.error
        return fetched

    async def multi_fetch(self, wanted: Iterable[FetchFrom]) -> list[Fetched]:
        """Fetch from several partitions in one request; return their results in the order of `wanted`.

        A partition that fails has an `error`; the others have their records.
        """
        asked = [FetchFrom(*fetch) for fetch in wanted]
        answer = await self._send(self._request(asked), FetchResponse, self._fetch_wait_max_ms)
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code)
        given = {
            (topic.topic, data.partition_index): data
            for topic in answer.responses
            for data in topic.partitions
        }
        return [_fetched(fetch, given.get((fetch.topic, fetch.partition))) for fetch in asked]

    # --- offsets

    async def offsets_before(
        self, topic: str, partition: int, time_ms: int = LATEST, max_offsets: int = 1
    ) -> list[int]:
        """Return up to `max_offsets` offsets of segments older than `time_ms`, newest first.

        LATEST returns the end of the partition and then the base offsets of its segments, EARLIEST its first
        offset, a timestamp (ms since 1970) the base offsets of segments written before it, if any. Brokers
        without version 0 of ListOffsets (Kafka 4) do not tell segments: there the end, or the first record at
        or after the timestamp, is followed by the first offset.
        """
        served = (await self._open()).versions.get(ListOffsetsRequest.API_KEY)
        if served is None or served[0] == 0:
            answer = await self._list_offsets(topic, partition, time_ms, max_offsets, version=0)
            return list(answer.old_style_offsets)
        newest = (await self._list_offsets(topic, partition, time_ms)).offset
        found = [newest] if newest >= 0 else []
        if len(found) < max_offsets and time_ms != EARLIEST:
            first = (await self._list_offsets(topic, partition, EARLIEST)).offset
            found += [first] if first not in found else []
        return found[:max_offsets]

    # --- metadata

    async def topic_metadata(self, *topics: str) -> dict[str, Topic]:
        """Return topics with their partitions and leaders as this broker knows them; all by default.

        Topics that the broker does not know, or that the client may not see, are left out.
        """
        async with self._cluster() as cluster:
            answer = await cluster.refresh(topics or None)
            named = [topic.name for topic in answer.topics if topic.name is not None]
            known = {name: cluster.known_topic(name) for name in named}
        return {name: topic for name, topic in known.items() if topic is not None}

    async def find_leader(self, topic: str, partition: int) -> Node:
        """Return the leader of a partition.

        Raises UnknownTopicOrPartition, LeaderNotAvailable while there is none.
        """
        async with self._cluster() as cluster:
            return await _leader(cluster, topic, partition)

    # --- requests

    def _cluster(self) -> Cluster:
        return Cluster([str(self._opened.address)], self.config)

    async def _connected(self) -> Connection:
        connection = Connection(self.address, self.config)
        await connection.connect()
        return connection

    async def _open(self) -> Connection:
        if not self._opened.is_open:
            self._connection = await self._connected()
        return self._opened

    @property
    def _opened(self) -> Connection:
        """The connection. Raises ConsumerClosed before `async with` and after it."""
        if self._connection is None:
            raise ConsumerClosed("the consumer is not open; use it inside `async with`")
        return self._connection

    async def _send(
        self, request: Message, response: type[R], wait_ms: int = 0, *, max_version: int | None = None
    ) -> R:
        timeout_s = (self.config.request_timeout_ms + wait_ms) / 1_000
        connection = await self._open()
        try:
            return await connection.send(request, response, timeout_s=timeout_s, max_version=max_version)
        except ConnectionClosed:
            connection = await self._open()
            return await connection.send(request, response, timeout_s=timeout_s, max_version=max_version)

    def _request(self, asked: Iterable[FetchFrom]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        most_bytes = 0
        for fetch in asked:
            if fetch.max_bytes < 1:
                raise ValueError("max_bytes must be at least 1")
            most_bytes += fetch.max_bytes
            topics.setdefault(fetch.topic, []).append(
                FetchPartition(
                    partition=fetch.partition, fetch_offset=fetch.offset, partition_max_bytes=fetch.max_bytes
                )
            )
        return FetchRequest(
            replica_id=NO_REPLICA,
            max_wait_ms=self._fetch_wait_max_ms,
            min_bytes=self._fetch_min_bytes,
            max_bytes=min(most_bytes, 2**31 - 1),
            session_id=NO_SESSION,
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=name, partitions=found) for name, found in topics.items()],
        )

    async def _list_offsets(
        self, topic: str, partition: int, time_ms: int, max_offsets: int = 1, *, version: int | None = None
    ) -> ListOffsetsPartitionResponse:
        wanted = ListOffsetsPartition(
            partition_index=partition, timestamp=time_ms, max_num_offsets=max_offsets
        )
        request = ListOffsetsRequest(
            replica_id=NO_REPLICA, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
        )
        answer = await self._send(request, ListOffsetsResponse, max_version=version)
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise error_for(found.error_code, f"{topic}-{partition}")
        return found


async def find_leader(
    bootstrap_servers: str | Iterable[str], topic: str, partition: int, config: ClientConfig | None = None
) -> Node:
    """Ask one of several brokers for the leader of a partition, for `SimpleConsumer(leader.address)`.

    Raises UnknownTopicOrPartition, LeaderNotAvailable while there is none.
    """
    async with Cluster(bootstrap_servers, config) as cluster:
        return await _leader(cluster, topic, partition)


async def _leader(cluster: Cluster, topic: str, partition: int) -> Node:
    node_id, _ = await cluster.leader(TopicPartition(topic, partition))
    return cluster.nodes[node_id]


def _only_address(text: str) -> Address:
    addresses = parse_bootstrap_servers(text)
    if len(addresses) != 1:
        raise ValueError("a SimpleConsumer connects to one broker; find_leader returns the leader")
    return addresses[0]


def _fetched(asked: FetchFrom, data: PartitionData | None) -> Fetched:
    where = TopicPartition(asked.topic, asked.partition)
    if data is None:
        missing = UnknownTopicOrPartition(f"the broker returned nothing for {where}")
        return Fetched(asked.topic, asked.partition, asked.offset, error=missing)
    empty = Fetched(asked.topic, asked.partition, asked.offset, data.high_watermark, data.log_start_offset)
    if data.error_code != ErrorCode.NONE:
        return replace(empty, error=error_for(data.error_code, f"{where} at offset {asked.offset}"))
    try:
        decoded = decode(where, data.records or b"", asked.offset)
    except KafkaError as error:
        return replace(empty, error=error)
    if data.records and decoded.next_offset == asked.offset:
        return replace(empty, error=MessageTooLarge(f"{where} at offset {asked.offset}: raise max_bytes"))
    return replace(empty, records=tuple(decoded.records), next_offset=decoded.next_offset)
