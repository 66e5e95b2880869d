"""The cache of worker processes."""

from __future__ import annotations

import logging

import pytest

from ottla.pipeline.spark_workers import ProcessCache


class Thing:
    """Records whether it was closed."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.closed = False

    def close(self, timeout_s: float | None = None) -> None:
        self.closed = True
        if self.fails:
            raise TimeoutError("too long")


def test_a_thing_is_made_once() -> None:
    kept: ProcessCache[Thing] = ProcessCache("a thing", 2)

    first = kept.get("a", Thing)

    assert kept.get("a", Thing) is first


def test_the_one_longest_unused_makes_room() -> None:
    kept: ProcessCache[Thing] = ProcessCache("a thing", 2)
    first, second = kept.get("a", Thing), kept.get("b", Thing)
    kept.get("a", Thing)

    kept.get("c", Thing)

    assert (first.closed, second.closed) == (False, True)


def test_a_forgotten_entry_is_created_again_though_closing_it_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: ProcessCache[Thing] = ProcessCache("a thing", 2)
    first = kept.get("a", lambda: Thing(fails=True))

    with caplog.at_level(logging.WARNING):
        kept.forget("a")
    kept.forget("nothing")

    assert first.closed
    assert kept.get("a", Thing) is not first
    assert "too long" in caplog.text


def test_a_key_has_passwords_and_so_it_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    kept: ProcessCache[Thing] = ProcessCache("a thing", 1)
    kept.get((("kafka.sasl.password", "beer-with-lemonade"),), lambda: Thing(fails=True))

    with caplog.at_level(logging.DEBUG):
        kept.get("another", Thing)

    assert caplog.text.endswith("closing failed what=a thing reason=TimeoutError: too long\n")
    assert len(caplog.records) == 1


def test_all_are_closed_in_the_end() -> None:
    kept: ProcessCache[Thing] = ProcessCache("a thing", 2)
    things = [kept.get(name, Thing) for name in "ab"]

    kept.clear()

    assert all(thing.closed for thing in things)
