"""The assignors of our coordinator against those of Kafka's: the same members and topics, the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.groups.assigned.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
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
    file = tmp_path / "cases"
    file.write_text("\n".join(_text(name, group) for name, group in cases))

    program = Path(__file__).parent / "java" / "ServerAssignorOracle.java"
    class_path = classpath(COORDINATOR, "org.slf4j:slf4j-simple:1.7.36")
    printed = run_program(program, class_path, str(file), timeout_s=1_200).splitlines()

    assert len(printed) == len(cases) == groups * REBALANCES
    for (name, group), line in zip(cases, printed, strict=True):
        assert line == _ours(name, group), _text(name, group)


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
