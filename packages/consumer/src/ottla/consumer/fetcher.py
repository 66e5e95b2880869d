"""Fetches: one request at a time per broker, for all partitions that it leads."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from ottla.client.cluster import Cluster, is_stale
from ottla.client.errors import ClientError
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.decoding import decode
from ottla.consumer.errors import NoOffset
from ottla.consumer.positions import Positions
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
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


class Fetcher:
    """Keeps one fetch out per broker; `next_records` gives what comes first."""

    def __init__(self, cluster: Cluster, positions: Positions, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._out: dict[int, asyncio.Task[list[ConsumerRecord]]] = {}

    async def next_records(self, tasks: asyncio.TaskGroup, timeout_s: float) -> list[ConsumerRecord]:
        """Return records of one answer, or none when the time is over.

        Raises what is not worth repeating: OffsetOutOfRange without a reset, authorization, corrupt records.
        """
        for leader, wanted in self._by_leader().items():
            if leader not in self._out:
                self._out[leader] = tasks.create_task(self._fetch(leader, wanted))
        if not self._out:
            await self._learn_leaders(timeout_s)
            return []
        done, _ = await asyncio.wait(
            self._out.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        records: list[ConsumerRecord] = []
        for leader in [leader for leader, task in self._out.items() if task in done]:
            records += self._taken(leader)
        return records

    def stop(self) -> None:
        """Give up what is out."""
        for task in self._out.values():
            task.cancel()
        self._out.clear()

    def _taken(self, leader: int) -> list[ConsumerRecord]:
        return self._out.pop(leader).result()

    def _by_leader(self) -> dict[int, dict[TopicPartition, int]]:
        found: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, offset in self._positions.fetchable().items():
            leader = self._cluster.known_leader(partition)
            if leader is not None:
                found[leader][partition] = offset
        return found

    async def _learn_leaders(self, timeout_s: float) -> None:
        topics = {partition.topic for partition in self._positions.fetchable()}
        pause_s = min(self._config.client.retry_backoff_ms / 1_000, timeout_s)
        if topics:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._cluster.refresh(topics)
            except (ClientError, TimeoutError):
                pass  # the next call tries again, after the pause
        if not self._by_leader():
            await asyncio.sleep(pause_s)

    async def _fetch(self, leader: int, wanted: Mapping[TopicPartition, int]) -> list[ConsumerRecord]:
        try:
            bound_s = self._config.fetch_max_wait_ms / 1_000 + self._config.client.request_timeout_ms / 1_000
            answer = await self._cluster.send(leader, self._request(wanted), FetchResponse, timeout_s=bound_s)
        except ClientError as error:
            if not is_retriable(error):
                raise
            await self._after_failure(wanted)
            return []
        except KafkaError as error:  # the broker left the cluster
            if not is_retriable(error):
                raise
            await self._after_failure(wanted)
            return []
        records: list[ConsumerRecord] = []
        for topic in answer.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                if partition in wanted:
                    records += self._read(partition, wanted[partition], data)
        return records

    async def _after_failure(self, wanted: Mapping[TopicPartition, int]) -> None:
        self._cluster.forget(*{partition.topic for partition in wanted})
        await asyncio.sleep(self._config.client.retry_backoff_ms / 1_000)

    def _read(self, partition: TopicPartition, since: int, data: PartitionData) -> list[ConsumerRecord]:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(partition, since)
            return []
        if data.error_code != ErrorCode.NONE:
            error = error_for(data.error_code, f"{partition} at offset {since}")
            if not is_retriable(error) and not is_stale(error):
                raise error
            self._cluster.forget(partition.topic)
            return []
        aborted = data.aborted_transactions if self._config.reads_committed else None
        decoded = decode(partition, data.records or b"", since, aborted)
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
