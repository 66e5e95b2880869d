"""Tests of one transaction: a driver for the pure state machine."""

from __future__ import annotations

from itertools import count

from ottla.broker.transactions.events import (
    AddPartitions,
    End,
    Event,
    Initialize,
    MarkersWritten,
    Outcome,
    Persisted,
    Producer,
    Reason,
    Result,
    TransactionSnapshot,
    TransactionState,
    Write,
)
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
TIMEOUT_MS = 60_000


class TransactionDriver:
    """A transaction with a clock and a log; writes are committed at once unless `hold` is set."""

    def __init__(self) -> None:
        self.transaction = Transaction("t")
        self.now_ms = 1_000
        self.hold = False
        self.writes: list[Write] = []
        self.log: list[TransactionSnapshot | None] = []
        self.answers: dict[int, Result] = {}
        self.markers: list[tuple[Producer, bool, frozenset[TopicPartition]]] = []
        self.ids = count(100)
        self.tokens = count(1)
        self.completes_later = False
        self.fenced: set[Producer] = set()

    def step(self, event: Event) -> Outcome:
        outcome = self.transaction.step(event, self.now_ms)
        for reply in outcome.replies:
            assert isinstance(reply.token, int)
            assert reply.token not in self.answers, "a request is answered once"
            self.answers[reply.token] = reply.result
        if outcome.sends_markers:
            snapshot = self.snapshot
            commit = snapshot.state is TransactionState.PREPARE_COMMIT
            self.markers.append((snapshot.producer, commit, self.transaction.unmarked))
        self.completes_later |= outcome.completes_later
        if outcome.write is not None:
            assert not self.writes, "one write at a time"
            self.writes.append(outcome.write)
            if not self.hold:
                self.written()
        return outcome

    def written(self, error: ErrorCode = ErrorCode.NONE, *, logged: bool = True) -> None:
        """Finish the write; a failed one may be in the log nevertheless."""
        write = self.writes.pop(0)
        if logged:
            self.log.append(write.snapshot)
        if error is ErrorCode.NONE and write.snapshot is not None:
            if write.reason is Reason.FENCED:
                self.fenced.add(self.snapshot.producer)
            self.transaction.replay(write.snapshot)
        self.step(Persisted(error))

    @property
    def snapshot(self) -> TransactionSnapshot:
        assert self.transaction.snapshot is not None
        return self.transaction.snapshot

    @property
    def state(self) -> TransactionState | None:
        return self.transaction.state

    # ---- requests: each returns the number of its answer

    def initialize(self, expected: Producer | None = None, timeout_ms: int = TIMEOUT_MS) -> int:
        token = next(self.tokens)
        event = Initialize(token=token, timeout_ms=timeout_ms, expected=expected)
        if self.step(event).needs_producer_id:
            self.step(replace(event, new_id=next(self.ids)))
        return token

    def add(self, producer: Producer, *partitions: TopicPartition, version: int = 0) -> int:
        token = next(self.tokens)
        self.step(AddPartitions(token, producer, frozenset(partitions), version))
        return token

    def end(self, producer: Producer, *, commit: bool = True, version: int = 0) -> int:
        token = next(self.tokens)
        event = End(token, producer, commit, version)
        if self.step(event).needs_producer_id:
            self.step(replace(event, new_id=next(self.ids)))
        return token

    # ---- answers

    def error(self, token: int) -> ErrorCode:
        return self.answers[token].error

    def initialized(self, expected: Producer | None = None) -> Producer:
        result = self.answers[self.initialize(expected)]
        assert result.error is ErrorCode.NONE
        return result.producer

    def ongoing(self, *partitions: TopicPartition) -> Producer:
        producer = self.initialized()
        assert self.error(self.add(producer, *(partitions or (A, B)))) is ErrorCode.NONE
        return producer

    def raised(self, producer: Producer, *partitions: TopicPartition, commit: bool = True) -> Producer:
        """Add partitions and end in version 2, and return what the next transaction is done with."""
        added = self.add(producer, *(partitions or (A, B)), version=2)
        assert self.error(added) is ErrorCode.NONE
        result = self.answers[self.end(producer, commit=commit, version=2)]
        assert result.error is ErrorCode.NONE
        return result.producer

    def marked(self) -> None:
        """Write all markers."""
        self.step(MarkersWritten(self.transaction.unmarked))

    def completed(self, *, commit: bool = True) -> Producer:
        producer = self.ongoing()
        self.end(producer, commit=commit)
        self.step(MarkersWritten(frozenset({A, B})))
        return producer
