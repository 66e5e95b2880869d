"""Our assignors against the Java client's: the same members and topics, the same result."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.consumer.assignors import Assigned, MemberSubscription, TopicRacks, assignors
from ottla.protocol.topics import TopicPartition
from peers.java import run_program
from peers.maven import KAFKA_3, KAFKA_4, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

NAMES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
GROUPS = 150
REBALANCES = 5

Members = dict[str, MemberSubscription]
Case = tuple[str, TopicRacks, Members]


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_every_assignor_gives_what_java_gives(version: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    cases = [case for name in NAMES for _ in range(GROUPS) for case in _history(name, chance)]
    file = tmp_path / "cases"
    file.write_text("\n".join(_text(case) for case in cases))

    program = Path(__file__).parent / "java" / "AssignorOracle.java"
    printed = run_program(program, kafka_clients(version), str(file)).splitlines()

    assert len(printed) == len(cases)
    for case, line in zip(cases, printed, strict=True):
        assert line == _ours(case), _text(case)


def _history(name: str, chance: random.Random) -> Iterator[Case]:
    """Give the rebalances of one group: members and topics come and go, and everybody tells what it had."""
    with_racks, alike = chance.random() < 0.3, chance.random() < 0.5
    racks = ["a", "b", "c"] if with_racks else []
    topics = {f"t{index}": _racks(chance, racks) for index in range(chance.randint(1, 4))}
    members: Members = {}
    last: dict[str, Assigned] = {}
    for generation in range(1, REBALANCES + 1):
        _change(members, topics, chance, alike, racks)
        given = assignors(name)[0].assign(topics, members)
        yield name, dict(topics), dict(members)
        for member_id, partitions in given.items():
            if chance.random() < 0.9:  # others miss a generation, and tell of an older one
                last[member_id] = Assigned(tuple(partitions), generation)
        for member_id in members:
            members[member_id] = _telling(name, members[member_id], last.get(member_id))


def _change(
    members: Members,
    topics: dict[str, list[frozenset[str]]],
    chance: random.Random,
    alike: bool,
    racks: list[str],
) -> None:
    for member_id in [each for each in members if chance.random() < 0.3]:
        del members[member_id]
    for _ in range(chance.randint(0 if members else 1, 4)):
        reads = list(topics) if alike else chance.sample(list(topics), chance.randint(1, len(topics)))
        instance = f"static{chance.getrandbits(60)}" if chance.random() < 0.2 else None
        member_id = f"client-{uuid.UUID(int=chance.getrandbits(128))}"
        rack = chance.choice([*racks, None]) if racks else None
        members[member_id] = MemberSubscription(tuple(reads), instance_id=instance, rack=rack)
    if chance.random() < 0.3:
        grown = chance.choice(list(topics))
        topics[grown] = topics[grown] + _racks(chance, racks)
    read = {topic for member in members.values() for topic in member.topics}
    for topic in [topic for topic in topics if topic not in read]:
        del topics[topic]


def _racks(chance: random.Random, racks: list[str]) -> list[frozenset[str]]:
    return [frozenset(chance.sample(racks, 2)) if racks else frozenset() for _ in range(chance.randint(1, 7))]


def _telling(name: str, member: MemberSubscription, last: Assigned | None) -> MemberSubscription:
    assignor = assignors(name)[0]
    data = assignor.user_data(frozenset(member.topics), last)
    if name == "cooperative-sticky" and last is not None:
        return replace(member, user_data=data, owned=last.partitions, generation=last.generation)
    return replace(member, user_data=data)


def _ours(case: Case) -> str:
    name, topics, members = case
    given = assignors(name)[0].assign(topics, members)
    return " ".join(f"{key}={','.join(str(each) for each in sorted(given[key]))}" for key in sorted(given))


def _text(case: Case) -> str:
    name, topics, members = case
    lines = [f"case {name}"]
    for topic, listed in topics.items():
        lines.append(f"topic {topic} {';'.join(_list(sorted(racks)) for racks in listed)}")
    for member_id, member in members.items():
        owned = _list([f"{each.topic}:{each.partition}" for each in member.owned])
        words = [member_id, str(member.generation), member.rack or "-", member.instance_id or "-"]
        data = (member.user_data or b"").hex() or "-"
        lines.append(f"member {' '.join(words)} {_list(member.topics)} {owned} {data}")
    return "\n".join([*lines, "end"])


def _list(words: list[str] | tuple[str, ...]) -> str:
    return ",".join(words) or "-"


def test_partitions_of_a_topic_that_shrank_are_given_to_nobody() -> None:
    gone = TopicPartition("t", 3)
    member = MemberSubscription(("t",), owned=(gone,), generation=1)

    given = assignors("cooperative-sticky")[0].assign({"t": [frozenset()]}, {"m": member})

    assert given == {"m": [TopicPartition("t", 0)]}
