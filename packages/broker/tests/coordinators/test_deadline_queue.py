from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.coordinators.timers import Deadlines


def test_nothing_is_due_before_its_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)

    assert deadlines.due(9.9) == []
    assert deadlines.due(10) == ["a"]
    assert deadlines.due(11) == []


def test_a_deadline_moved_later_is_not_due_at_the_old_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 20)

    assert deadlines.due(15) == []
    assert deadlines.next_ms() == 20
    assert deadlines.due(20) == ["a"]


def test_a_deadline_moved_earlier_is_due_at_the_new_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 20)
    deadlines.set("a", 10)

    assert deadlines.next_ms() == 10
    assert deadlines.due(10) == ["a"]
    assert deadlines.due(20) == []


def test_a_cancelled_deadline_is_never_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")

    assert deadlines.next_ms() is None
    assert deadlines.due(100) == []


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(0, 50)),
            st.tuples(st.just("cancel"), st.sampled_from("abc"), st.just(0)),
            st.tuples(st.just("due"), st.just(""), st.integers(0, 50)),
        ),
        max_size=40,
    )
)
def test_deadlines_behave_like_a_plain_dictionary(steps: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    plain: dict[str, int] = {}
    for what, key, at in steps:
        if what == "set":
            deadlines.set(key, at)
            plain[key] = at
        elif what == "cancel":
            deadlines.cancel(key)
            plain.pop(key, None)
        else:
            due = {one for one, when in plain.items() if when <= at}
            assert set(deadlines.due(at)) == due
            plain = {one: when for one, when in plain.items() if one not in due}
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not plain)
        assert next_ms is None or next_ms <= min(plain.values())
        assert {one: deadlines.get(one) for one in plain} == plain
        assert len(deadlines) == len(plain)
