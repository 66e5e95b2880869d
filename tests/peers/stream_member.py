"""Runs a sub-topology without a broker: one record after the other, with stores in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.language.declarations import TableNode
from ottla.streams.language.runs import Counters, Run
from ottla.streams.language.steps import CompiledPart
from ottla.streams.language.topology import Topology
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.store import StorePartition, from_record

Row = tuple[bytes | None, bytes | None]


class Crashed(Exception):
    """The process ended while it wrote."""


@dataclass
class Log:
    """Takes outputs; the process crashes at the one numbered `crash_at`."""

    outputs: list[ProducerRecord] = field(default_factory=list)
    crash_at: int | None = None
    acknowledged_at: list[int] = field(default_factory=list)

    async def send(self, output: ProducerRecord) -> None:
        if self.crash_at is not None and len(self.outputs) >= self.crash_at:
            raise Crashed
        self.outputs.append(output)

    async def acknowledged(self) -> None:
        self.acknowledged_at.append(len(self.outputs))

    def rows(self, topic: str) -> list[Row]:
        return [
            (each.key, each.value)
            for each in self.outputs
            if each.topic == topic and not (each.key or b"").startswith(b"\x00")
        ]


class Member:
    """One member of a group, with what it keeps for one partition of a topic."""

    def __init__(self, topology: Topology, topic: str, log: Log) -> None:
        part = topology.plan().parts[topic]
        self._part = CompiledPart(part)
        self.stores = {
            spec.name: StorePartition(MemoryStore(), f"{spec.name}-changelog", level=part.levels[spec.name])
            for spec in part.stores
        }
        self.tables: dict[tuple[str, bytes], bytes] = {}
        self.counters = Counters()
        self.log = log

    def row(self, table: TableNode, key: bytes) -> bytes | None:
        return self.tables.get((table.topic, key))

    def name_row(self, table: TableNode, key: bytes) -> str:
        return f"the row of table {table.topic!r}"

    async def restore(self) -> None:
        """Read the changelogs, as the next owner of the partition does."""
        for partition in self.stores.values():
            records = [
                (output.key or b"", from_record(output.value, _headers(output)))
                for output in self.log.outputs
                if output.topic == partition.changelog
            ]
            await partition.store.apply(records, len(records))
            await partition.restored()

    async def handle(self, record: ConsumerRecord, *, time_ms: int = -1) -> None:
        run = Run(record, self.stores, self, self.counters)
        try:
            waiting = self._part.process(run, time_ms)
            if waiting is not None:
                await waiting
            await run.finish(self.log)
        finally:
            run.release()

    async def handle_all(self, records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            await self.handle(record)


def _headers(output: ProducerRecord) -> list[tuple[str, bytes | None]]:
    """Return headers as a consumer reads them."""
    return [(name, data) for name, data in dict(output.headers).items() if not isinstance(data, str)]


def record(
    offset: int, key: bytes | None, value: bytes | None, timestamp_ms: int = 0, topic: str = "orders"
) -> ConsumerRecord:
    return ConsumerRecord(topic, 0, offset, timestamp_ms, key, value)
