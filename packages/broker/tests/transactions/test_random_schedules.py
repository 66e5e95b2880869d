import random

import pytest

from ottla.broker.transactions.driver_testing import A, B, TransactionDriver
from ottla.broker.transactions.events import (
    NO_PRODUCER,
    PREPARED,
    CheckTimeout,
    MarkersWritten,
    Producer,
    TransactionState,
)
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


class Schedule:
    """Requests, failed writes that are in the log or not, and lost coordinators, in random order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.driver = TransactionDriver()
        self.driver.hold = True
        self.given: list[Producer] = []
        self.waiting: dict[int, str] = {}
        self.lacking: set[TopicPartition] = set()
        self.ends: dict[tuple[int, int], set[bool]] = {}
        """Producer id, start -> results (commit or abort) in markers and responses of the transaction."""

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.now_ms += self.chance.choice([1, 10, 30_000])
            self._step()
            self._take_answers()
            self._take_markers()
            if self.driver.state in COMPLETE:
                assert not self.lacking, "completed without a marker"

    def _step(self) -> None:
        driver, chance = self.driver, self.chance
        producer = chance.choice(self.given[-3:]) if self.given else Producer(5, 5)
        match chance.randrange(10):
            case 0:
                self.waiting[driver.initialize()] = "initialize"
            case 1 | 2:
                self._wait(driver.add(producer, chance.choice([A, B])), "add", producer)
            case 3:
                commit = chance.random() < 0.7
                token = driver.end(producer, commit=commit)
                self._wait(token, "commit" if commit else "abort", producer)
            case 4:
                driver.step(CheckTimeout())
            case 5 if driver.writes:
                driver.written(UNAVAILABLE, logged=chance.random() < 0.5)
            case 6:
                partition = chance.choice([A, B])
                self.lacking.discard(partition)
                driver.step(MarkersWritten(frozenset({partition})))
            case 7 if chance.random() < 0.3:
                self._lose_coordinator()
            case _ if driver.writes:
                driver.written()

    def _wait(self, token: int, what: str, producer: Producer) -> None:
        """Have the answer checked; a producer that was fenced when it asked gets an error."""
        self.waiting[token] = "nothing" if producer in self.driver.fenced else what

    def _lose_coordinator(self) -> None:
        """Load the log into a new transaction; the write in progress may be in it."""
        driver = self.driver
        driver.log += [one.snapshot for one in driver.writes if self.chance.random() < 0.5]
        driver.writes.clear()
        self.waiting.clear()
        driver.transaction = Transaction("t")
        for snapshot in driver.log:
            assert snapshot is not None
            driver.transaction.replay(replace(snapshot, previous=NO_PRODUCER))
        self.lacking = set(driver.transaction.unmarked)
        if driver.state in PREPARED:
            self._say(driver.state is TransactionState.PREPARE_COMMIT)

    def _take_answers(self) -> None:
        for token in [one for one in self.waiting if one in self.driver.answers]:
            what, result = self.waiting.pop(token), self.driver.answers[token]
            if result.error is not ErrorCode.NONE:
                continue
            if what == "initialize":
                assert result.producer not in self.given, "given out twice"
                self.given.append(result.producer)
            assert what != "nothing", "a fenced producer went on"
            if what in ("commit", "abort"):
                self._say(what == "commit")

    def _take_markers(self) -> None:
        for producer, commit, partitions in self.driver.markers:
            self.lacking = set(partitions)
            assert producer == self.driver.snapshot.producer
            self._say(commit)
        self.driver.markers.clear()

    def _say(self, commit: bool) -> None:
        snapshot = self.driver.snapshot
        said = self.ends.setdefault((snapshot.producer.id, snapshot.started_ms), set())
        said.add(commit)
        assert len(said) == 1, "a transaction has one end"


@pytest.mark.parametrize("seed", range(200))
def test_each_transaction_has_one_end_and_no_epoch_is_given_out_twice(seed: int) -> None:
    schedule = Schedule(seed)

    schedule.play(300)

    assert schedule.given


def test_random_schedules_commit_abort_and_fence() -> None:
    ends = [end for seed in range(20) for end in _ends(seed)]

    assert {True, False} <= set(ends)
    assert len(ends) > 50


def _ends(seed: int) -> list[bool]:
    schedule = Schedule(seed)
    schedule.play(300)
    return [next(iter(said)) for said in schedule.ends.values()]
