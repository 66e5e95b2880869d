"""A read says where its batches end, so that only the transactions aborted among them are told."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.testing import append, commit, idempotent, log_in
from ottla.protocol.records import ControlType, end_transaction_marker, read_header, split_batches


def filled(directory: Path, chance: Random, *, on_disk: bool) -> Log:
    """A log of several segments with transactions of three producers, some of them aborted."""
    files = DiskFiles() if on_disk else None
    log = log_in(
        directory, files, segment_bytes=chance.choice([600, 2000, 1 << 20]), index_interval_bytes=100
    )
    sequences, opened = dict.fromkeys((1, 2, 3), 0), set[int]()
    for _ in range(chance.randrange(10, 120)):
        producer = chance.choice((0, 1, 2, 3))
        if not producer:
            append(log, *[b"v" * chance.randrange(80)] * chance.randrange(1, 4))
        elif producer in opened and chance.random() < 0.5:
            kind = chance.choice(list(ControlType))
            marker = end_transaction_marker(
                kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1_000
            )
            log.append(marker, leader_epoch=0, now_ms=1_000, origin=AppendOrigin.COORDINATOR)
            opened.discard(producer)
        else:
            data = idempotent(sequences[producer], producer_id=producer, epoch=0, transactional=True)
            log.append(data, leader_epoch=0, now_ms=1_000)
            sequences[producer] += 1
            opened.add(producer)
        commit(log)
    return log


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_reads_tell_the_transactions_that_were_aborted_among_their_batches(
    tmp_path: Path, seed: int, on_disk: bool
) -> None:
    chance = Random(seed)
    log = filled(tmp_path, chance, on_disk=on_disk)
    everything = log.aborted_transactions(0, log.log_end_offset)
    stable = log.last_stable_offset
    for _ in range(200):
        start, limit = chance.randrange(stable + 1), chance.choice([0, 1, 100, 300, 1 << 20])
        records = log.read(start, limit, up_to=stable)
        if not records.length:
            continue

        told = log.aborted_transactions(start, records.end_offset)

        last = read_header(list(split_batches(records.read()))[-1]).last_offset
        assert last < records.end_offset <= stable
        assert told == [one for one in everything if one.last_offset >= start and one.first_offset <= last]
        if log.log_end.base_offset <= start:
            now = log.log_end.read_now(start, limit, stable)
            assert now is None or now.end_offset == records.end_offset
    log.close()
