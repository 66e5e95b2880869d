"""Reads of committed records, as a consumer of transactions makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.client.config import Address
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.records import (
    ControlType,
    iter_records,
    read_end_transaction_marker,
    validate_batches,
)
from ottla.protocol.topics import TopicPartition
from simulation.broker_process import PORT
from simulation.network import SimulatedConnection, client_config

if TYPE_CHECKING:
    from simulation.cluster import Cluster


ANSWER_WITHIN_S: Final = 2.0


class Connections:
    """The connections of one client."""

    def __init__(self, cluster: Cluster, who: str) -> None:
        self._cluster = cluster
        self._who = who
        self._open: dict[int, SimulatedConnection] = {}

    async def to(self, broker_id: int) -> SimulatedConnection:
        """Return a connection to a broker. Raises ClientError."""
        connection = self._open.get(broker_id)
        if connection is None or not connection.is_open:
            connection = SimulatedConnection(Address(f"b{broker_id}", PORT), client_config(self._who))
            self._open[broker_id] = connection
            await connection.connect()
        return connection

    def leader(self, partition: TopicPartition) -> int:
        """The leader by ZooKeeper, or another broker, as clients with old metadata ask it."""
        state, chance = self._cluster.state(partition), self._cluster.chance
        if state is not None and state.leader >= 0 and chance.random() < 0.9:
            return state.leader
        return chance.choice(self._cluster.ids)


def committed_records(answer: PartitionData, begin: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the committed records of an answer, as a consumer takes them, and the offset behind it."""
    data, end, found = bytes(answer.records or b""), begin, list[tuple[int, bytes]]()
    aborted = sorted((one.first_offset, one.producer_id) for one in answer.aborted_transactions or ())
    dropped: set[int] = set()
    for header in validate_batches(data) if data else ():
        batch = data[header.position : header.position + header.size_in_bytes]
        end = header.next_offset
        while aborted and aborted[0][0] <= header.last_offset:
            dropped.add(aborted.pop(0)[1])
        if header.is_control:
            marker = read_end_transaction_marker(batch)
            if marker is not None and marker.type is ControlType.ABORT:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            records = iter_records(batch)
            found += [(one.offset, bytes(one.value or b"")) for one in records if one.offset >= begin]
    return found, end


async def fetch_committed(
    connections: Connections, partition: TopicPartition, offset: int
) -> PartitionData | None:
    """Read committed records from any broker; None where it cannot answer."""
    wanted = FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=4096)
    request = FetchRequest(
        max_wait_ms=0,
        session_epoch=-1,
        isolation_level=1,
        topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
    )
    connection = await connections.to(connections.leader(partition))
    response = await connection.send(request, FetchResponse, timeout_s=ANSWER_WITHIN_S, max_version=12)
    answer = response.responses[0].partitions[0]
    return None if answer.error_code else answer
