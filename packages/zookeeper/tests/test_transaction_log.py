"""Recovery from the files that any crash leaves gives a prefix of the written transactions."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ottla.zookeeper.embedded.data_tree import Transaction, Tree
from ottla.zookeeper.embedded.transaction_log import (
    DamagedJournal,
    DirectoryInUse,
    Fsync,
    TransactionLog,
    decode_snapshot,
    encode_snapshot,
)
from ottla.zookeeper.errors import ZooKeeperError
from ottla.zookeeper.session import NULL, Acl, Create, Delete, Operation, SetData

OWN_ACL = (Acl(31, "digest", "u:x"),)
SESSIONS = (5, 9)
PATHS = st.sampled_from(["/a", "/b", "/a/c", "/a/d", "/b/c", "/a/c/d"])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Create,
        PATHS,
        st.binary(max_size=40),
        st.booleans(),
        st.booleans(),
        st.sampled_from([None, OWN_ACL]),
    ),
    st.builds(SetData, PATHS, st.binary(max_size=40), st.just(-1)),
    st.builds(Delete, PATHS, st.just(-1)),
)
STEPS = st.lists(
    st.one_of(st.lists(OPERATIONS, min_size=1, max_size=3), st.sampled_from([("close", 5), ("acl", "/a")])),
    max_size=25,
)


def transactions(tree: Tree, steps: list[object]) -> Iterator[Transaction]:
    """Plan and apply what can be done of `steps`; give each transaction."""
    for session_id in SESSIONS:
        opening = tree.plan_session(session_id, b"password", 4000, 1)
        tree.apply(opening)
        yield opening
    for time_ms, step in enumerate(steps):
        with contextlib.suppress(ZooKeeperError):
            transaction = plan(tree, step, time_ms)
            tree.apply(transaction)
            yield transaction


def plan(tree: Tree, step: object, time_ms: int) -> Transaction:
    match step:
        case ("close", int(session_id)):
            return tree.plan_close(session_id, time_ms)
        case ("acl", str(path)):
            return tree.plan_acl(path, OWN_ACL, -1, time_ms)
        case list(operations):
            return tree.plan(operations, SESSIONS[time_ms % 2], time_ms)
    raise AssertionError(step)


def recovered(directory: Path) -> Tree:
    with TransactionLog(directory) as journal:
        return journal.recover()


def same(one: Tree, other: Tree) -> bool:
    return (one.zxid, one.nodes, one.sessions) == (other.zxid, other.nodes, other.sessions)


def common_prefix_bytes(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.floats(0, 1), st.sampled_from([b"", b"\0" * 600, b"garbage" * 9]), st.booleans())
@example([[Create("/a", b"")]], 0.9375, b"\0" * 600, False)
def test_a_cut_journal_recovers_to_a_prefix(
    steps: list[object], cut: float, tail: bytes, snapshot_first: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory, tree = Path(folder), Tree()
        ends: list[tuple[int, bytes]] = []
        with TransactionLog(directory, fsync=Fsync.NEVER) as journal:
            journal.recover()
            path = directory / "journal"
            for number, transaction in enumerate(transactions(tree, steps)):
                journal.append(transaction)
                journal.write(journal.take())
                if snapshot_first and number == 3:
                    journal.compact(tree.zxid, encode_snapshot(tree))
                    ends.clear()
                ends.append((path.stat().st_size, encode_snapshot(tree)))
        kept_bytes = ends[0][0] + round(cut * (ends[-1][0] - ends[0][0]))
        whole = path.read_bytes()
        cut_journal = whole[:kept_bytes] + tail
        path.write_bytes(cut_journal)

        # The tail may restore what was cut: a cut that removes only zeros, and a tail of zeros.
        intact_bytes = common_prefix_bytes(whole, cut_journal)
        expected = [snapshot for size, snapshot in ends if size <= intact_bytes][-1]

        for _ in range(2):  # and recovering again changes nothing
            assert same(recovered(directory), decode_snapshot(expected))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_a_flipped_byte_never_gives_a_state_that_never_was(
    steps: list[object], where: float, flip: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory, tree = Path(folder), Tree()
        states = [encode_snapshot(tree)]
        with TransactionLog(directory, fsync=Fsync.NEVER) as journal:
            journal.recover()
            for transaction in transactions(tree, steps):
                journal.append(transaction)
                journal.write(journal.take())
                states.append(encode_snapshot(tree))
        path = directory / "journal"
        data = bytearray(path.read_bytes())
        data[int(where * len(data))] ^= flip
        path.write_bytes(data)

        try:
            tree = recovered(directory)
        except DamagedJournal:
            return

        assert any(same(tree, decode_snapshot(state)) for state in states)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_a_snapshot_is_the_tree(steps: list[object]) -> None:
    tree = Tree()
    for _ in transactions(tree, steps):
        pass

    assert same(decode_snapshot(encode_snapshot(tree)), tree)


def written(directory: Path, count: int) -> Tree:
    tree = Tree()
    with TransactionLog(directory) as journal:
        journal.recover()
        for transaction in transactions(tree, [[Create(f"/n{number}")] for number in range(count)]):
            journal.append(transaction)
        journal.write(journal.take())
    return tree


def test_a_crash_between_the_two_renames_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    tree = written(tmp_path, 5)
    old_journal = (tmp_path / "journal").read_bytes()
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        journal.compact(tree.zxid, encode_snapshot(tree))
    assert (tmp_path / "journal").stat().st_size < len(old_journal)

    (tmp_path / "journal").write_bytes(old_journal)

    assert same(recovered(tmp_path), tree)


def test_a_damaged_snapshot_stops_the_start(tmp_path: Path) -> None:
    tree = written(tmp_path, 2)
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        journal.compact(tree.zxid, encode_snapshot(tree)[:-1])

    with pytest.raises(DamagedJournal):
        recovered(tmp_path)


def test_a_lost_snapshot_stops_the_start(tmp_path: Path) -> None:
    tree = written(tmp_path, 2)
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        journal.compact(tree.zxid, encode_snapshot(tree))
    (tmp_path / "snapshot").unlink()

    with pytest.raises(DamagedJournal, match="starts after"):
        recovered(tmp_path)


@pytest.mark.parametrize("bit", [0, 3, 7])
@pytest.mark.parametrize("place", [0, 1, 4, 9, 12, 30])
def test_a_damaged_bit_with_valid_changes_behind_it_stops_the_start(
    tmp_path: Path, place: int, bit: int
) -> None:
    tree, ends = Tree(), []
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        for transaction in transactions(tree, [[Create(f"/n{number}")] for number in range(20)]):
            ends.append((tmp_path / "journal").stat().st_size)
            journal.append(transaction)
            journal.write(journal.take())
    data = bytearray((tmp_path / "journal").read_bytes())
    data[ends[10] + place] ^= 1 << bit
    (tmp_path / "journal").write_bytes(data)

    with pytest.raises(DamagedJournal, match=f"its bytes {ends[10]} to {ends[11]} are damaged") as caught:
        recovered(tmp_path)

    assert "\n" not in str(caught.value)
    assert "ottla zookeeper rebuild" in str(caught.value)
    assert (tmp_path / "journal").read_bytes() == data


def test_transactions_that_were_written_together_are_torn_together(tmp_path: Path) -> None:
    tree = written(tmp_path, 1)
    whole = (tmp_path / "journal").stat().st_size
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        for number in range(5):
            transaction = tree.plan([Create(f"/later{number}")], SESSIONS[0], 1)
            tree.apply(transaction)
            journal.append(transaction)
        journal.write(journal.take())
    # The first half did not reach the disk, the second half did: nobody was told of any of them.
    path = tmp_path / "journal"
    data = path.read_bytes()
    middle = (whole + len(data)) // 2
    path.write_bytes(data[:whole] + bytes(middle - whole) + data[middle:])

    assert recovered(tmp_path).nodes.keys() & {f"/later{number}" for number in range(5)} == set()


def test_null_data_stays_null(tmp_path: Path) -> None:
    tree = Tree()
    with TransactionLog(tmp_path) as journal:
        journal.recover()
        for transaction in transactions(tree, [[Create("/null", NULL), Create("/empty", b"")]]):
            journal.append(transaction)
        journal.write(journal.take())
        for again in (journal.read_back(), decode_snapshot(encode_snapshot(tree))):
            assert again.nodes["/null"].data is NULL
            assert again.nodes["/empty"].data is not NULL


def test_torn_bytes_are_kept_in_a_file_aside(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with (tmp_path / "journal").open("ab") as file:
        file.write(b"torn")

    recovered(tmp_path)

    assert (tmp_path / "journal.torn").read_bytes() == b"torn"


def test_a_full_disk_does_not_keep_a_torn_journal_from_starting(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with (tmp_path / "journal").open("ab") as file:
        file.write(b"torn")
    (tmp_path / "journal.torn").symlink_to("/dev/full")

    with TransactionLog(tmp_path) as log:
        log.recover()

    assert not (tmp_path / "journal").read_bytes().endswith(b"torn")


def test_a_directory_has_one_coordinator(tmp_path: Path) -> None:
    with TransactionLog(tmp_path), pytest.raises(DirectoryInUse), TransactionLog(tmp_path):
        pass
    shutil.rmtree(tmp_path)


def test_the_files_of_a_coordinator_are_for_its_own_account(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with TransactionLog(tmp_path / "coordinator") as log:
            log.recover()
    finally:
        os.umask(before)

    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "coordinator").iterdir()} == {0o600}
    assert (tmp_path / "coordinator").stat().st_mode & 0o777 == 0o700
