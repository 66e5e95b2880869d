"""The check of transactions finds what must not be: lost, torn, doubled, late and aborted records."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from ottla.protocol.records import BatchBuilder, ControlType, assign_offsets, end_transaction_marker
from ottla.protocol.topics import TopicPartition
from simulation.invariant_violated import InvariantViolated
from simulation.transaction_history import Attempt, Ending, Output, TransactionHistory, read_outputs

ONE, OTHER = TopicPartition("out", 0), TopicPartition("out", 1)
INPUT = [b"a", b"b", b"c"]


@dataclass
class Log:
    """A log of outputs, built batch by batch."""

    data: bytes = b""
    end: int = 0

    def wrote(self, attempt: Attempt, *offsets: int, partition: TopicPartition = ONE) -> None:
        builder = BatchBuilder(1 << 20)
        values = [Output(0, attempt.number, one, INPUT[one]).encode() for one in offsets]
        for value in values:
            builder.append(None, value, 0)
        attempt.sent.setdefault(partition, []).extend(values)
        self._append(
            builder.build(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), len(values)
        )

    def ended(self, ending: Ending) -> None:
        kind = ControlType.COMMIT if ending is Ending.COMMITTED else ControlType.ABORT
        marker = end_transaction_marker(
            kind, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
        )
        self._append(marker, 1)

    def _append(self, batch: bytes, size: int) -> None:
        placed = bytearray(batch)
        assign_offsets(placed, self.end, 0)
        self.data += bytes(placed)
        self.end += size


@dataclass
class Run:
    """The logs of both partitions and what clients saw."""

    one: Log = field(default_factory=Log)
    other: Log = field(default_factory=Log)
    history: TransactionHistory = field(default_factory=TransactionHistory)

    def begin(self, told: Ending | None = None) -> Attempt:
        attempt = self.history.begin(0)
        attempt.told = told
        return attempt

    def check(self, position: int) -> None:
        self.history.positions[0] = position
        logs = {ONE: self.one.data, OTHER: self.other.data}
        self.history.check({one: read_outputs(one, data) for one, data in logs.items()}, {0: INPUT})


def finds(what: str) -> pytest.RaisesExc[InvariantViolated]:
    return pytest.raises(InvariantViolated, match=re.escape(what))


def test_committed_and_aborted_transactions_pass() -> None:
    run = Run()
    first, second = run.begin(Ending.ABORTED), run.begin(Ending.COMMITTED)
    run.one.wrote(first, 0)
    run.one.ended(Ending.ABORTED)
    run.one.wrote(second, 0)
    run.other.wrote(second, 1, partition=OTHER)
    run.one.ended(Ending.COMMITTED)
    run.other.ended(Ending.COMMITTED)
    run.history.delivered[ONE] = {2: Output(0, 1, 0, b"a").encode()}

    run.check(2)


def test_a_transaction_without_a_marker_is_found() -> None:
    run = Run()
    run.one.wrote(run.begin(), 0)

    with finds("has no marker"):
        run.check(0)


def test_a_torn_transaction_is_found() -> None:
    run = Run()
    attempt = run.begin()
    run.one.wrote(attempt, 0)
    run.one.ended(Ending.COMMITTED)
    run.other.wrote(attempt, 1, partition=OTHER)
    run.other.ended(Ending.ABORTED)

    with finds("is committed in"):
        run.check(2)


def test_an_end_other_than_clients_were_told_is_found() -> None:
    run = Run()
    run.one.wrote(run.begin(Ending.COMMITTED), 0)
    run.one.ended(Ending.ABORTED)

    with finds("clients were told"):
        run.check(0)


def test_a_lost_record_of_a_committed_transaction_is_found() -> None:
    run = Run()
    attempt = run.begin(Ending.COMMITTED)
    run.one.wrote(attempt, 0)
    run.one.ended(Ending.COMMITTED)
    attempt.sent[OTHER] = [b"lost"]

    with finds("b'lost' of a committed transaction"):
        run.check(1)


def test_a_record_behind_the_marker_of_its_transaction_is_found() -> None:
    run = Run()
    first, second = run.begin(Ending.ABORTED), run.begin(Ending.COMMITTED)
    run.one.wrote(first, 0)
    run.one.wrote(second, 0)
    run.one.ended(Ending.COMMITTED)

    with finds("ends the transactions [0, 1]"):
        run.check(1)


def test_a_delivered_record_of_an_aborted_transaction_is_found() -> None:
    run = Run()
    attempt = run.begin(Ending.ABORTED)
    run.one.wrote(attempt, 0)
    run.one.ended(Ending.ABORTED)
    run.history.delivered[ONE] = {0: Output(0, 0, 0, b"a").encode()}

    with finds("was delivered at 0"):
        run.check(0)


@pytest.mark.parametrize(
    ("position", "said"),
    [(2, "lack or exceed [1], and have [] twice"), (0, "lack or exceed [0], and have [] twice")],
)
def test_outputs_that_do_not_fit_the_committed_offset_are_found(position: int, said: str) -> None:
    run = Run()
    run.one.wrote(run.begin(Ending.COMMITTED), 0)
    run.one.ended(Ending.COMMITTED)

    with finds(said):
        run.check(position)


def test_a_record_that_was_processed_twice_is_found() -> None:
    run = Run()
    for _ in range(2):
        run.one.wrote(run.begin(Ending.COMMITTED), 0)
        run.one.ended(Ending.COMMITTED)

    with finds("have [0] twice"):
        run.check(1)


def test_outputs_out_of_order_are_found() -> None:
    run = Run()
    run.one.wrote(run.begin(Ending.COMMITTED), 1, 0)
    run.one.ended(Ending.COMMITTED)

    with finds("not in order"):
        run.check(2)
