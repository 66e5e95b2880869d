from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ottla.client.errors import DeadlineExceeded
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer import CommitFailed
from ottla.producer import ProducerFenced, TransactionFailed
from ottla.protocol.errors import IllegalGeneration, MessageTooLarge
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import OutputTooLarge
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs, FinishedWork, Output
from ottla.streams.exactly_once.outcome import OutputRejected, TransactionsFenced
from ottla.streams.exactly_once.transactional_commits import TransactionalCommits

P0 = TopicPartition("in", 0)
GROUP = GroupMetadata("billing", 3, "member")


@dataclass(frozen=True)
class Plan:
    """A complete plan of everything below an offset."""

    offset: int
    metadata: str = "m"
    partition: TopicPartition = P0
    is_complete: bool = True

    @property
    def end(self) -> int:
        return self.offset

    def covers(self, offset: int) -> bool:
        return offset < self.offset


@dataclass(frozen=True)
class Acknowledged:
    """The acknowledgement of an output."""

    error: BaseException | None = None

    def done(self) -> bool:
        return True

    def exception(self) -> BaseException | None:
        return self.error


@dataclass
class ScriptedProducer:
    """Notes the calls; a call whose name is in `failures` raises the next error of its list."""

    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    visible: list[bytes] = field(default_factory=list)
    pending: list[bytes] = field(default_factory=list)
    offsets: dict[TopicPartition, int | OffsetAndMetadata] = field(default_factory=dict)
    group: str | GroupMetadata | None = None
    stuck: bool = False
    refused: dict[bytes, BaseException] = field(default_factory=dict)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if errors := self.failures.get(name):
            raise errors.pop(0)

    async def begin_transaction(self) -> None:
        self._call("begin")
        self.pending = []

    async def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> Acknowledged:
        self._call("send")
        if self.stuck:
            await asyncio.Event().wait()
        assert isinstance(value, bytes)
        self.pending.append(value)
        return Acknowledged(self.refused.get(value))

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        self._call("offsets")
        self.offsets, self.group = dict(offsets), group

    async def commit_transaction(self) -> None:
        self._call("commit")
        self.visible += self.pending

    async def abort_transaction(self) -> None:
        self._call("abort")


def failed_by(cause: BaseException) -> TransactionFailed:
    error = TransactionFailed("cannot commit, only abort")
    error.__cause__ = cause
    return error


def made(**failures: list[BaseException]) -> tuple[ScriptedProducer, BufferedOutputs, TransactionalCommits]:
    """Make commits with two finished works."""
    producer, outputs = ScriptedProducer(failures), BufferedOutputs()
    for offset, text in enumerate((b"a", b"b")):
        outputs.finish(P0, (offset,), (Output("out", text),))
    return producer, outputs, TransactionalCommits(producer, outputs, lambda: GROUP, interval_ms=10)


async def test_outputs_offsets_and_group_are_in_one_transaction() -> None:
    producer, outputs, commits = made()

    await commits.commit([Plan(2)])

    assert producer.calls == ["begin", "send", "send", "offsets", "commit"]
    assert producer.visible == [b"a", b"b"]
    assert producer.offsets == {P0: OffsetAndMetadata(2, "m")}
    assert producer.group == GROUP
    assert len(outputs) == 0


async def test_no_transaction_begins_when_nothing_changed() -> None:
    producer, _, commits = made()
    await commits.commit([Plan(2)])
    producer.calls.clear()

    await commits.commit([Plan(2)])

    assert producer.calls == []


@pytest.mark.parametrize(
    "failures",
    [
        {"offsets": [IllegalGeneration()]},
        {"commit": [failed_by(DeadlineExceeded("sending", 1, None))]},
        {"send": [failed_by(DeadlineExceeded("sending", 1, None))]},
    ],
)
async def test_the_outputs_of_an_aborted_transaction_are_in_the_next(
    failures: dict[str, list[BaseException]],
) -> None:
    producer, _, commits = made(**failures)

    with pytest.raises((TransactionFailed, IllegalGeneration)):
        await commits.commit([Plan(2)])
    assert (producer.calls[-1], producer.visible) == ("abort", [])
    await commits.commit([Plan(2)])

    assert producer.visible == [b"a", b"b"]
    assert (commits.committed_total, commits.aborted_total) == (1, 1)


async def test_a_commit_without_an_answer_is_repeated_and_never_aborted() -> None:
    unanswered = DeadlineExceeded("committing", 1, None)
    producer, outputs, commits = made(commit=[unanswered, unanswered])

    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            await commits.commit([Plan(2)])
    await commits.commit([Plan(2)])

    assert producer.calls == ["begin", "send", "send", "offsets", "commit", "commit", "commit"]
    assert (producer.visible, len(outputs)) == ([b"a", b"b"], 0)


async def test_a_commit_without_an_answer_is_ended_by_a_call_without_plans() -> None:
    producer, outputs, commits = made(commit=[DeadlineExceeded("committing", 1, None)])
    with pytest.raises(DeadlineExceeded):
        await commits.commit([Plan(2)])
    assert commits.is_pending

    await commits.commit([])

    assert (producer.calls[-2:], producer.visible) == (["commit", "commit"], [b"a", b"b"])
    assert (commits.is_pending, len(outputs)) == (False, 0)


async def test_a_commit_that_turns_out_to_have_failed_is_aborted_before_the_next() -> None:
    failures: list[BaseException] = [
        DeadlineExceeded("committing", 1, None), failed_by(DeadlineExceeded("sending", 1, None)),
    ]  # fmt: skip
    producer, _, commits = made(commit=failures)
    with pytest.raises(DeadlineExceeded):
        await commits.commit([Plan(2)])

    await commits.commit([Plan(2)])

    assert producer.calls[4:] == ["commit", "commit", "abort", "begin", "send", "send", "offsets", "commit"]
    assert producer.visible == [b"a", b"b"]


async def test_a_transaction_that_was_cancelled_is_aborted_by_the_next_call() -> None:
    producer, _, commits = made()
    producer.stuck = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await commits.commit([Plan(2)])

    producer.stuck = False
    await commits.commit([Plan(2)])

    assert producer.calls == ["begin", "send", "abort", "begin", "send", "send", "offsets", "commit"]
    assert producer.visible == [b"a", b"b"]


@pytest.mark.parametrize("call", ["begin", "send", "offsets", "commit"])
async def test_a_fenced_producer_stops_with_one_line(call: str) -> None:
    fenced: list[BaseException] = [ProducerFenced("billing-1")]
    producer, _, commits = made(**{call: fenced})

    with pytest.raises(TransactionsFenced, match=r"^the processor stops, .* fenced: .*'billing-1'") as caught:
        await commits.commit([Plan(2)])
    producer.calls.clear()
    with pytest.raises(TransactionsFenced):
        await commits.commit([Plan(2)])

    assert "\n" not in str(caught.value)
    assert (producer.calls, producer.visible) == ([], [])


async def test_an_output_that_the_broker_never_takes_stops_instead_of_being_repeated_for_ever() -> None:
    _, _, commits = made(commit=[failed_by(MessageTooLarge())])

    with pytest.raises(OutputRejected, match="an output was rejected"):
        await commits.commit([Plan(2)])

    assert commits.fatal is not None


async def test_nothing_is_committed_while_the_consumer_has_no_generation() -> None:
    """Coordinators take the offsets of a transaction that names no member, also while others own them."""
    producer, outputs, _ = made()
    commits = TransactionalCommits(producer, outputs, lambda: GroupMetadata("billing"), interval_ms=10)

    with pytest.raises(CommitFailed, match="not in the group"):
        await commits.commit([Plan(2)])

    assert producer.calls == []
    assert len(outputs) == 2


async def test_a_transaction_names_the_generation_in_which_its_plans_were_made() -> None:
    producer, outputs, _ = made()
    group = [GROUP]
    commits = TransactionalCommits(producer, outputs, lambda: group[0], interval_ms=10)
    begin = producer.begin_transaction

    async def lose_and_join_again() -> None:
        await begin()
        group[0] = GroupMetadata("billing", 5, "other")

    producer.begin_transaction = lose_and_join_again  # type: ignore[method-assign]

    await commits.commit([Plan(2)])

    assert producer.group == GROUP


async def test_plans_that_no_transaction_committed_are_not_returned() -> None:
    _, _, commits = made()

    assert await commits.commit([Plan(2, is_complete=False)]) == []
    assert await commits.commit([Plan(2)]) == [Plan(2)]
    assert await commits.commit([Plan(2)]) == [Plan(2)]  # nothing is new
    assert await commits.commit([Plan(1, is_complete=False)]) == []


def too_large(producer: ScriptedProducer, value: bytes) -> None:
    """Make the broker refuse an output for its size once, which fails the commit."""
    producer.refused[value] = MessageTooLarge("max.message.bytes is 1000")
    producer.failures["commit"] = [failed_by(producer.refused[value])]


async def test_dead_letters_take_the_place_of_an_output_that_is_too_large_for_its_topic() -> None:
    producer, outputs = ScriptedProducer(), BufferedOutputs()
    asked: list[tuple[int, str]] = []

    def letters(work: FinishedWork, error: OutputTooLarge) -> tuple[Output, ...]:
        asked.append((work.offsets[0], error.topic))
        return (Output("dead", b"letter"),)

    commits = TransactionalCommits(producer, outputs, lambda: GROUP, interval_ms=10, letters=letters)
    outputs.finish(P0, (0,), (Output("out", b"a"),))
    outputs.finish(P0, (1,), (Output("other", b"b"), Output("out", b"huge")))
    too_large(producer, b"huge")

    with pytest.raises(TransactionFailed):
        await commits.commit([Plan(2)])
    await commits.commit([Plan(2)])

    assert producer.visible == [b"a", b"b", b"letter"]
    assert asked == [(1, "out")]
    assert (len(outputs), outputs.size_bytes) == (0, 0)


async def test_state_that_is_too_large_for_its_changelog_stops() -> None:
    producer, outputs = ScriptedProducer(), BufferedOutputs()
    commits = TransactionalCommits(
        producer, outputs, lambda: GROUP, interval_ms=10, letters=lambda work, error: ()
    )
    outputs.finish(P0, (0,), (Output("counts-changelog", b"huge"),), changelogs=["counts-changelog"])
    too_large(producer, b"huge")

    with pytest.raises(OutputRejected):
        await commits.commit([Plan(1)])
