"""The native append of what producers usually send does what the general path does, byte for byte."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import Appended, Log
from ottla.broker.log.testing import batch, idempotent, log_in
from ottla.protocol.errors import KafkaError, KafkaStorageError, OutOfOrderSequenceNumber
from ottla.protocol.records import Codec

SETTINGS: dict[str, Any] = {
    "segment_bytes": 6_000,
    "index_interval_bytes": 300,
    "segment_index_bytes": 200,
    "segment_ms": 5_000,
}


def general_only(log: Log) -> Log:
    """The same log without the native way."""
    log.append_plain = lambda batches, leader_epoch, now_ms: -1  # type: ignore[method-assign]
    return log


class Sender:
    """Makes runs of batches, a few of them wrong, in ways a producer or the network may be."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sequences: dict[int, int] = {}
        self.sent: list[bytes] = [b""]

    def run(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.1:
            return chance.choice(self.sent)
        producer_id = chance.choice([-1, -1, 7, 8])
        made = b"".join(self.batch_of(producer_id) for _ in range(chance.choice([1, 1, 1, 2, 5])))
        if chance.random() < 0.05:
            made = self.damaged(made)
        self.sent.append(made)
        return made

    def batch_of(self, producer_id: int) -> bytes:
        chance = self.chance
        count = chance.randrange(1, 6)
        time_ms = chance.choice([-1, 0, 1_000, chance.randrange(10_000)])
        if producer_id < 0:
            values = [chance.randbytes(chance.randrange(200)) for _ in range(count)]
            return batch(
                *values, timestamp_ms=time_ms, codec=chance.choice([Codec.NONE, Codec.NONE, Codec.GZIP])
            )
        sequence = self.sequences.get(producer_id, 0) + (chance.random() < 0.05)
        self.sequences[producer_id] = sequence + count
        return idempotent(sequence, count, producer_id=producer_id, timestamp_ms=time_ms)

    def damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)


def outcome(log: Log, data: bytes, epoch: int, now_ms: int) -> Appended | type[KafkaError]:
    try:
        return log.append(bytearray(data), leader_epoch=epoch, now_ms=now_ms)
    except KafkaError as error:
        return type(error)


def state_of(log: Log) -> tuple[object, ...]:
    end = log.log_end
    return (
        (
            end.position,
            end.next_offset,
            end.max_timestamp,
            end.max_timestamp_offset,
            end.hints,
        ),
        (end.offsets.count, end.times.count, end.roll_above_timestamp, end.roll_after_ms),
        [(one.base_offset, one.size, one.max_timestamp) for one in log.segments],
        [(one.producer_id, one.epoch, list(one.batches), one.last_timestamp_ms) for one in log.producers],
        log.producers.end_offset,
        log.leader_epochs.entries,
    )


def stored(directory: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted((directory / "topic-0").iterdir())}


@pytest.mark.parametrize("seed", range(25))
def test_both_paths_give_the_same_results_state_and_files(tmp_path: Path, seed: int) -> None:
    sender, epoch, taken = Sender(seed), 0, 0
    native = log_in(tmp_path / "native", DiskFiles(), **SETTINGS)
    general = general_only(log_in(tmp_path / "general", DiskFiles(), **SETTINGS))
    for turn in range(150):
        epoch += sender.chance.random() < 0.02
        data = sender.run()
        before = native.log_end_offset
        assert outcome(native, data, epoch, turn * 100) == outcome(general, data, epoch, turn * 100)
        assert state_of(native) == state_of(general)
        taken += native.log_end_offset > before
    native.close()
    general.close()

    assert taken > 50
    assert stored(tmp_path / "native") == stored(tmp_path / "general")


def test_plain_batches_take_the_fast_path(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    log.append(bytearray(batch(b"first")), leader_epoch=0, now_ms=0)  # begins the segment and the epoch
    log.append(bytearray(idempotent(0)), leader_epoch=0, now_ms=0)  # begins the producer

    several = bytearray(idempotent(1, 2) + idempotent(3))

    assert log.append_plain(bytearray(batch(b"a", b"b")), 0, 0) == 2
    assert log.append_plain(several, 0, 0) == 4
    assert log.append_plain(memoryview(bytearray(batch(b"zipped", codec=Codec.GZIP))), 0, 0) == 7
    assert log.log_end_offset == 8
    log.close()


@pytest.mark.parametrize("kind", [bytes, lambda data: memoryview(bytes(data))])
def test_read_only_batches_are_not_changed(tmp_path: Path, kind: type[bytes]) -> None:
    log = log_in(tmp_path, DiskFiles())
    log.append(batch(b"first"), leader_epoch=0, now_ms=0)
    data = kind(batch(b"second"))

    assert log.append_plain(data, 0, 0) == -1
    assert log.append(data, leader_epoch=0, now_ms=0).base_offset == 1
    assert bytes(data) == batch(b"second")
    log.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_after_max_ms": 1_000},
        {"cleanup_policy": ("compact",)},
        {"compression_type": "gzip"},
        {"flush_messages": 1},
        {"max_message_bytes": 10},
    ],
)
def test_topics_with_more_checks_take_the_general_path(tmp_path: Path, settings: dict[str, object]) -> None:
    log = log_in(tmp_path, MemoryFiles())
    log.append(batch(b"first", keys=[b"key"]), leader_epoch=0, now_ms=0)
    log.configure(LogConfig(**settings))  # type: ignore[arg-type]

    assert log.append_plain(bytearray(batch(b"second", keys=[b"key"])), 0, 0) == -1
    assert log.log_end_offset == 1


def test_the_write_of_a_tail_may_be_replaced(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    log.append(batch(b"first"), leader_epoch=0, now_ms=0)
    written: list[int] = []
    log.log_end.write = lambda data, position: written.append(position)

    assert log.append_plain(bytearray(batch(b"second")), 0, 0) == 1
    assert len(written) == 1
    log.abandon()


def test_a_failed_write_raises_and_leaves_nothing(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    log.append(batch(b"first"), leader_epoch=0, now_ms=0)
    size = log.log_end.position
    log.append_plain(bytearray(batch(b"second")), 0, 0)
    log.log_end.write = _full

    with pytest.raises(KafkaStorageError):
        log.append(bytearray(batch(b"third")), leader_epoch=0, now_ms=0)

    assert (log.log_end_offset, log.log_end.segment.file.size()) == (2, log.log_end.position)
    assert log.log_end.position > size


def _full(data: object, position: int) -> None:
    raise OSError(28, os.strerror(28))


def test_both_paths_refuse_a_sequence_gap_alike(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    log.append(bytearray(idempotent(0)), leader_epoch=0, now_ms=0)

    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(bytearray(idempotent(1) + idempotent(3)), leader_epoch=0, now_ms=0)

    assert log.log_end_offset == 1
    log.close()
