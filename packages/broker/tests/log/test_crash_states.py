"""Power is lost at any moment of a workload; the log found afterwards is a prefix that holds all that was
synced.

`CRASH_STATES` says how many states are made; 300 by default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles, PowerLoss
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.log.testing import commit, interrupted_recoveries, truncate_to
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BatchBuilder,
    ControlType,
    end_transaction_marker,
    read_end_transaction_marker,
    read_header,
    read_headers,
)
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.storage.indexes import AbortedTransaction, ProducerEntry
from ottla.protocol.topics import TopicPartition

STATES = int(os.environ.get("CRASH_STATES", "300"))
STATES_OF_A_TRACE = 5
DIRECTORY = Path("/logs")
PARTITION = TopicPartition("torn", 0)
CONFIG = BrokerConfig(
    log_dirs=(str(DIRECTORY),),
    log_segment_bytes=3000,
    log_index_interval_bytes=300,
    log_index_size_max_bytes=400,
    log_retention_bytes=9000,
    log_segment_delete_delay_ms=0,
)


@dataclass(frozen=True)
class Batch:
    base_offset: int
    last_offset: int
    data: bytes


@dataclass
class Model:
    """What was appended, and what was promised about it."""

    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    start: int = 0
    cutting_to: int | None = None
    read_from: set[int] = field(default_factory=lambda: {0})
    """The log starts from which truncations read producers anew: what was before is not seen again."""

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def must_hold(self) -> int:
        return self.synced if self.cutting_to is None else min(self.synced, self.cutting_to)


class Workload:
    """Random operations on one partition on a disk in memory, until power is lost."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.files = MemoryFiles()
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.in_transaction: set[int] = set()
        self.epoch = 0
        self.now_ms = 1000
        self.log: Log

    async def run(self) -> None:
        """Operate on the log until power is lost."""
        chance = self.chance
        self.files.fail_after(chance.randrange(5, 400), chance)
        try:
            while True:
                logs = await opened(self.files)
                found = logs.get(PARTITION)
                self.log = found or logs.create(PARTITION)
                commit(self.log)
                self._resumed()
                for _ in range(chance.randrange(5, 80)):
                    await self._do_something(logs)
                await logs.close()
                self.model.synced = self.log.recovery_point
                await logs.unlock()
        except PowerLoss:
            return

    def _resumed(self) -> None:
        assert self.log.log_end_offset == self.model.end

    async def _do_something(self, logs: LogRegistry) -> None:
        actions: list[tuple[int, Any]] = [
            (50, self._append),
            (8, self._append_idempotent),
            (8, self._append_transactional),
            (5, self._end_transaction),
            (8, self._flush),
            (4, lambda: LogPasses(logs).checkpoint_recovery_points(self.now_ms)),
            (2, lambda: LogPasses(logs).checkpoint_log_starts(self.now_ms)),
            (4, lambda: self._retain(logs)),
            (3, self._truncate),
            (2, self._delete_records),
            (2, lambda: LogPasses(logs).flush_due(self.now_ms)),
            (3, self._begin_epoch),
        ]
        act = self.chance.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        result = act()
        if result is not None:
            await result
        commit(self.log)
        self.model.synced = self.log.recovery_point
        self.model.start = self.log.log_start_offset
        self.now_ms += self.chance.randrange(20)

    # ---- what can be done

    def _records(self, **how: Any) -> bytes:
        builder = BatchBuilder(1 << 20)
        for _ in range(self.chance.randrange(1, 5)):
            value = self.chance.randbytes(self.chance.choice((5, 50, 400)))
            builder.append(None, value, self.now_ms + self.chance.randrange(-50, 50))
        return builder.build(**how)

    def _place(self, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        # What is on its way counts as appended: it may or may not be there.
        expected = bytearray(data)
        header = read_header(expected)
        base = self._next_offset()
        expected[0:8] = base.to_bytes(8, "big")
        expected[12:16] = self.epoch.to_bytes(4, "big")
        self.model.batches.append(Batch(base, base + header.last_offset_delta, bytes(expected)))
        try:
            self._write(bytearray(data), bytes(expected), origin)
        except KafkaError:
            self.model.batches.pop()
            raise

    def _next_offset(self) -> int:
        return self.log.log_end_offset

    def _write(self, data: bytearray, _expected: bytes, origin: AppendOrigin) -> None:
        self.log.append(data, leader_epoch=self.epoch, now_ms=self.now_ms, origin=origin)

    def _append(self) -> None:
        self._place(self._records())

    def _append_idempotent(self, producer_id: int | None = None, *, transactional: bool = False) -> None:
        producer_id = self.chance.randrange(3) if producer_id is None else producer_id
        sequence = self.sequences.get(producer_id, 0)
        data = self._records(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=transactional
        )
        self._place(data)
        self.sequences[producer_id] = sequence + read_header(data).record_count

    def _append_transactional(self) -> None:
        producer_id = 10 + self.chance.randrange(3)
        self.in_transaction.add(producer_id)
        self._append_idempotent(producer_id, transactional=True)

    def _end_transaction(self) -> None:
        if not self.in_transaction:
            return
        producer_id = self.in_transaction.pop()
        marker = end_transaction_marker(
            self.chance.choice(list(ControlType)),
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp_ms=self.now_ms,
        )
        self._place(marker, AppendOrigin.COORDINATOR)

    def _flush(self) -> None:
        self.log.flush()

    async def _retain(self, logs: LogRegistry) -> None:
        await LogPasses(logs).retain(self.now_ms)
        await LogPasses(logs).delete_due(self.now_ms + 1)

    def _truncate(self) -> None:
        if not self.model.batches or self.log.log_end_offset == self.log.log_start_offset:
            return
        offset = self._without_gap(
            self.chance.randrange(self.log.log_start_offset, self.log.log_end_offset + 1)
        )
        if any(one.base_offset < self.log.log_start_offset <= one.last_offset for one in self.model.batches):
            offset = self.log.log_end_offset  # the log starts within a batch, which would be cut too
        self.model.cutting_to = max(
            [one.base_offset for one in self.model.batches if one.base_offset <= offset <= one.last_offset],
            default=offset,
        )
        self.model.read_from.add(self.log.log_start_offset)
        end = truncate_to(self.log, offset)
        self.model.batches = [one for one in self.model.batches if one.last_offset < end]
        self.model.cutting_to = None
        self.sequences = {p.producer_id: p.last_sequence + 1 for p in self.log.producers}
        self.in_transaction = {p.producer_id for p in self.log.producers if p.transaction_start >= 0}
        self.epoch += 1

    def _delete_records(self) -> None:
        offset = self.chance.randrange(self.log.log_start_offset, self.log.high_watermark + 1)
        self.log.advance_log_start(self._without_gap(offset))

    def _without_gap(self, offset: int) -> int:
        return offset

    def _begin_epoch(self) -> None:
        self.epoch += self.chance.randrange(1, 3)


class Copying(Workload):
    """The log copies one that was compacted once: its offsets have gaps, and its policy is `delete`."""

    def _next_offset(self) -> int:
        return self.log.log_end_offset + self.chance.choice((0, 0, 1, 9))

    def _write(self, _data: bytearray, expected: bytes, _origin: AppendOrigin) -> None:
        self.log.append_as_follower(expected, self.now_ms)

    def _without_gap(self, offset: int) -> int:
        # A log that is cut behind a gap ends there until it is opened again, and then in front of the gap.
        return max([one.last_offset + 1 for one in self.model.batches if one.last_offset < offset], default=0)


async def opened(files: MemoryFiles) -> LogRegistry:
    logs = LogRegistry(CONFIG, Environment(), files=files)
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(CONFIG))
    return logs


# ---- what is found


def stored_batches(log: Log) -> list[Batch]:
    found = []
    for segment in log.segments:
        data = segment.file.pread(segment.size, 0)
        for one in read_headers(data):
            raw = data[one.position : one.position + one.size_in_bytes]
            found.append(Batch(one.base_offset, one.last_offset, raw))
    return found


def check_prefix(found: list[Batch], log: Log, model: Model) -> None:
    end = found[-1].last_offset + 1 if found else log.log_end_offset
    assert log.log_end_offset == end
    assert end >= model.must_hold, f"{end} is the end, {model.must_hold} was synced"
    first = found[0].base_offset if found else end
    expected = [one for one in model.batches if first <= one.base_offset < end]
    assert found == expected
    assert not [one for one in model.batches if log.log_start_offset <= one.last_offset < first]


def check_epochs(found: list[Batch], log: Log) -> None:
    epochs = LeaderEpochs()
    for one in found:
        header = read_header(one.data)
        if header.partition_leader_epoch > epochs.latest:
            epochs.assign(header.partition_leader_epoch, one.base_offset)
    epochs.truncate_from_start(max([log.log_start_offset, *(one.base_offset for one in found[:1])]))
    assert epochs_of_batches(found, log) == epochs.entries


def epochs_of_batches(found: list[Batch], log: Log) -> tuple[EpochStart, ...]:
    """The epochs of a log from its first batch on: in a gap before it the log may know another one."""
    epochs = LeaderEpochs(log.leader_epochs.entries)
    epochs.truncate_from_start(max([log.log_start_offset, *(one.base_offset for one in found[:1])]))
    return epochs.entries


def replayed(batches: list[Batch]) -> tuple[ProducerStates, list[AbortedTransaction]]:
    states, aborted = ProducerStates(), []
    for one in batches:
        header = read_header(one.data)
        if header.producer_id < 0:
            continue
        if not header.is_control:
            states.apply(header, one.base_offset)
            continue
        marker = read_end_transaction_marker(one.data)
        assert marker is not None
        committed = marker.type is ControlType.COMMIT
        done = states.complete(header, one.base_offset, marker, committed=committed)
        if done is not None and done.aborted:
            stable = states.stable_offset_after(done)
            aborted.append(AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, stable))
    return states, aborted


def check_producers(found: list[Batch], log: Log, model: Model) -> None:
    appended = [one for one in model.batches if one.base_offset < log.log_end_offset]
    _, aborted = replayed(appended)
    visible, _ = replayed(found)
    parts = [replayed([one for one in appended if one.base_offset >= at])[0] for at in model.read_from]
    known, _ = replayed([one for one in found if one.base_offset >= model.start])
    mine = log.producers.entries()
    assert {one.producer_id for one in mine} >= {one.producer_id for one in known.entries()}
    allowed = [entry for one in (visible, known, *parts) for entry in one.entries()]
    assert not {_marked(one) for one in mine} - {_marked(one) for one in allowed}
    start = max(log.segments[0].base_offset, model.start)
    # Where the log begins within a transaction whose start is gone, what is known of it may be less.
    seen = set(log.aborted_transactions(start, log.log_end_offset))
    readable = [one for one in found if one.last_offset >= model.start]
    assert seen >= {one for one in aborted if one.first_offset >= start and _whole(one, readable)}
    assert {one.last_offset for one in seen} <= {one.last_offset for one in aborted}


def _marked(one: ProducerEntry) -> ProducerEntry:
    return one._replace(coordinator_epoch=0)


def _whole(one: AbortedTransaction, found: list[Batch]) -> bool:
    starts = [batch.base_offset for batch in found if read_header(batch.data).is_transactional]
    # Another transaction that was open meanwhile and began before the log does changes the stable offset.
    return bool(starts) and one.last_stable_offset >= starts[0]


def check_indexes(found: list[Batch], log: Log) -> None:
    for segment in log.segments:
        data, inside = segment.file.pread(segment.size, 0), {}
        for header in read_headers(data):
            inside[header.base_offset] = header
        for offset, header in inside.items():
            located = segment.locate(offset)
            assert located is not None
            assert (located.position, located.base_offset) == (header.position, offset)
        entries = [segment.offsets[number] for number in range(segment.offsets.count)]
        assert {one.position for one in entries} <= {one.position for one in inside.values()}
        assert {one.offset for one in entries} <= {one.last_offset for one in inside.values()}
        times = [segment.times[number] for number in range(segment.times.count)]
        for one in times:
            up_to = [h.max_timestamp for h in inside.values() if h.base_offset <= one.offset]
            assert one.timestamp_ms == max(up_to)
        largest = max((h.max_timestamp for h in inside.values()), default=-1)
        active = log.log_end.max_timestamp if segment.active else segment.max_timestamp
        assert active == largest


def read_through(log: Log) -> Iterator[Batch]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 700, up_to=log.log_end_offset).read()
        for one in read_headers(data):
            yield Batch(
                one.base_offset, one.last_offset, data[one.position : one.position + one.size_in_bytes]
            )
            offset = one.last_offset + 1


def check_all(log: Log, model: Model) -> list[Batch]:
    found = stored_batches(log)
    check_prefix(found, log, model)
    check_epochs(found, log)
    check_producers(found, log, model)
    check_indexes(found, log)
    assert list(read_through(log)) == [one for one in found if one.last_offset >= log.log_start_offset]
    return found


async def check_state(disk: MemoryFiles, workload: Workload, chance: Random) -> None:
    """Recover a disk, sometimes interrupted by another loss of power, and recover it again."""
    model = workload.model
    disk = await interrupted_recoveries(disk, opened, chance)
    logs = await opened(disk)
    log = logs.get(PARTITION)
    if log is None:
        assert not model.must_hold
        return
    found = check_all(log, model)
    once = (epochs_of_batches(found, log), sorted(log.producers.entries()), log.log_end_offset)
    again = (await opened(disk.crash(Random(1)))).get(PARTITION)
    assert again is not None
    assert check_all(again, model) == found
    epochs = epochs_of_batches(found, again)
    assert (epochs, sorted(again.producers.entries()), again.log_end_offset) == once


def one_trace(seed: int, kind: type[Workload] = Workload) -> int:
    async def run() -> None:
        workload = kind(seed)
        await workload.run()
        for number in range(STATES_OF_A_TRACE):
            chance = Random(seed * 1000 + number)
            try:
                await check_state(workload.files.crash(chance), workload, chance)
            except BaseException as error:
                error.add_note(f"seed {seed}, state {number}")
                raise

    asyncio.run(run())
    return STATES_OF_A_TRACE


@pytest.mark.parametrize("seed", [1051, 1285, 2495, 2633, 3342, 3660])
def test_traces_that_found_faults(seed: int) -> None:
    assert one_trace(seed) == STATES_OF_A_TRACE


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Workload, Copying])
def test_a_log_that_lost_power_is_a_prefix_that_holds_all_that_was_synced(
    kind: type[Workload], capsys: pytest.CaptureFixture[str]
) -> None:
    checked = sum(one_trace(seed, kind) for seed in range(-(-STATES // STATES_OF_A_TRACE)))

    with capsys.disabled():
        print(f" {checked} crash states", end="")
    assert checked >= STATES
