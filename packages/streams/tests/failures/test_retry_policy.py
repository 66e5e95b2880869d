"""Verdicts about failures, by type, attempt and time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.retry import Backoff
from ottla.producer import RecordTooLarge
from ottla.protocol.errors import MessageTooLarge
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import (
    DeadLetterDelayed,
    DeadLetterRejected,
    HandlerCancelled,
    HandlerTimedOut,
    InvalidHandler,
    KeySetAside,
    OutputFailed,
    OutputTooLarge,
    RecordUndecodable,
    RemoteError,
    StateTooLarge,
    StateUndecodable,
    ThreadsExhausted,
)
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.seams import DeadLetter, Retry, Skip, Stop

PARTITION = TopicPartition("orders", 0)
UNDECODABLE = RecordUndecodable(PARTITION, 3, ValueError("no JSON"))


def policy(**settings: Any) -> RetryPolicy:
    return RetryPolicy(**{"retries": 2, "has_dead_letters": True, **settings})


def test_retries_end_after_their_number_and_the_record_goes_to_the_dead_letters() -> None:
    verdicts = [policy().decide(ValueError(), attempt, 0, 0.5) for attempt in (1, 2, 3, 4)]

    assert verdicts == [Retry(100), Retry(200), DeadLetter(), DeadLetter()]


def test_without_dead_letters_the_processor_stops_after_the_last_retry() -> None:
    without = policy(has_dead_letters=False)

    assert without.decide(ValueError(), 3, 0, 0.5) == Stop()
    assert without.decide(UNDECODABLE, 1, 0, 0.5) == Stop()


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.integers(0, 2**40))
def test_a_wait_grows_with_jitter_up_to_its_limit_and_never_above(
    attempt: int, chance: float, now_ms: int
) -> None:
    verdict = policy(retries=10_000, backoff=Backoff(100, 5_000, 0.2)).decide(
        OSError(), attempt, now_ms, chance
    )

    assert isinstance(verdict, Retry)
    plain = min(100 * 2 ** (min(attempt, 60) - 1), 5_000)
    assert 0.8 * plain - 1 <= verdict.at_ms - now_ms <= min(1.2 * plain + 1, 5_000)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionResetError(), Retry(100)),
        (BrokenPipeError(), Skip()),
        (OSError(), Stop()),
        (KeyError(), DeadLetter()),
        (RuntimeError(), Retry(100)),
    ],
)
def test_the_nearest_class_decides(error: Exception, verdict: object) -> None:
    by_type = policy(
        on_error={
            OSError: "stop",
            ConnectionError: "retry",
            BrokenPipeError: "skip",
            LookupError: "dead-letter",
        }
    )

    assert by_type.decide(error, 1, 0, 0.5) == verdict


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([ValueError(), OSError()], Stop()),
        ([ValueError(), KeyError(), RuntimeError()], DeadLetter()),
        ([ValueError(), RuntimeError()], Retry(100)),
        ([ValueError(), ValueError()], Skip()),
        ([ExceptionGroup("inner", [OSError()]), ValueError()], Stop()),
    ],
)
def test_a_group_has_the_gravest_verdict_of_its_exceptions(errors: list[Exception], verdict: object) -> None:
    by_type = policy(on_error={ValueError: "skip", KeyError: "dead-letter", OSError: "stop"})

    assert by_type.decide(ExceptionGroup("both", errors), 1, 0, 0.5) == verdict


def test_a_group_that_is_named_itself_has_the_verdict_of_its_name() -> None:
    by_type = policy(on_error={ExceptionGroup: "skip", OSError: "stop"})

    assert by_type.decide(ExceptionGroup("both", [OSError()]), 1, 0, 0.5) == Skip()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_no_exception_stops_whatever_is_said_of_it(error: BaseException) -> None:
    everything = policy(on_error={BaseException: "skip"})

    assert everything.decide(error, 1, 0, 0.5) == Stop()
    assert everything.decide(BaseExceptionGroup("both", [error, ValueError()]), 1, 0, 0.5) == Stop()


@pytest.mark.parametrize(
    "error",
    [
        InvalidHandler("x"),
        ThreadsExhausted("charge", 3),
        DeadLetterRejected("dead", PARTITION, 3, ValueError()),
    ],
)
def test_errors_that_every_record_would_have_stop(error: Exception) -> None:
    assert policy(on_error={Exception: "skip"}).decide(error, 1, 0, 0.5) == Stop()


def test_a_record_that_cannot_be_decoded_is_never_retried() -> None:
    assert policy().decide(UNDECODABLE, 1, 0, 0.5) == DeadLetter()
    assert policy(on_error={Exception: "retry"}).decide(UNDECODABLE, 1, 0, 0.5) == DeadLetter()
    assert policy(on_error={RecordUndecodable: "skip"}).decide(UNDECODABLE, 1, 0, 0.5) == Skip()
    assert policy(on_error={Exception: "stop"}).decide(UNDECODABLE, 1, 0, 0.5) == Stop()


def test_a_key_set_aside_follows_to_the_dead_letters() -> None:
    assert policy().decide(KeySetAside(PARTITION, 9, 3), 1, 0, 0.5) == DeadLetter()


def test_time_outs_and_cancellations_of_a_handler_by_itself_are_retried() -> None:
    assert policy().decide(HandlerTimedOut(PARTITION, 3, 50), 1, 0, 0.5) == Retry(100)
    assert policy().decide(HandlerCancelled(PARTITION, 3), 1, 0, 0.5) == Retry(100)


def test_an_exception_that_could_not_cross_from_a_process_counts_as_its_class() -> None:
    by_type = policy(on_error={ConnectionError: "skip"})
    error = RemoteError(ConnectionResetError, "Strange", "no", "")

    assert by_type.decide(error, 1, 0, 0.5) == Skip()


def test_dead_letters_that_are_not_acknowledged_are_sent_again_for_ever_with_growing_waits() -> None:
    waits = [
        policy().decide(DeadLetterDelayed("dead", sends, OSError()), 99, 0, 0.5) for sends in (1, 2, 3, 50)
    ]

    assert waits == [Retry(100), Retry(200), Retry(400), Retry(60_000)]


STATE_UNDECODABLE = StateUndecodable(
    PARTITION, 3, ValueError("no number"), "the row of table 'names'", "fix it"
)


def test_a_row_that_cannot_be_decoded_stops_unless_its_own_class_is_named() -> None:
    """The record that needs it is not at fault, and would be lost among the dead letters."""
    assert policy().decide(STATE_UNDECODABLE, 1, 0, 0.5) == Stop()
    assert policy(on_error={Exception: "dead-letter"}).decide(STATE_UNDECODABLE, 1, 0, 0.5) == Stop()
    named = policy(on_error={StateUndecodable: "dead-letter"})
    assert named.decide(STATE_UNDECODABLE, 1, 0, 0.5) == DeadLetter()


@pytest.mark.parametrize("cause", [MessageTooLarge("too large"), RecordTooLarge(9, 5)])
def test_an_output_that_is_too_large_is_a_dead_letter_without_another_attempt(cause: Exception) -> None:
    failed = OutputFailed(PARTITION, 3, OutputTooLarge("invoices", cause))

    assert policy().decide(failed, 1, 0, 0.5) == DeadLetter()
    assert policy().decide(OutputTooLarge("invoices", cause), 1, 0, 0.5) == DeadLetter()
    assert policy(on_error={OutputFailed: "retry"}).decide(failed, 1, 0, 0.5) == DeadLetter()
    assert policy(on_error={OutputFailed: "skip"}).decide(failed, 1, 0, 0.5) == Skip()
    assert policy(on_error={Exception: "skip"}).decide(failed, 1, 0, 0.5) == DeadLetter()
    assert policy(has_dead_letters=False).decide(failed, 1, 0, 0.5) == Stop()
    assert "set dead_letter_topic" in str(failed)


def test_an_output_that_failed_otherwise_stops() -> None:
    failed = OutputFailed(PARTITION, 3, ConnectionError("no broker"))

    assert policy(on_error={OutputFailed: "skip"}).decide(failed, 1, 0, 0.5) == Stop()


def test_state_that_is_too_large_for_its_changelog_stops() -> None:
    error = StateTooLarge("counts-changelog", MessageTooLarge("too large"))

    assert policy(on_error={Exception: "skip"}).decide(error, 1, 0, 0.5) == Stop()
