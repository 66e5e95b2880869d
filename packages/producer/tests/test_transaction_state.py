from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.producer.transactions.state import (
    Phase,
    ProducerLost,
    TransactionError,
    TransactionFailed,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode, MessageTooLarge, ProducerFenced
from ottla.protocol.topics import TopicPartition


def opened() -> TransactionState:
    state = TransactionState()
    state.to(Phase.IDLE, "start")
    state.to(Phase.OPEN, "begin")
    return state


def test_records_are_taken_inside_a_transaction_only() -> None:
    state = TransactionState()
    assert not state.takes_records
    state.to(Phase.IDLE, "start")
    assert not state.takes_records
    with pytest.raises(TransactionError, match=r"outside of a transaction; use `async with"):
        state.refuse("send records")
    state.to(Phase.OPEN, "begin")
    assert state.takes_records


def test_after_a_lost_record_there_is_only_the_abort() -> None:
    state = opened()
    state.failed(MessageTooLarge("big"))

    with pytest.raises(TransactionFailed, match="only abort: big") as caught:
        state.to(Phase.COMMITTING, "commit")
    assert isinstance(caught.value.__cause__, MessageTooLarge)
    state.to(Phase.ABORTING, "abort")
    state.to(Phase.IDLE, "abort")
    state.to(Phase.OPEN, "begin again")
    assert state.cause is None


def test_no_record_is_taken_from_the_moment_of_a_commit_on() -> None:
    state = opened()
    state.to(Phase.FLUSHING, "commit")
    assert not state.takes_records
    with pytest.raises(TransactionError, match="the producer is flushing the transaction"):
        state.refuse("send records")


def test_a_transaction_may_be_aborted_until_the_coordinator_may_have_committed_it() -> None:
    state = opened()
    may_be_aborted = [state.may_be_aborted]
    for phase in (Phase.FLUSHING, Phase.COMMITTING):
        state.to(phase, "commit")
        may_be_aborted.append(state.may_be_aborted)
    assert may_be_aborted == [True, True, False]
    with pytest.raises(TransactionError, match="cannot abort"):
        state.to(Phase.ABORTING, "abort")


def test_a_prepared_transaction_is_not_ended_by_its_producer() -> None:
    state = opened()
    state.to(Phase.FLUSHING, "prepare")
    state.to(Phase.PREPARED, "prepare")

    assert (state.takes_records, state.may_be_aborted) == (False, False)
    for phase in (Phase.COMMITTING, Phase.ABORTING, Phase.OPEN, Phase.IDLE):
        with pytest.raises(TransactionError, match="left with a prepared transaction"):
            state.to(phase, "go on")


def test_a_fenced_producer_can_do_nothing_more() -> None:
    state = opened()
    state.failed(ProducerFenced())

    for phase in (Phase.COMMITTING, Phase.ABORTING, Phase.OPEN, Phase.IDLE):
        with pytest.raises(ProducerLost, match="close this producer"):
            state.to(phase, "go on")


def test_an_ended_transaction_forgets_its_partitions() -> None:
    state = opened()
    state.partitions.add(TopicPartition("t", 0))
    state.has_offsets = True
    known = state.is_empty
    state.to(Phase.FLUSHING, "commit")
    state.to(Phase.COMMITTING, "commit")
    state.to(Phase.IDLE, "commit")
    assert (known, state.is_empty) == (False, True)
    assert state.unregistered([TopicPartition("t", 1), TopicPartition("t", 0)]) == [
        TopicPartition("t", 0),
        TopicPartition("t", 1),
    ]


@pytest.mark.parametrize(
    ("codes", "is_in_doubt"),
    [
        ([None], True),
        ([ErrorCode.CONCURRENT_TRANSACTIONS], False),
        ([None, ErrorCode.TOPIC_AUTHORIZATION_FAILED], True),
        ([ErrorCode.COORDINATOR_NOT_AVAILABLE], True),  # a write that failed may be in the log
        ([None, ErrorCode.NOT_COORDINATOR, ErrorCode.NONE], False),
    ],
)
@pytest.mark.parametrize("what", [TopicPartition("t", 0), "group"])
def test_a_registration_is_in_doubt_while_one_of_its_requests_may_have_been_executed(
    what: TopicPartition | str, codes: list[ErrorCode | None], *, is_in_doubt: bool
) -> None:
    state = opened()

    for code in codes:  # None: the answer is lost
        state.asked([what])
        if code is not None:
            state.answered([what], code)

    is_begun = codes[-1] is ErrorCode.NONE
    assert (bool(state.in_doubt), state.is_begun) == (is_in_doubt, is_begun)
    assert state.is_empty == (not is_in_doubt and not is_begun)


def test_an_ended_transaction_leaves_nothing_in_doubt() -> None:
    state = opened()
    state.asked(["group"])
    state.to(Phase.ABORTING, "abort")
    state.to(Phase.IDLE, "abort")

    assert state.is_empty


@given(st.lists(st.sampled_from([*Phase, "lost record", "fenced"]), max_size=30))
def test_no_transition_leads_from_a_failure_to_a_commit(steps: list[object]) -> None:
    state = opened()
    failed = False
    for step in steps:
        before = state.phase
        if step == "fenced":
            state.failed(ProducerFenced())
        elif step == "lost record":
            state.failed(MessageTooLarge())
            failed = failed or before in (Phase.OPEN, Phase.FLUSHING, Phase.COMMITTING)
        elif isinstance(step, Phase):
            try:
                state.to(step, "go on")
            except (TransactionError, TransactionFailed, ProducerLost):
                assert state.phase is before
                continue
            assert before is not Phase.LOST
            assert not (failed and step is Phase.COMMITTING)
            if step is Phase.IDLE:
                failed = False
