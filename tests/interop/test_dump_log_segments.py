"""Apache Kafka's own dump tool reads every kind of file that a log writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.broker.log.files import DiskFiles
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.testing import append, batch, idempotent, log_in
from ottla.protocol.records import Codec, ControlType, end_transaction_marker
from peers.apache_kafka import run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

TOOL = "kafka.tools.DumpLogSegments"


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
