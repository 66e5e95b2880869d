"""Write batches with exact control over their contents."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ottla.client.cluster import Cluster
from ottla.protocol.errors import ErrorCode, error_for
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.topics import TopicPartition

TIMEOUT_MS = 10_000


class Writer:
    """Writes batches; topics are created when they are needed."""

    def __init__(self, servers: str) -> None:
        self._cluster = Cluster(servers)

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cluster.close()

    async def write(
        self,
        topic: str,
        *values: bytes | None,
        partition: int = 0,
        codec: Codec = Codec.NONE,
        timestamp_ms: int = 0,
    ) -> int:
        """Write one batch; return the offset of its first record."""
        builder = BatchBuilder(1 << 30, codec=codec)
        for value in values:
            builder.append(None, value, timestamp_ms)
        return await self.write_raw(topic, partition, builder.build())

    async def write_raw(
        self, topic: str, partition: int, batch: bytes, *, transactional_id: str | None = None
    ) -> int:
        """Write an encoded batch; return its offset."""
        data = TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)]
        )
        request = ProduceRequest(
            transactional_id=transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data]
        )

        async def ask() -> int:
            await self._cluster.topic(topic, may_create=True)
            leader, _ = await self._cluster.leader(TopicPartition(topic, partition))
            answer = await self._cluster.send(leader, request, ProduceResponse)
            (written,) = answer.responses[0].partition_responses
            if written.error_code != ErrorCode.NONE:
                self._cluster.forget(topic)
                raise error_for(written.error_code)
            return written.base_offset

        return await self._cluster.retry("writing", ask)
