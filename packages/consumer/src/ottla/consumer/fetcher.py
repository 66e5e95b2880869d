"""Fetches: one request at a time per broker, for all partitions that it leads."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla.client.cluster import Cluster, is_stale
from ottla.client.errors import ClientError
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.decoding import decode
from ottla.consumer.errors import NoOffset
from ottla.consumer.positions import Positions
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.errors import CorruptMessage, ErrorCode, KafkaError, MessageTooLarge, error_for
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition

NO_REPLICA = -1
NO_SESSION, NO_SESSION_EPOCH = 0, -1
NO_LEADER = -1


class _Failure(NamedTuple):
    """What went wrong, and for which partitions at which offsets."""

    error: ClientError | KafkaError
    wanted: Mapping[TopicPartition, int]


class Fetcher:
    """Keeps one fetch out per broker; `next_records` gives what comes first."""

    def __init__(self, cluster: Cluster, positions: Positions, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._out: dict[int, asyncio.Task[list[ConsumerRecord]]] = {}
        self._failures: deque[_Failure] = deque()

    async def next_records(self, tasks: asyncio.TaskGroup, timeout_s: float) -> list[ConsumerRecord]:
        """Return records of one answer, or none when the time is over.

        Raises what is not worth repeating: NoOffset, authorization, corrupt records. What other partitions
        had in the same answer is given first. Whoever calls again meets the error again, or seeks.
        """
        self._raise_failure()
        for leader, wanted in self._by_leader().items():
            if leader not in self._out:
                ask = self._learn_leaders(wanted) if leader == NO_LEADER else self._fetch(leader, wanted)
                self._out[leader] = tasks.create_task(ask)
        if not self._out:  # everything is paused, or nothing assigned
            await asyncio.sleep(min(self._config.client.retry_backoff_ms / 1_000, timeout_s))
            return []
        done, _ = await asyncio.wait(
            self._out.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        records: list[ConsumerRecord] = []
        for leader in [leader for leader, task in self._out.items() if task in done]:
            records += self._out.pop(leader).result()
        if not records:
            self._raise_failure()
        return records

    def stop(self) -> None:
        """Give up what is out."""
        for task in self._out.values():
            task.cancel()
        self._out.clear()

    def _raise_failure(self) -> None:
        while self._failures:
            error, wanted = self._failures.popleft()
            # Whoever sought elsewhere since, or reads other partitions now, is past it.
            if any(self._positions.position(each) == since for each, since in wanted.items()):
                raise error

    def _by_leader(self) -> dict[int, dict[TopicPartition, int]]:
        found: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, offset in self._positions.fetchable().items():
            leader = self._cluster.known_leader(partition)
            found[NO_LEADER if leader is None else leader][partition] = offset
        return found

    async def _learn_leaders(self, wanted: Mapping[TopicPartition, int]) -> list[ConsumerRecord]:
        try:
            await self._cluster.refresh({partition.topic for partition in wanted})
        except (ClientError, KafkaError) as error:
            if not is_retriable(error):
                self._failures.append(_Failure(error, wanted))
        if any(self._cluster.known_leader(partition) is None for partition in wanted):
            await self._pause()
        return []

    async def _fetch(self, leader: int, wanted: Mapping[TopicPartition, int]) -> list[ConsumerRecord]:
        try:
            bound_s = self._config.fetch_max_wait_ms / 1_000 + self._config.client.request_timeout_ms / 1_000
            answer = await self._cluster.send(leader, self._request(wanted), FetchResponse, timeout_s=bound_s)
        except (ClientError, KafkaError) as error:  # a KafkaError: the broker left the cluster
            if not is_retriable(error):
                self._failures.append(_Failure(error, wanted))
            self._cluster.forget(*{partition.topic for partition in wanted})
            await self._pause()
            return []
        records = self._records(answer, wanted)
        if not records and any(data.error_code for _, data in _parts(answer)):
            # Metadata and leader may contradict each other for a while: do not ask as fast as they answer.
            await self._pause()
        return records

    async def _pause(self) -> None:
        await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)

    def _records(self, answer: FetchResponse, wanted: Mapping[TopicPartition, int]) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        for partition, data in _parts(answer):
            if partition not in wanted:
                continue
            # Positions of earlier partitions have moved: an error here must not cost what they had.
            try:
                records += self._read(partition, wanted[partition], data)
            except (ClientError, KafkaError) as error:
                self._failures.append(_Failure(error, {partition: wanted[partition]}))
        return records

    def _read(self, partition: TopicPartition, since: int, data: PartitionData) -> list[ConsumerRecord]:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, since)
            return []
        if data.error_code != ErrorCode.NONE:
            error = error_for(data.error_code, f"{partition} at offset {since}")
            # What is damaged on disk stays so, though Kafka calls it retriable for producers.
            if isinstance(error, CorruptMessage) or not (is_retriable(error) or is_stale(error)):
                raise error
            self._cluster.forget(partition.topic)
            return []
        aborted = data.aborted_transactions if self._config.reads_committed else None
        decoded = decode(partition, data.records or b"", since, aborted)
        if data.records and decoded.next_offset == since:
            # Before version 3 a broker cuts a batch off rather than send more than was asked for.
            raise MessageTooLarge(f"{partition} at offset {since}: raise max_partition_fetch_bytes")
        return decoded.records if self._positions.moved(partition, since, decoded.next_offset) else []

    def _out_of_range(self, partition: TopicPartition, since: int) -> None:
        if self._config.auto_offset_reset == "none":
            raise NoOffset(partition)
        if self._positions.position(partition) == since:
            self._positions.seek(partition, None)

    def _request(self, wanted: Mapping[TopicPartition, int]) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for partition, offset in wanted.items():
            topics[partition.topic].append(
                FetchPartition(
                    partition=partition.partition,
                    fetch_offset=offset,
                    partition_max_bytes=self._config.max_partition_fetch_bytes,
                )
            )
        return FetchRequest(
            replica_id=NO_REPLICA,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=int(self._config.reads_committed),
            session_id=NO_SESSION,
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=name, partitions=found) for name, found in topics.items()],
        )


def _parts(answer: FetchResponse) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for topic in answer.responses:
        for data in topic.partitions:
            yield TopicPartition(topic.topic, data.partition_index), data
