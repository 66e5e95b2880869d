"""Consumer groups of 10,000 members: their assignment is made in steps that are short by what they touch."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from typing import Any, ClassVar
from uuid import UUID

import pytest

from ottla.broker.groups.assigned.assignors import ASSIGNORS, GroupSpec, MemberSpec
from ottla.broker.groups.consumer.expressions import compiled, resolve
from ottla.broker.groups.consumer.testing import topic_id
from ottla.broker.runtime.loop_budget import at_once
from ottla.protocol.errors import InvalidRegularExpression

MEMBERS = 10_000
TOPICS = 1_000
LEAST_STEPS = 70
MOST_S = 10.0
"""The CPU time of one step, with much room for a slow machine: it takes up to seven milliseconds."""


def in_short_steps(steps: Generator[Any, None, Any]) -> Any:
    """Run a generator that takes many short steps; return its result."""
    longest, count = 0.0, 0
    while True:
        began = time.process_time()
        try:
            next(steps)
        except StopIteration as end:
            assert count >= LEAST_STEPS
            assert longest < MOST_S
            return end.value
        longest, count = max(longest, time.process_time() - began), count + 1


@pytest.mark.parametrize("name", ["uniform", "range"])
@pytest.mark.parametrize("alike", [True, False])
def test_an_assignment_is_made_in_short_steps(name: str, alike: bool) -> None:
    chance, topics = random.Random(5), [topic_id(number) for number in range(1, TOPICS + 1)]
    read = frozenset(topics)
    members = {
        f"m{number}": MemberSpec(read if alike else frozenset(chance.sample(topics, chance.randint(1, 5))))
        for number in range(MEMBERS)
    }
    if alike and name == "range":
        members = dict(list(members.items())[:1_000])  # each of them may have a range of each topic
    group = GroupSpec(members, dict.fromkeys(topics, 20), is_homogeneous=alike)

    assigned = in_short_steps(ASSIGNORS[name](group))

    assert sum(len(indexes) for parts in assigned.values() for indexes in parts.values()) == 20 * TOPICS


class Compared(UUID):
    """The id of a topic that counts its comparisons, each a call in Python."""

    count: ClassVar[int] = 0

    def __lt__(self, other: object) -> bool:
        Compared.count += 1
        return super().__lt__(other)  # type: ignore[operator]

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


@pytest.mark.parametrize("alike", [True, False])
def test_thousands_of_topics_are_put_in_order_by_numbers_which_compare_fast(alike: bool) -> None:
    chance = random.Random(5)
    topics = [Compared(int=chance.getrandbits(128)) for _ in range(2 * TOPICS)]
    members = {
        f"m{number}": MemberSpec(frozenset(topics if alike else topics[number:])) for number in range(20)
    }
    group = GroupSpec(members, dict.fromkeys(topics, 5), is_homogeneous=alike)
    Compared.count = 0

    assigned = at_once(ASSIGNORS["uniform"](group))
    has = {name: member._replace(assigned=assigned[name]) for name, member in members.items()}
    again = at_once(ASSIGNORS["uniform"](group._replace(members=has)))

    assert again == assigned
    assert Compared.count <= 2 * len(topics)


@pytest.mark.parametrize("name", ["uniform", "range"])
@pytest.mark.parametrize("alike", [True, False])
def test_a_broker_assigns_that_does_not_know_of_all_partitions_yet(name: str, alike: bool) -> None:
    first, second = topic_id(1), topic_id(2)
    members = {
        "a": MemberSpec({first}, {first: frozenset({0, 3})}),
        "b": MemberSpec({first} if alike else {first, second}, {first: frozenset({1, 2})}),
    }
    group = GroupSpec(members, {first: 2, second: 1}, is_homogeneous=alike)

    assigned = at_once(ASSIGNORS[name](group))

    known = [index for parts in assigned.values() for index in parts.get(first, ()) if index < 2]
    assert sorted(known) == [0, 1]


@pytest.mark.parametrize("expression", [".*", "(a|b|t)*.*[0-9]{1,200}x?", "(x+x+)+y", "((t|x)*)*z"])
def test_an_expression_is_resolved_in_short_steps(expression: str) -> None:
    names = [f"t{number}{'x' * 200}" for number in range(10_000)]

    found = in_short_steps(resolve([expression], names, lambda _: True, 1, 1))

    assert len(found[expression].topics) in (0, len(names))


@pytest.mark.parametrize("expression", ["((a{100}){10}b?){9}", "(((x{1,9}){1,9}){1,9}){1,9}", "(a" * 1_000])
def test_an_expression_that_would_need_much_memory_is_refused_at_once(expression: str) -> None:
    began = time.process_time()

    with pytest.raises(InvalidRegularExpression):
        compiled(expression)

    assert time.process_time() - began < MOST_S
