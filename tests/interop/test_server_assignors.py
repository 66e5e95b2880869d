"""The assignors of our coordinator against those of Kafka's: the same members and topics, the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.groups.assigned.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
from ottla.broker.groups.share import assignor as of_share_groups
from ottla.broker.runtime.loop_budget import at_once
from peers.java import run_program
from peers.maven import KAFKA_4, classpath

pytestmark = [pytest.mark.java, pytest.mark.timeout(1_800)]

REBALANCES = 5
COORDINATOR = f"org.apache.kafka:kafka-group-coordinator:{KAFKA_4}"


@pytest.mark.parametrize("groups", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_assignor_gives_what_kafkas_coordinator_gives(groups: int, tmp_path: Path) -> None:
    """Compare `groups` groups in as many rebalances as each has: 100,000 in the slow run."""
    chance = random.Random(11)
    cases = [
        (name, group)
        for number in range(groups)
        for name, group in _history(["uniform", "uniform", "range"][number % 3], chance)
    ]
    printed = _oracle([_text(name, group) for name, group in cases], tmp_path)

    assert len(cases) == groups * REBALANCES
    for (name, group), line in zip(cases, printed, strict=True):
        assert line == _ours(name, group), _text(name, group)


def _oracle(cases: list[str], folder: Path) -> list[str]:
    """Return what Kafka's assignors give in these cases."""
    file = folder / "cases"
    file.write_text("\n".join(cases))
    program = Path(__file__).parent / "java" / "ServerAssignorOracle.java"
    class_path = classpath(COORDINATOR, "org.slf4j:slf4j-simple:1.7.36")
    printed = run_program(program, class_path, str(file), timeout_s=1_200).splitlines()
    assert len(printed) == len(cases)
    return printed


def _history(name: str, chance: random.Random) -> Iterator[tuple[str, GroupSpec]]:
    """Give the rebalances of one group: members and topics come, change and go."""
    alike = chance.random() < 0.5
    counts = {UUID(int=number): chance.randint(1, 9) for number in range(1, chance.randint(2, 8))}
    members: dict[str, MemberSpec] = {}
    born = 0
    for _ in range(REBALANCES):
        for member_id in [member_id for member_id in members if chance.random() < 0.25]:
            del members[member_id]
        for _ in range(chance.randint(0 if members else 1, 5)):
            born += 1
            instance = f"i{chance.randint(0, 10**9)}" if chance.random() < 0.2 else None
            members[f"m{chance.randint(0, 10**6)}x{born}"] = MemberSpec((), instance_id=instance)
        if chance.random() < 0.3:
            counts[chance.choice(list(counts))] += chance.randint(1, 4)
        read = chance.sample(sorted(counts), chance.randint(1, len(counts)))
        for member_id, member in members.items():
            if alike:
                members[member_id] = member._replace(topics=frozenset(read))
            elif not member.topics or chance.random() < 0.2:
                some = chance.sample(sorted(counts), chance.randint(0, len(counts)))
                members[member_id] = member._replace(topics=frozenset(some))
        group = GroupSpec(dict(members), dict(counts), _is_homogeneous(members))
        yield name, group
        for member_id, assigned in at_once(ASSIGNORS[name](group)).items():
            members[member_id] = members[member_id]._replace(assigned=assigned)


def _is_homogeneous(members: dict[str, MemberSpec]) -> bool:
    return len({frozenset(member.topics) for member in members.values()}) == 1


def _text(name: str, group: GroupSpec) -> str:
    lines = [f"case {name} {'HOMOGENEOUS' if group.is_homogeneous else 'HETEROGENEOUS'}"]
    lines += [f"topic {topic.int} {count}" for topic, count in group.partition_counts.items()]
    for member_id, member in group.members.items():
        topics = ",".join(str(topic.int) for topic in sorted(member.topics)) or "-"
        lines.append(
            f"member {member_id} {member.instance_id or '-'} {topics} {_owned(member.assigned) or '-'}"
        )
    return "\n".join([*lines, "end"])


def _owned(assigned: Assignment) -> str:
    return ";".join(
        f"{topic.int}:{','.join(map(str, sorted(indexes)))}" for topic, indexes in sorted(assigned.items())
    )


def _ours(name: str, group: GroupSpec) -> str:
    assigned = at_once(ASSIGNORS[name](group))
    return " ".join(f"{member_id}={_listed(assigned.get(member_id, {}))}" for member_id in group.members)


def _listed(assignment: Assignment) -> str:
    return ",".join(
        f"{topic.int}-{index}" for topic, indexes in sorted(assignment.items()) for index in sorted(indexes)
    )


# ---- share groups


@pytest.mark.parametrize("groups", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_assignor_of_share_groups_gives_what_kafkas_gives(groups: int, tmp_path: Path) -> None:
    """Compare groups of up to 25 members, some of them with topics of which not all partitions have begun.

    In a group whose members read different topics, Kafka leaves a member the partitions of a topic that is
    not read any more, and takes them out where it says to a member what it has; they are not in our targets.
    """
    chance = random.Random(932)
    cases = [case for _ in range(groups) for case in _share_history(chance)]

    printed = _oracle([_share_text(*case) for case in cases], tmp_path)

    assert len(cases) == groups * REBALANCES
    for (members, begun), line in zip(cases, printed, strict=True):
        read = {topic for member in members.values() for topic in member.topics}
        assert _assigned_by_simple(members, begun) == _without_unread(line, read), _share_text(members, begun)


_Begun = dict[UUID, frozenset[int]]


def _share_history(chance: random.Random) -> Iterator[tuple[dict[str, MemberSpec], _Begun]]:
    """Give the rebalances of one share group: more members than partitions, as often as fewer."""
    alike = chance.random() < 0.5
    ids = [UUID(int=chance.getrandbits(62)) for _ in range(chance.randint(1, 6))]
    counts = {topic: chance.randint(1, chance.choice([3, 20])) for topic in ids}
    members: dict[str, MemberSpec] = {}
    begun: _Begun = {topic: frozenset() for topic in ids}
    for _ in range(REBALANCES):
        for member_id in [member_id for member_id in members if chance.random() < 0.3]:
            del members[member_id]
        for _ in range(chance.randint(0 if members else 1, chance.choice([3, 12]))):
            members[f"m{chance.getrandbits(40):x}"] = MemberSpec(())
        read = chance.sample(ids, chance.randint(1, len(ids)))
        for member_id, member in members.items():
            if alike:
                members[member_id] = member._replace(topics=frozenset(read))
            elif not member.topics or chance.random() < 0.2:
                some = chance.sample(ids, chance.randint(0, len(ids)))
                members[member_id] = member._replace(topics=frozenset(some))
        counts[chance.choice(ids)] += chance.choice([0, 0, 3])
        begun = {
            topic: begun[topic] | {number for number in range(count) if chance.random() < 0.9}
            for topic, count in counts.items()
        }
        yield dict(members), begun
        for member_id, assigned in _simple(members, begun).items():
            members[member_id] = members[member_id]._replace(assigned=assigned)


def _share_text(members: dict[str, MemberSpec], begun: _Begun) -> str:
    counts = {topic: max(numbers, default=-1) + 1 for topic, numbers in begun.items()}
    group = GroupSpec(members, counts, _is_homogeneous(members))
    lines = _text("simple", group).splitlines()
    for at, numbers in enumerate(begun.values(), 1):
        lines[at] += f" {','.join(map(str, sorted(numbers))) or '-'}"
    return "\n".join(lines)


def _simple(members: dict[str, MemberSpec], begun: _Begun) -> dict[str, Assignment]:
    steps = of_share_groups.assign(
        {member_id: frozenset(member.topics) for member_id, member in members.items()},
        begun,
        {
            member_id: {topic: frozenset(numbers) for topic, numbers in member.assigned.items()}
            for member_id, member in members.items()
        },
    )
    return at_once(steps)


def _assigned_by_simple(members: dict[str, MemberSpec], begun: _Begun) -> str:
    assigned = _simple(members, begun)
    return " ".join(f"{member_id}={_listed(assigned[member_id])}" for member_id in members)


def _without_unread(line: str, read: set[UUID]) -> str:
    words = (word.partition("=") for word in line.split(" "))
    numbers = {str(topic.int) for topic in read}
    return " ".join(
        f"{name}={','.join(part for part in had.split(',') if part.rpartition('-')[0] in numbers)}"
        for name, _, had in words
    )
