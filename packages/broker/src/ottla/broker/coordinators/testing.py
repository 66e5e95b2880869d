"""Tests of coordinators: the log of an internal topic in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ottla.broker.coordinators.state import KeyValue
from ottla.broker.coordinators.store import AppendedBatch, build_batch
from ottla.protocol.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower
from ottla.protocol.records import assign_offsets
from ottla.protocol.topics import GROUP_METADATA_TOPIC


@dataclass(slots=True)
class _HeldAppend:
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: KafkaError | None = None


class MemoryStore:
    """`CoordinatorStore` in memory.

    `hold` keeps appends uncommitted until `release`; `fail_with` refuses them. `led` names the partitions
    that are led here, `leader_epochs` the epoch of each: an operation in an older one is fenced.
    """

    def __init__(
        self, partitions: int = 4, batches_in_a_chunk: int = 8, topic: str = GROUP_METADATA_TOPIC
    ) -> None:
        self.topic = topic
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.hold = False
        self.fail_with: KafkaError | None = None
        self.led: set[int] = set(range(partitions))
        self.leader_epochs = [0] * partitions
        self.read_gate = asyncio.Event()
        self.read_gate.set()
        self._chunk = batches_in_a_chunk
        self._held: list[_HeldAppend] = []

    def partition_count(self) -> int:
        return len(self.batches)

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        wall_ms: int,
        *,
        leader_epoch: int,
        required_acks: int = -1,
    ) -> AppendedBatch:
        if self.fail_with is not None:
            raise self.fail_with
        self._check(partition, leader_epoch)
        position = self.append_batch(partition, build_batch(records, wall_ms))
        if not self.hold:
            return AppendedBatch(position, None)
        held = _HeldAppend()
        self._held.append(held)
        return AppendedBatch(position, lambda: self._wait(held))

    def append_batch(self, partition: int, batch: bytes) -> int:
        """Append an encoded batch, as another leader might have done; return its base offset."""
        position, copy = self.ends[partition], bytearray(batch)
        self.ends[partition] = assign_offsets(copy, position, 0)
        self.batches[partition].append(bytes(copy))
        return position

    def _check(self, partition: int, leader_epoch: int) -> None:
        if partition not in self.led:
            raise NotLeaderOrFollower
        if leader_epoch < self.leader_epochs[partition]:
            raise FencedLeaderEpoch

    async def _wait(self, held: _HeldAppend) -> None:
        await held.done.wait()
        if held.error is not None:
            raise held.error

    def release(self, error: KafkaError | None = None) -> None:
        """Commit what is held, or let its waits fail."""
        for held in self._held:
            held.error = error
            held.done.set()
        self._held.clear()

    def is_blank(self, partition: int) -> bool:
        return not self.batches[partition]

    async def read(self, partition: int, leader_epoch: int) -> AsyncIterator[bytes]:
        present = list(self.batches[partition])
        for start in range(0, len(present), self._chunk):
            await self.read_gate.wait()
            self._check(partition, leader_epoch)
            yield b"".join(present[start : start + self._chunk])
