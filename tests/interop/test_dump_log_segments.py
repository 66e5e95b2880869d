"""Apache Kafka's own dump tool reads every kind of file that a log writes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.testing import append, batch, commit, idempotent, log_in
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.events import Producer, TransactionSnapshot, TransactionState
from ottla.broker.transactions.records import TransactionRecord, encode_record
from ottla.protocol.records import BatchBuilder, Codec, ControlType, end_transaction_marker
from ottla.protocol.topics import TopicPartition
from ottla.tools.log_cli import log as log_command
from peers.apache_kafka import run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

TOOL = "kafka.tools.DumpLogSegments"
WRITTEN_STATES = tuple(TransactionState)[:6]
"""Those that are written to a log."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """A log with several segments, all codecs, an idempotent producer and an aborted transaction."""
    log = log_in(tmp_path_factory.mktemp("data"), DiskFiles(), segment_bytes=10_000, index_interval_bytes=500)
    for number in range(200):
        append(log, b"value %d" % number * 5, keys=[b"key"], timestamp_ms=10_000 + number, leader_epoch=1)
    for codec in Codec:
        compressed = batch(*[b"compressed"] * 20, codec=codec, timestamp_ms=20_000)
        log.append(compressed, leader_epoch=2, now_ms=0)
    for sequence in range(0, 10, 2):
        log.append(idempotent(sequence, 2, transactional=True), leader_epoch=2, now_ms=0)
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=3, timestamp_ms=30_000
    )
    log.append(marker, leader_epoch=2, now_ms=0, origin=AppendOrigin.COORDINATOR)
    log.close()
    return log


def dumped(log: Log, pattern: str, *options: str) -> str:
    files = ",".join(str(path) for path in sorted(log.directory.glob(pattern)))
    assert files
    return run_tool(TOOL, *options, "--files", files)


def test_segments_are_read_record_by_record(log: Log) -> None:
    printed = dumped(log, "*.log", "--deep-iteration", "--print-data-log")

    assert len(log.segments) > 2
    assert printed.count("payload: value ") == 200
    assert printed.count("payload: compressed") == 20 * len(Codec)
    assert printed.count("endTxnMarker: ABORT") == 1
    assert "isvalid: false" not in printed
    offsets = [int(one) for one in re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE)]
    assert offsets == list(range(log.log_end_offset))


def test_offset_indexes_pass_the_sanity_check_and_agree_with_their_segments(log: Log) -> None:
    assert "passed sanity check" in dumped(log, "*.index", "--index-sanity-check")
    printed = dumped(log, "*.index")

    assert printed.count("offset: ") > 10
    assert "Mismatches" not in printed
    assert "Non-consecutive" not in printed


def test_time_indexes_agree_with_their_segments(log: Log) -> None:
    printed = dumped(log, "*.timeindex")

    assert printed.count("timestamp: ") > 10
    for complaint in ("Found timestamp mismatch", "Found out of order timestamp", "mismatch"):
        assert complaint not in printed


def test_the_aborted_transaction_and_the_producers_are_read(log: Log) -> None:
    assert "producerId: 7" in dumped(log, "*.txnindex")
    newest = max(log.directory.glob("*.snapshot"))
    printed = run_tool(TOOL, "--files", str(newest))

    assert "producerId: 7 producerEpoch: 0" in printed
    assert "coordinatorEpoch: 3" in printed
    assert f"lastOffset={log.log_end_offset - 2}" in printed or "lastSequence: 9" in printed


def test_an_unclean_log_is_made_readable_again(log: Log, tmp_path: Path) -> None:
    torn = log_in(tmp_path, DiskFiles(), segment_bytes=10_000, index_interval_bytes=500)
    for number in range(100):
        append(torn, b"value %d" % number * 5, timestamp_ms=10_000 + number)
    torn.log_end.segment.file.pwrite(bytes(5_000), torn.log_end.segment.size)
    recovered = log_in(tmp_path, DiskFiles(), clean=False, segment_bytes=10_000, index_interval_bytes=500)
    recovered.close()

    printed = dumped(recovered, "*.log", "--deep-iteration", "--print-data-log")
    assert printed.count("payload: value ") == 100
    assert "Mismatches" not in dumped(recovered, "*.index")
    assert "mismatch" not in dumped(recovered, "*.timeindex")


# ---- compacted logs


def random_batch(chance: Random, sequence: int) -> bytes:
    builder = BatchBuilder(codec=chance.choice(list(Codec)))
    for number in range(5):
        value = None if chance.random() < 0.2 else b"value %d.%d" % (sequence, number)
        builder.append(b"key %d" % chance.randrange(30), value, 10_000 + sequence)
    return builder.build(producer_id=sequence % 3, producer_epoch=0, base_sequence=sequence // 3 * 5)


def a_transaction(log: Log, kind: ControlType, producer_id: int) -> None:
    data = idempotent(0, 2, producer_id=producer_id, transactional=True, keys=[b"in one", b"in two"])
    log.append(data, leader_epoch=0, now_ms=0)
    marker = end_transaction_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=3, timestamp_ms=30_000
    )
    log.append(marker, leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)


async def cleaned(directory: Path) -> Log:
    """A log that was compacted several times, with transactions, tombstones and several producers."""
    config = BrokerConfig(
        log_dirs=(str(directory),),
        log_segment_bytes=5_000,
        log_index_interval_bytes=500,
        log_cleanup_policy=("compact",),
        log_cleaner_min_cleanable_ratio=0.0,
    )
    logs, chance = LogRegistry(config, Environment()), Random(3)
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(config))
    log = logs.create(TopicPartition("compacted", 0))
    a_transaction(log, ControlType.ABORT, 11)
    a_transaction(log, ControlType.COMMIT, 12)
    for sequence in range(300):
        log.append(random_batch(chance, sequence), leader_epoch=sequence // 100, now_ms=0)
        commit(log)
        if sequence % 100 == 99:
            log.flush()
            assert await Cleaner(logs).clean_next(50_000) is not None
    await logs.close()
    await logs.unlock()
    return log


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Log:
    return asyncio.run(cleaned(tmp_path_factory.mktemp("compacted")))


def ours(log: Log, *options: str) -> list[dict[str, object]]:
    files = [str(path) for path in sorted(log.directory.glob("*.log"))]
    result = CliRunner().invoke(log_command, ["dump", "--json", "--verify", *options, *files])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_apache_kafka_and_ottla_read_the_same_batches_of_a_compacted_log(compacted: Log) -> None:
    printed = dumped(compacted, "*.log")

    theirs = re.findall(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) .*? producerId: (-?\d+) "
        r".*? position: (\d+) .*? size: (\d+) .*? compresscodec: (\w+) crc: (\d+) isvalid: (\w+)",
        printed,
    )
    mine = [
        (
            str(row["base_offset"]),
            str(row["last_offset"]),
            str(row["count"]),
            str(row["sequence"]),
            str(row["producer"]),
            str(row["position"]),
            str(row["size"]),
            str(row["codec"]),
            str(int(str(row["crc"]), 16)),
            "true",
        )
        for row in ours(compacted)
    ]
    assert len(mine) > 30
    assert theirs == mine
    assert printed.count("deleteHorizonMs: OptionalLong[") > 1
    assert any(row[2] == "0" for row in mine), "a batch without records keeps the state of a producer"


def test_apache_kafka_and_ottla_read_the_same_records_of_a_compacted_log(compacted: Log) -> None:
    printed = dumped(compacted, "*.log", "--deep-iteration", "--print-data-log")

    theirs = re.findall(r"^\| offset: (\d+) .*?(?:CreateTime|LogAppendTime): (\d+)", printed, re.MULTILINE)
    keys = re.findall(r" key: (key \d+|in \w+)", printed)
    mine = [row for row in ours(compacted, "--records") if "offset" in row]
    assert [(str(row["offset"]), str(row["timestamp"])) for row in mine] == theirs
    assert [row["key"] for row in mine if "marker" not in row] == keys
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", printed)
    assert ("COMMIT", "3") in markers
    assert [(row["marker"], str(row["coordinator_epoch"])) for row in mine if "marker" in row] == markers


def test_apache_kafka_reads_the_indexes_of_a_compacted_log(compacted: Log) -> None:
    assert "passed sanity check" in dumped(compacted, "*.index", "--index-sanity-check")
    assert "Mismatches" not in dumped(compacted, "*.index")
    for complaint in ("Found timestamp mismatch", "Found out of order timestamp", "mismatch"):
        assert complaint not in dumped(compacted, "*.timeindex")


def test_transactions_of_our_coordinator_are_decoded(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    producer, partitions = Producer(9, 2), frozenset({TopicPartition("t", 3), TopicPartition("u", 1)})
    for number, state in enumerate(WRITTEN_STATES):
        snapshot = TransactionSnapshot(
            producer=producer,
            timeout_ms=60_000,
            state=state,
            partitions=partitions if "Prepare" in state.value or state.value == "Ongoing" else frozenset(),
            started_ms=5,
            updated_ms=6,
        )
        records = [encode_record(TransactionRecord(f"id-{number}", snapshot))]
        log.append(build_batch(records, 1), leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    gone = [encode_record(TransactionRecord("gone", None))]
    log.append(build_batch(gone, 1), leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    log.close()

    text = dumped(log, "*.log", "--transaction-log-decoder", "--print-data-log")

    for number, state in enumerate(WRITTEN_STATES):
        (line,) = [one for one in text.splitlines() if f"id-{number}" in one]
        assert f"state={state.value}" in line.replace(" ", "")
        assert "producerId:9,producerEpoch:2" in line
        if "Prepare" in state.value:
            assert "t-3" in line
            assert "u-1" in line
    assert "gone" in text
