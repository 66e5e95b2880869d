"""What survives a long full collection is not looked at by the next."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from ottla.broker.runtime.full_collection_pauses import (
    LONG_MS,
    LOOK_AGAIN_AFTER_MS,
    FullCollectionPauses,
)


class Collector:
    """A collector whose collections take what the test says."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done: list[str] = []
        self.pauses = FullCollectionPauses(
            lambda: self.now_ms,
            freeze=lambda: self.done.append("freeze"),
            unfreeze=lambda: self.done.append("unfreeze"),
        )

    def collect(self, took_ms: float, generation: int = 2) -> None:
        self.pauses("start", {"generation": generation})
        self.now_ms += took_ms
        self.pauses("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


@pytest.fixture
def survivors() -> Iterator[None]:
    """Leave the process's objects to its collector again."""
    yield
    gc.unfreeze()


def test_survivors_of_a_long_full_collection_are_set_aside() -> None:
    collector = Collector()
    collector.collect(LONG_MS - 1)
    collector.collect(LONG_MS * 5, generation=1)
    assert collector.done == []
    collector.collect(LONG_MS + 1)
    assert collector.done == ["freeze"]


def test_after_an_hour_the_next_full_collection_looks_at_everything() -> None:
    collector = Collector()
    collector.now_ms = LOOK_AGAIN_AFTER_MS
    collector.collect(LONG_MS * 2)
    assert collector.done == ["freeze", "unfreeze"]
    collector.collect(LONG_MS * 20)
    assert collector.done == ["freeze", "unfreeze", "freeze"]


@pytest.mark.usefixtures("survivors")
def test_a_real_collection_looks_at_fewer_objects_after_a_long_one() -> None:
    times_ms = iter([0.0, 0.0])
    pauses = FullCollectionPauses(lambda: next(times_ms, 2 * LONG_MS))
    kept = [{"number": [number]} for number in range(1_000)]
    gc.callbacks.append(pauses)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(pauses)
    assert not any(one is kept[0] for one in gc.get_objects())


ALLOCATE = """
import gc
from ottla.broker.runtime.full_collection_pauses import collect_fully_early

{early}
generations = []
gc.callbacks.append(lambda phase, info: generations.append(info["generation"]))
kept = [[] for _ in range(40_000)]
print(generations.count(2))
"""


@pytest.mark.parametrize(("early", "comes"), [("", False), ("collect_fully_early()", True)])
def test_a_full_collection_comes_after_few_new_objects(early: str, *, comes: bool) -> None:
    # In a process of its own: the collector also waits until a quarter of the objects that stay are new.
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE.format(early=early)], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) > 0) is comes


@pytest.mark.usefixtures("survivors")
def test_what_was_set_aside_goes_with_its_last_reference() -> None:
    class Session:
        pass

    session = Session()
    gone = weakref.ref(session)
    gc.freeze()
    del session
    assert gone() is None
