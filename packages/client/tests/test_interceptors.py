from __future__ import annotations

import logging

import pytest

from ottla.client.interceptors import Interceptors, load


class Counting:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_send(self, record: object) -> None:
        self.seen.append(record)


class Replacing:
    def on_send(self, record: str) -> str:
        return record.upper()


class Failing:
    def on_send(self, record: object) -> None:
        raise RuntimeError("not today")


def test_methods_that_an_interceptor_lacks_are_not_called() -> None:
    interceptors = Interceptors([Counting(), object()])

    assert len(interceptors.methods("on_send")) == 1
    assert interceptors.methods("on_batch") == ()


def test_each_gets_the_result_of_the_one_before_and_none_changes_nothing() -> None:
    before, after = Counting(), Counting()
    interceptors = Interceptors([before, Replacing(), after])

    result = interceptors.transform(interceptors.methods("on_send"), "one")

    assert (result, before.seen, after.seen) == ("ONE", ["one"], ["ONE"])


def test_an_interceptor_that_fails_breaks_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    interceptors = Interceptors([Failing(), counting])
    methods = interceptors.methods("on_send")

    with caplog.at_level(logging.ERROR):
        interceptors.tell(methods, "one")
        changed = interceptors.transform(methods, "two")

    assert changed == "two"
    assert counting.seen == ["one", "two"]
    assert len(caplog.records) == 1
    assert "not today" in caplog.text


def test_interceptors_are_imported_by_name() -> None:
    counting = Counting()

    found = load([counting, f"{__name__}:Failing"])

    assert found[0] is counting
    assert isinstance(found[1], Failing)
    assert len(load(f"{__name__}:Failing, {__name__}:Counting")) == 2
    assert load(counting) == (counting,)


@pytest.mark.parametrize(
    ("given", "words"),
    [([3], "3 has none"), ([Failing], r"give Failing\(\)"), ("string:Formatter", "has none")],
)
def test_an_object_without_interceptor_methods_is_rejected(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(given)


def test_a_result_of_another_type_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Mistaken:
        def on_send(self, record: object) -> object:
            return {"value": record}

    after = Counting()
    interceptors = Interceptors([Mistaken(), after])

    result = interceptors.transform(interceptors.methods("on_send"), "one", str)

    assert (result, after.seen) == ("one", ["one"])
    assert "it returned dict, not str" in caplog.text
