"""The checks of cluster_chaos.py: each finds what it is for."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_checks import (
    Acknowledgements,
    acknowledgements,
    denied,
    differing,
    disordered,
    doubled,
    longest_gaps_ms,
    lost,
    misread,
    out_of_sequence,
    unexplained,
    unhandled,
    unread,
    what_is_unread,
)
from cluster_faults import CUTS, PROFILES, plan

LOG = {0: {0: ("w", 0), 1: ("w", 2), 2: ("v", 0)}, 1: {0: ("w", 1)}}


def batch(offset: int, producer_id: int, epoch: int, sequence: int, records: int) -> bytes:
    header = bytearray(61)
    struct.pack_into(">qi", header, 0, offset, 49)
    struct.pack_into(">qhii", header, 43, producer_id, epoch, sequence, records)
    return bytes(header)


def segment(folder: Path, *batches: bytes) -> Path:
    directory = folder / "t-0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches))
    return folder


def journal(folder: Path, *lines: str) -> Path:
    file = folder / "reader.journal"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_an_acknowledged_record_that_is_not_at_its_offset_is_lost() -> None:
    writer = Acknowledgements("w", places={(0, 0, 0), (0, 1, 2), (1, 0, 1)})
    assert lost(LOG, writer) == []

    writer.places.add((1, 1, 3))

    assert "w LOST record 3: acknowledged at 1/1" in lost(LOG, writer)[0]


def test_a_record_acknowledged_without_an_offset_must_be_somewhere_in_its_partition() -> None:
    assert lost(LOG, Acknowledgements("w", somewhere={(0, 2)})) == []
    assert lost(LOG, Acknowledgements("w", somewhere={(1, 2)}))


def test_another_record_at_an_acknowledged_offset_is_a_loss() -> None:
    assert lost(LOG, Acknowledgements("w", places={(0, 2, 4)}))


def test_two_records_acknowledged_at_one_offset_are_a_loss_of_one(tmp_path: Path) -> None:
    writer = acknowledgements("w", journal(tmp_path, "100 0 1 9", "200 0 1 2", "end 0"))

    assert "w LOST record 9" in lost(LOG, writer)[0]


def test_order_counts_within_a_partition_and_without_repetitions() -> None:
    assert disordered(LOG, "w") == []
    assert disordered({0: {0: ("w", 0), 1: ("w", 1), 2: ("w", 0)}}, "w") == []
    assert disordered({0: {0: ("w", 1), 1: ("w", 0)}}, "w")


def test_repeated_records_are_counted() -> None:
    assert doubled({0: {0: ("w", 0), 1: ("w", 1), 2: ("w", 0), 3: ("v", 1)}}, "w") == 1


def test_sequences_of_a_producer_epoch_have_no_gap_and_no_repetition(tmp_path: Path) -> None:
    good = (batch(0, 7, 0, 0, 3), batch(3, 7, 0, 3, 1), batch(4, 7, 1, 0, 1), batch(5, -1, -1, -1, 1))
    assert out_of_sequence(segment(tmp_path / "good", *good), "t", 1) == []

    twice = segment(tmp_path / "twice", batch(0, 7, 0, 0, 3), batch(3, 7, 0, 0, 3))
    gap = segment(tmp_path / "gap", batch(0, 7, 0, 0, 3), batch(3, 7, 0, 4, 1))

    assert "sequence 0 of producer (7, 0) at offset 3, after 2" in out_of_sequence(twice, "t", 1)[0]
    assert out_of_sequence(gap, "t", 1)


def test_a_follower_must_be_given_every_record_in_order(tmp_path: Path) -> None:
    assert misread(LOG, journal(tmp_path, "0 0 w 0", "1 0 w 1", "0 1 w 2", "end"), follows=True) == []
    assert misread(LOG, journal(tmp_path, "0 1 w 2"), follows=True)
    assert misread(LOG, journal(tmp_path, "0 0 w 0", "0 0 w 0"), follows=False) == []


def test_a_record_that_was_read_must_stay(tmp_path: Path) -> None:
    assert misread(LOG, journal(tmp_path, "0 1 w 9"), follows=False)
    assert misread(LOG, journal(tmp_path, "0 3 w 9"), follows=False)


def test_a_group_must_be_given_every_record(tmp_path: Path) -> None:
    every = journal(tmp_path, "0 0 w 0", "0 1 w 2", "0 2 v 0", "1 0 w 1")
    assert unhandled(LOG, [every]) == []
    assert "SKIPPED 1" in unhandled(LOG, [journal(tmp_path, "0 0 w 0", "0 1 w 2", "0 2 v 0")])[0]


def test_what_a_reader_was_given_twice_does_not_stand_for_what_it_lacks(tmp_path: Path) -> None:
    reader = journal(tmp_path, "0 0 w 0", "0 0 w 0", "0 1 w 2", "error the leader is gone", "0 2 v 0")
    partition = {"partition": 1, "fetch_state": "validate-epoch-wait", "leader": 3}
    known = {
        "brokers": {"a:1/3": {"nodeid": 3, "state": "DOWN"}},
        "topics": {"t": {"partitions": {"1": partition}}},
    }
    reader.with_suffix(".statistics").write_text(json.dumps(known))

    assert unread(LOG, [reader]) == {(1, 0)}
    said = what_is_unread(LOG, [reader])
    assert said.startswith("1 records, first [(1, 0)]; told ['error the leader is gone']; ")
    assert "brokers {3: 'DOWN'}" in said
    assert "'fetch_state': 'validate-epoch-wait', 'leader': 3" in said


def test_replicas_with_other_bytes_differ(tmp_path: Path) -> None:
    one = segment(tmp_path / "one", batch(0, 7, 0, 0, 3))
    same = segment(tmp_path / "same", batch(0, 7, 0, 0, 3))
    other = segment(tmp_path / "other", batch(0, 8, 0, 0, 3))
    longer = segment(tmp_path / "longer", batch(0, 7, 0, 0, 3), batch(3, 7, 0, 3, 1))

    assert differing({"one": one, "same": same}, "t", 1) == []
    assert "one and other at byte 50" in differing({"one": one, "other": other}, "t", 1)[0]
    assert "one is shorter" in differing({"one": one, "longer": longer}, "t", 1)[0]


def test_a_journal_has_acknowledgements_failures_and_an_end(tmp_path: Path) -> None:
    found = acknowledgements("w", journal(tmp_path, "100 0 5 6", "120 0 -1 7", "failed Fatal", "end 0"))

    assert found.places == {(0, 5, 6)}
    assert found.somewhere == {(0, 7)}
    assert found.times_ms == {0: [100, 120]}
    assert found.wrong == ["w: failed Fatal"]
    assert found.ended


def test_refusals_count_unless_a_deposed_leader_explains_them(tmp_path: Path) -> None:
    lines = (
        "refused 5000 OutOfOrderSequenceNumberError('producer 1 sent sequence 70, 3 is next')",
        "refused 8000 RequestTimedOutError('in flight')",
    )
    writer = acknowledgements("w", journal(tmp_path, *lines, "end 0"))

    assert [at for at, _ in writer.refused] == [5000, 8000]
    assert unexplained(writer, [(1_000, 7_000)]) == []
    assert unexplained(writer, [(1_000, 5_100)]) == []
    assert unexplained(writer, [(4_000, 5_100), (5_200, 6_000)]) == []
    assert unexplained(writer, [(4_900, 5_100)], under_way_ms=100) == [f"w: {lines[1]}"]
    assert unexplained(writer, [(1_000, 4_900), (7_900, 8_100)]) == [f"w: {line}" for line in lines]


def test_a_fatal_error_of_a_client_counts_unless_its_leader_explains_it(tmp_path: Path) -> None:
    fatal = "refused 5000 KafkaError{FATAL,code=OUT_OF_ORDER_SEQUENCE_NUMBER,val=45}"
    purged = "refused 5010 KafkaError{code=_PURGE_QUEUE,val=-152}"
    writer = acknowledgements("w", journal(tmp_path, fatal, purged, "anew 5100", "100 0 0 0", "end 0"))

    assert (writer.anew, writer.wrong, writer.ended) == (1, [], True)
    assert unexplained(writer, [(4_000, 64_000)]) == []
    assert unexplained(writer, []) == [f"w: {fatal}", f"w: {purged}"]


def test_only_an_apache_broker_that_has_just_started_may_say_that_a_topic_does_not_exist(
    tmp_path: Path,
) -> None:
    line = "unknown 5000 KafkaError{code=_UNKNOWN_TOPIC}"
    writer = acknowledgements("w", journal(tmp_path, "100 0 0 0", line, "end 0"))

    assert writer.wrong == []
    assert writer.ended
    assert denied(writer, [2_000]) == denied(writer, [5_050]) == []
    assert denied(writer, [4_000], within_ms=500) == [f"w: {line}"]
    assert denied(writer, [6_500]) == [f"w: {line}"]
    assert denied(writer, []) == [f"w: {line}"]


def test_gaps_reach_from_the_beginning_to_the_end_of_a_window() -> None:
    writer = Acknowledgements("w", times_ms={0: [50, 100, 400], 1: [390]})

    assert longest_gaps_ms([writer], 90, 500) == {0: 300, 1: 300}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_equal_seeds_give_equal_plans(profile: str) -> None:
    first = plan(profile, 50, 7, session_s=6, can_cut=True)

    assert first == plan(profile, 50, 7, session_s=6, can_cut=True)
    assert first != plan(profile, 50, 8, session_s=6, can_cut=True)
    assert {fault.kind for fault in first} <= set(PROFILES[profile])


def test_nothing_is_cut_where_nothing_can_be() -> None:
    faults = plan("mixed", 300, 1, session_s=6, can_cut=False)

    assert not {fault.kind for fault in faults} & set(CUTS)


def test_each_kind_of_broker_has_the_controller_in_turn() -> None:
    controllers = ["apache", "ottla"]
    plain = plan("kills", 50, 7, session_s=6, can_cut=True)
    mixed = plan("kills", 50, 7, session_s=6, can_cut=True, controllers=controllers)

    assert {fault.controller for fault in plain} == {""}
    assert [replace(fault, controller="") for fault in mixed] == plain
    assert [fault.controller for fault in mixed[:10]] == ["apache"] * 5 + ["ottla"] * 5
    assert Counter(fault.controller for fault in mixed) == {"apache": 25, "ottla": 25}

    two = plan("kills", 2, 7, session_s=6, can_cut=True, controllers=controllers)
    assert [fault.controller for fault in two] == controllers
