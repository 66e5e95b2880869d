from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.streams.dedupe import DedupeMisconfigured, WindowLimits
from ottla.streams.dedupe.window import FIRST_CAPACITY, SLACK_MS, Prefilter, Window


def test_a_repetition_is_seen_within_the_time_and_does_not_extend_it() -> None:
    window = Window(WindowLimits(ttl_ms=100))
    window.add(b"a", 0)

    assert window.contains(b"a", 99)
    assert not window.contains(b"a", 100)


def test_the_oldest_mark_makes_place_also_if_it_was_repeated() -> None:
    window = Window(WindowLimits(ttl_ms=None, max_ids=2))
    window.add(b"a", 0)
    window.add(b"b", 1)
    assert window.contains(b"a", 2)

    assert window.add(b"c", 3) == [b"a"]

    assert [window.contains(each, 4) for each in (b"a", b"b", b"c")] == [False, True, True]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=80),
    st.integers(1, 6),
    st.integers(1, 12),
)
@example([(0, 0), (1, 1), (0, 1), (2, 3), (1, 0)], 2, 5)
def test_the_window_remembers_exactly_what_its_definition_says(
    events: list[tuple[int, int]], max_ids: int, ttl_ms: int
) -> None:
    window, model, now_ms = Window(WindowLimits(ttl_ms, max_ids)), OrderedDict[bytes, int](), 0
    for number, elapsed_ms in events:
        now_ms += elapsed_ms
        identity = b"%d" % number
        is_remembered = identity in model and now_ms - model[identity] < ttl_ms

        assert window.contains(identity, now_ms) == is_remembered

        if is_remembered:
            continue
        model.pop(identity, None)
        model[identity] = now_ms
        window.add(identity, now_ms)
        # The oldest make place; those whose time is over are nobody's place.
        alive = [each for each, marked_ms in model.items() if now_ms - marked_ms < ttl_ms]
        for each in alive[: max(0, len(alive) - max_ids)]:
            del model[each]
        assert len(window) <= max_ids


@pytest.mark.parametrize("limits", [{"ttl_ms": 0}, {"max_ids": 0}, {"ttl_ms": -1}])
def test_a_window_without_room_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(DedupeMisconfigured, match="must be at least 1"):
        WindowLimits(**limits)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90_000)), max_size=120),
    st.one_of(st.none(), st.integers(1, 200_000)),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_the_prefilter_never_calls_new_what_was_marked_within_the_window(
    events: list[tuple[int, int]], ttl_ms: int | None, max_ids: int | None
) -> None:
    prefilter, marked, now_ms = Prefilter(WindowLimits(ttl_ms, max_ids)), OrderedDict[bytes, int](), 0
    for number, elapsed_ms in events:
        now_ms += elapsed_ms
        identity = b"%d" % number
        marked.pop(identity, None)
        marked[identity] = now_ms

        prefilter.add([identity], now_ms)

        alive = [each for each, at_ms in marked.items() if ttl_ms is None or now_ms - at_ms < ttl_ms]
        for each in alive if max_ids is None else alive[-max_ids:]:
            assert prefilter.may_contain(each)


def test_the_prefilter_forgets_what_is_outside_of_the_window() -> None:
    prefilter = Prefilter(WindowLimits(ttl_ms=1_000_000))
    old, later = [b"o%d" % n for n in range(1_000)], [b"l%d" % n for n in range(1_000)]
    prefilter.add(old, 0)

    for at_ms in range(600_000, 3_600_000, 600_000):
        prefilter.add(later, at_ms)

    assert sum(map(prefilter.may_contain, old)) < 100
    assert all(map(prefilter.may_contain, later))
    assert len(prefilter) <= 4


def test_an_identity_marked_late_by_a_cancelled_caller_is_still_known() -> None:
    prefilter = Prefilter(WindowLimits(ttl_ms=1_000))
    prefilter.add([b"a"], 0)
    for at_ms in range(0, 1_000 + SLACK_MS, 500):
        prefilter.add([b"x%d" % at_ms], at_ms)

    assert prefilter.may_contain(b"a")


def test_the_prefilter_grows_with_the_window_and_seldom_errs() -> None:
    prefilter = Prefilter(WindowLimits(ttl_ms=None))
    prefilter.add((b"%d" % n for n in range(10 * FIRST_CAPACITY)), 0)

    wrong = sum(prefilter.may_contain(b"new%d" % n) for n in range(10_000))

    assert all(prefilter.may_contain(b"%d" % n) for n in range(10 * FIRST_CAPACITY))
    assert wrong < 1_000
    assert len(prefilter) <= 5


def test_the_prefilter_stays_within_its_memory_and_right() -> None:
    prefilter = Prefilter(WindowLimits(ttl_ms=None), max_bytes=50_000)
    prefilter.add((b"%d" % n for n in range(100_000)), 0)

    assert prefilter.size_bytes < 100_000
    assert all(prefilter.may_contain(b"%d" % n) for n in range(100_000))
