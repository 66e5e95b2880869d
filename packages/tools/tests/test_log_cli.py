from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import AppendOrigin
from ottla.broker.log.testing import append, idempotent, log_in
from ottla.protocol.records import ControlType, end_transaction_marker
from ottla.tools.log_cli import log as command
from peers.crafted_batches import FIRST_OFFSET, CraftedBatch, crafted_batches


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    log = log_in(tmp_path, DiskFiles(), index_interval_bytes=100)
    for number in range(20):
        append(log, b"value %d" % number, timestamp_ms=1_000 + number, keys=[b"key"])
    log.append(idempotent(0, transactional=True), leader_epoch=2, now_ms=0)
    marker = end_transaction_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5_000
    )
    log.append(marker, leader_epoch=2, now_ms=0, origin=AppendOrigin.COORDINATOR)
    log.close()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\ntopic 0 22\n")
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=c\n")
    return log.directory


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["dump", *map(str, arguments)])


def test_a_whole_data_directory_is_dumped_and_found_in_order(partition: Path) -> None:
    result = run("--verify", "--records", partition.parent)

    assert result.exit_code == 0, result.output
    for told in (
        "value 19",
        "abort",
        "recovery-point-offset-checkpoint",
        "transaction",
        ".timeindex",
        "broker_id",
    ):
        assert told in result.output


def test_json_has_one_object_for_every_row(partition: Path) -> None:
    result = run("--json", *sorted(partition.iterdir()))

    rows = [json.loads(line) for line in result.output.splitlines()]
    kinds = {row["kind"] for row in rows}
    assert {"log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint"} <= kinds
    assert [row["base_offset"] for row in rows if row["kind"] == "log"] == list(range(22))
    assert [row["first_offset"] for row in rows if row["kind"] == "txnindex"] == [20]
    assert [row["epoch"] for row in rows if row["kind"] == "leader-epoch-checkpoint"] == [0, 2]


def test_a_transaction_marker_is_decoded(partition: Path) -> None:
    result = run("--records", "--json", next(partition.glob("*.log")))

    marker = json.loads(result.output.splitlines()[-1])
    assert (marker["offset"], marker["marker"], marker["coordinator_epoch"]) == (21, "ABORT", 0)
    assert marker.keys().isdisjoint({"key", "value"})


def test_control_characters_of_records_are_escaped_in_tables(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    append(log, b"two\nlines\x1b[31m", timestamp_ms=1_000, keys=[b"\0key"])
    log.close()
    segment = next(log.directory.glob("*.log"))

    table = run("--records", segment).output
    row = json.loads(run("--records", "--json", segment).output.splitlines()[-1])

    assert r"\x00key" in table
    assert r"two\nlines\x1b[31m" in table
    assert (row["key"], row["value"]) == ("\0key", "two\nlines\x1b[31m")


@pytest.mark.parametrize("options", [[], ["--verify"], ["--json"]])
def test_a_directory_without_files_of_a_log_is_refused_in_one_line(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "notes.md").write_text("x")

    result = run(*options, tmp_path)

    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"Error: {tmp_path} has no file that can be shown: it is neither a data directory nor a partition's"
    ]


def test_faults_are_shown_and_end_with_status_one(partition: Path) -> None:
    path = next(partition.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)

    assert run(path).exit_code == 0
    result = run("--verify", path)
    assert result.exit_code == 1
    assert "checksum" in result.output


def test_help_has_examples() -> None:
    assert "ottla log dump --records" in run("--help").output


def test_unused_room_of_an_index_is_no_fault(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())  # open, as a running broker has it: its indexes are full of zeros

    result = run("--verify", log.directory)
    log.close()

    assert result.exit_code == 0, result.output
    assert "number" not in result.output


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "broker.pid"
    other.write_text("1")

    result = run(other)

    assert result.exit_code == 2
    assert "broker.pid is not a file of a data directory" in result.output


@pytest.mark.parametrize("options", [["--verify"], ["--records"], ["--verify", "--records"]])
def test_batches_that_cannot_be_read_are_named_and_the_others_are_shown(
    tmp_path: Path, options: list[str]
) -> None:
    path = tmp_path / "00000000000000000000.log"
    for crafted in crafted_batches():
        path.write_bytes(crafted.in_the_middle())

        result = run(*options, "--json", path)

        rows = [json.loads(line) for line in result.output.splitlines() if line[0] == "{"]
        batches = [row for row in rows if "size" in row]
        assert [row["base_offset"] for row in batches] == [0, FIRST_OFFSET, crafted.offsets_behind[0]]
        faults = [row["fault"] for row in rows if "fault" in row]
        assert len(faults) == (0 if is_readable_by_all(crafted) else 1), crafted.name
        assert all(f"offset {FIRST_OFFSET} cannot be read: " in fault for fault in faults), crafted.name
        assert result.exit_code == (1 if faults else 0)
        if "--records" in options:
            assert [row["offset"] for row in rows[-2:]] == list(crafted.offsets_behind), crafted.name


def is_readable_by_all(crafted: CraftedBatch) -> bool:
    """Whether readers of every language get the records: only Java's pass over bytes behind a frame."""
    return crafted.is_legal and "behind-frame" not in crafted.kind
