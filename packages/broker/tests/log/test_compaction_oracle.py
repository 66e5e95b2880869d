"""Random workloads on a compacted log, cleaned and crashed at any moment, checked against a model.

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
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.files.fake_files import Loss, MemoryFiles, PowerLoss
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import commit, interrupted_recoveries, truncate_to
from ottla.broker.runtime.environment import Environment
from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    ControlType,
    Record,
    decode_records,
    end_transaction_marker,
    read_header,
    read_headers,
    validate_batches,
)
from ottla.protocol.storage.indexes import ProducerEntry
from ottla.protocol.topics import TopicPartition

STATES = int(os.environ.get("CRASH_STATES", "300"))
STATES_OF_A_TRACE = 5
STRIDE = max(1, 6_000 // STATES)
"""Every how many operations of a cleaning power is lost; each of them with `CRASH_STATES=6000`."""
DIRECTORY = Path("/logs")
PARTITION = TopicPartition("compacted", 0)
RETENTION_MS = 1_000
CONFIG = BrokerConfig(
    log_dirs=(str(DIRECTORY),),
    log_segment_bytes=1_500,
    log_index_interval_bytes=200,
    log_index_size_max_bytes=400,
    log_cleanup_policy=("compact",),
    log_cleaner_min_cleanable_ratio=0.1,
    log_cleaner_delete_retention_ms=RETENTION_MS,
    log_segment_delete_delay_ms=0,
    log_cleaner_backoff_ms=0,
    producer_id_expiration_ms=10**12,
)


@dataclass
class Model:
    """The appended records, and the promises about them."""

    records: dict[int, Record] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    """Offsets of records whose transaction was aborted."""
    open: dict[int, list[int]] = field(default_factory=dict)
    """Producer -> offsets of the records of its open transaction."""
    end: int = 0
    synced: int = 0
    cutting_to: int | None = None
    tombstone_ages: dict[int, int] = field(default_factory=dict)
    """Offset -> the time at which a cleaning first kept it."""

    def cut(self, end: int) -> None:
        """Forget everything from an offset on."""
        self.records = {at: one for at, one in self.records.items() if at < end}
        self.markers = {at for at in self.markers if at < end}
        self.aborted = {at for at in self.aborted if at < end}
        self.tombstone_ages = {at: age for at, age in self.tombstone_ages.items() if at < end}
        self.end = end

    def recovered(self, end: int, found: set[int]) -> None:
        """Forget what was not synced and is lost: what is left of that may have gaps in a compacted log."""
        synced = self.synced if self.cutting_to is None else min(self.synced, self.cutting_to)
        self.cut(end)
        self.records = {at: one for at, one in self.records.items() if at < synced or at in found}
        self.synced, self.cutting_to = end, None

    def newest(self, end: int) -> dict[bytes, int]:
        """The offset of each key's last record below an offset, without aborted ones."""
        found: dict[bytes, int] = {}
        for at, one in sorted(self.records.items()):
            if at < end and at not in self.aborted:
                found[one.key or b""] = at
        return found


class Workload:
    """Random operations on one compacted partition on a disk in memory, until power is lost."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.files = MemoryFiles()
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.now_ms = 1_000
        self.cleanings = 0
        self.epoch = 0
        self.log: Log

    async def run(self) -> None:
        """Operate on the log until power is lost."""
        self.files.fail_after(self.chance.randrange(5, 900), self.chance)
        try:
            while True:
                logs = await opened(self.files)
                found = logs.get(PARTITION)
                self.log = found or logs.create(PARTITION)
                assert self.log.log_end_offset == self.model.end
                for _ in range(self.chance.randrange(20, 120)):
                    await self._do_something(logs)
                await logs.close()
                self.model.synced = self.log.recovery_point
                await logs.unlock()
        except PowerLoss:
            return

    async def _do_something(self, logs: LogRegistry) -> None:
        actions: list[tuple[int, Any]] = [
            (40, self._append),
            (12, self._append_idempotent),
            (12, self._append_transactional),
            (10, self._end_transaction),
            (8, self._flush),
            (10, lambda: self._clean(logs)),
            (2, self._truncate),
            (2, lambda: LogPasses(logs).checkpoint_recovery_points(self.now_ms)),
            (3, lambda: LogPasses(logs).delete_due(self.now_ms)),
        ]
        act = self.chance.choices([one for _, one in actions], [weight for weight, _ in actions])[0]
        self.now_ms += self.chance.randrange(100)
        result = act()
        if asyncio.iscoroutine(result):
            await result

    # ---- appends

    def _append(self, **how: Any) -> list[int]:
        builder = BatchBuilder(codec=self.chance.choice([Codec.NONE, Codec.NONE, *Codec]))
        for _ in range(self.chance.randrange(1, 6)):
            value = None if self.chance.random() < 0.15 else self.chance.randbytes(10)
            builder.append(b"key %d" % self.chance.randrange(12), value, self.now_ms)
        return self._appended(builder.build(**how), self.model.end)

    def _appended(self, data: bytes, end: int) -> list[int]:
        records = [
            Record(end + one.offset, one.timestamp_ms, one.key, one.value) for one in decode_records(data)
        ]
        # A batch that was torn by the loss of power may be found whole: it is known before it is written.
        self.model.records |= {one.offset: one for one in records}
        self.model.end = end + len(records)
        self.log.append(data, leader_epoch=self.epoch, now_ms=self.now_ms)
        commit(self.log)
        return [one.offset for one in records]

    def _append_idempotent(self, producer_id: int = 0, **how: Any) -> list[int]:
        producer_id = producer_id or self.chance.randrange(1, 4)
        sequence = self.sequences.get(producer_id, 0)
        offsets = self._append(producer_id=producer_id, producer_epoch=0, base_sequence=sequence, **how)
        self.sequences[producer_id] = sequence + len(offsets)
        return offsets

    def _append_transactional(self) -> None:
        producer_id = self.chance.randrange(11, 14)
        end = self.model.end
        self.model.open.setdefault(producer_id, [])
        try:
            self._append_idempotent(producer_id, transactional=True)
        finally:
            self.model.open[producer_id] += range(end, self.model.end)

    def _end_transaction(self) -> None:
        producer_id = self.chance.choice([11, 12, 13])
        offsets = self.model.open.pop(producer_id, None)
        if offsets is None:
            return
        kind = self.chance.choice(list(ControlType))
        if kind is ControlType.ABORT:
            self.model.aborted |= set(offsets)
        marker = end_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=self.now_ms
        )
        self.model.markers.add(self.model.end)
        self.model.end += 1
        self.log.append(marker, leader_epoch=self.epoch, now_ms=self.now_ms, origin=AppendOrigin.COORDINATOR)
        commit(self.log)

    # ---- the rest

    def _flush(self) -> None:
        end = self.log.log_end_offset
        self.log.flush()
        self.model.synced = end

    async def _clean(self, logs: LogRegistry) -> None:
        self._flush()
        before, clean_to = self.now_ms, self.log.cleaned_offset
        if await Cleaner(logs).clean_next(self.now_ms) is None:
            return
        assert self.log.cleaned_offset is not None
        assert clean_to is None or self.log.cleaned_offset > clean_to
        self.cleanings += 1
        check_cleaned(self.log, self.model, before)

    def _truncate(self) -> None:
        # A transaction stays ended: its marker is not cut off.
        lowest = max(0, self.model.end - 8, *(at + 1 for at in self.model.markers))
        if self.model.open or lowest > self.model.end:
            return
        offset = self.chance.randrange(lowest, self.model.end + 1)
        self.model.cutting_to = offset
        end = truncate_to(self.log, offset)
        self.model.cut(end)
        self.model.synced = min(self.model.synced, end)
        self.model.cutting_to = None
        self.sequences = {p.producer_id: p.last_sequence + 1 for p in self.log.producers}
        self.epoch += 1


async def opened(files: MemoryFiles) -> LogRegistry:
    logs = LogRegistry(CONFIG, Environment(random=Random(5)), files=files)
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(CONFIG))
    return logs


# ---- what is left


def stored(log: Log) -> Iterator[bytes]:
    for segment in log.segments:
        data = segment.file.pread(segment.size, 0)
        validate_batches(data, check_records=True)
        for one in read_headers(data):
            yield data[one.position : one.position + one.size_in_bytes]


def records_in(log: Log) -> dict[int, Record]:
    found: dict[int, Record] = {}
    for batch in stored(log):
        if not read_header(batch).is_control:
            found |= {one.offset: one for one in decode_records(batch)}
    return found


def check_cleaned(log: Log, model: Model, now_ms: int) -> None:
    """A cleaned log holds the last record of each key, and tombstones within their time only."""
    cleaned = log.cleaned_offset or 0
    newest = model.newest(cleaned)
    found = {at: one for at, one in records_in(log).items() if at < cleaned}
    assert all(model.records[at] == one for at, one in found.items())
    # An open transaction begins above what may be cleaned.
    wanted = {at for at in newest.values() if model.records[at].value is not None}
    assert wanted <= set(found)
    extra = set(found) - wanted
    assert all(model.records[at].value is None for at in extra)
    assert extra <= set(newest.values())
    for at in extra:
        since = model.tombstone_ages.setdefault(at, now_ms)
        assert now_ms < since + RETENTION_MS, f"the tombstone at {at} is {now_ms - since} ms old"
    for at in set(newest.values()) - set(found):
        assert at in model.tombstone_ages, f"the tombstone at {at} went at once"
        assert now_ms >= model.tombstone_ages[at] + RETENTION_MS, f"the tombstone at {at} is gone too early"


def check_log(log: Log, model: Model) -> list[bytes]:
    """Offsets are as they were appended, and nothing is lost that is the last of its key."""
    batches = list(stored(log))
    ends = [read_header(one).next_offset for one in batches]
    assert ends == sorted(ends)
    must_hold = model.synced if model.cutting_to is None else min(model.synced, model.cutting_to)
    end = log.log_end_offset
    assert must_hold <= end <= model.end
    assert not ends or ends[-1] == end or log.segments[-1].size == 0
    found = records_in(log)
    assert all(model.records[at] == one for at, one in found.items())
    for at in model.newest(must_hold).values():
        is_gone = at not in found
        assert not is_gone or model.records[at].value is None
    return batches


def producers_of(log: Log) -> list[ProducerEntry]:
    return sorted(one._replace(coordinator_epoch=0) for one in log.producers.entries())


def check_readable(log: Log, batches: list[bytes]) -> None:
    read, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 700, up_to=log.log_end_offset).read()
        if not data:
            break
        for one in read_headers(data):
            read.append(data[one.position : one.position + one.size_in_bytes])
            offset = one.next_offset
    assert read == batches


async def check_state(disk: MemoryFiles, workload: Workload, chance: Random) -> None:
    """Recover a disk, sometimes interrupted by another loss of power, recover it again, and clean it."""
    disk = await interrupted_recoveries(disk, opened, chance)
    logs = await opened(disk)
    log = logs.get(PARTITION)
    if log is None:
        assert not workload.model.synced
        return
    batches = check_log(log, workload.model)
    check_readable(log, batches)
    commit(log)
    log.flush()
    workload.model.recovered(log.log_end_offset, set(records_in(log)))
    before = producers_of(log)
    cleaner = Cleaner(logs)
    while await cleaner.clean_next(workload.now_ms):
        pass
    check_readable(log, check_log(log, workload.model))
    assert producers_of(log) == before
    again = (await opened(disk.crash(Random(1)))).get(PARTITION)
    assert again is not None
    assert producers_of(again) == before, "what is left gives the same state of producers"
    assert check_log(again, workload.model) == list(stored(log))


def one_trace(seed: int) -> Workload:
    async def run() -> Workload:
        workload = Workload(seed)
        await workload.run()
        for number in range(STATES_OF_A_TRACE):
            chance = Random(seed * 1000 + number)
            model = workload.model
            workload.model = copied(model)
            try:
                await check_state(workload.files.crash(chance), workload, chance)
            except BaseException as error:
                error.add_note(f"seed {seed}, state {number}")
                raise
            workload.model = model
        return workload

    return asyncio.run(run())


def copied(model: Model) -> Model:
    return Model(
        dict(model.records),
        set(model.markers),
        set(model.aborted),
        {one: list(at) for one, at in model.open.items()},
        model.end,
        model.synced,
        model.cutting_to,
        dict(model.tombstone_ages),
    )


@pytest.mark.timeout(600)
def test_a_compacted_log_keeps_the_last_record_of_each_key_through_crashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workloads = [one_trace(seed) for seed in range(-(-STATES // STATES_OF_A_TRACE))]

    cleanings = sum(one.cleanings for one in workloads)
    with capsys.disabled():
        print(f" {len(workloads) * STATES_OF_A_TRACE} crash states, {cleanings} cleanings", end="")
    assert cleanings >= len(workloads)


# ---- every operation of a cleaning


async def filled(seed: int) -> tuple[Workload, LogRegistry]:
    """A log that was compacted once and is dirty again, all of it on the disk."""
    workload = Workload(seed)
    logs = await opened(workload.files)
    workload.log = logs.create(PARTITION)
    for _ in range(2):
        await workload._clean(logs)
        for _ in range(40):
            workload._append()
            workload._append_idempotent()
            if workload.chance.random() < 0.3:
                workload._append_transactional()
                workload._end_transaction()
        for _ in range(10):
            workload._end_transaction()
    await LogPasses(logs).checkpoint_recovery_points(workload.now_ms)
    workload._flush()
    return workload, logs


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_power_lost_at_any_operation_of_a_cleaning_loses_no_last_record(seed: int) -> None:
    for steps in range(seed, 1_000, STRIDE):
        workload, logs = await filled(seed)
        workload.files.fail_after(steps, Random(steps))
        is_complete = True
        try:
            await Cleaner(logs).clean_next(workload.now_ms)
        except PowerLoss:
            is_complete = False
        chance, model = Random(steps), workload.model
        for loss in chance.sample(list(Loss), 2):
            workload.model = copied(model)
            try:
                await check_state(workload.files.crash(chance, loss), workload, chance)
            except BaseException as error:
                error.add_note(f"seed {seed}, step {steps}, {loss}")
                raise
        if is_complete:
            break
    assert steps > 20, "there were that many operations"
    assert is_complete
