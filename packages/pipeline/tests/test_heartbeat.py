"""Heartbeats continue as long as their thread lives, and no longer."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from ottla.pipeline.jobs.run import heartbeat

OFTEN_S = 0.005
LONG_S = 30


def test_it_beats_until_it_is_left() -> None:
    beaten = threading.Semaphore(0)
    with heartbeat(beaten.release, OFTEN_S) as beating:
        assert all(beaten.acquire(timeout=LONG_S) for _ in range(3))
    assert not beating.is_alive()


def test_it_ends_when_what_is_within_fails() -> None:
    with pytest.raises(ZeroDivisionError), heartbeat(lambda: None, OFTEN_S) as beating:
        raise ZeroDivisionError
    assert not beating.is_alive()


def test_it_hides_no_dead_thread() -> None:
    """A thread that ends without leaving the context, as at interpreter exit, has no heartbeat any more."""
    stack, found = ExitStack(), []

    def enter() -> None:
        found.append(stack.enter_context(heartbeat(lambda: None, OFTEN_S)))

    owner = threading.Thread(target=enter)
    owner.start()
    owner.join(LONG_S)
    found[0].join(LONG_S)
    assert not found[0].is_alive()
    stack.close()


def test_a_beat_that_cannot_be_written_is_not_the_last() -> None:
    beaten, failures = threading.Event(), iter([OSError("no space left")])

    def beat() -> None:
        for failure in failures:
            raise failure
        beaten.set()

    with heartbeat(beat, OFTEN_S):
        assert beaten.wait(LONG_S)
