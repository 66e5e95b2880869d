"""The parts of our coordinator of streams groups against Kafka's own: the same cases, the same outcome."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.groups.streams.members import Holders, MemberState, StreamsMember, reconciled
from ottla.broker.groups.streams.sticky_assignor import AssignedMember, AssignedSubtopology, assign
from ottla.broker.groups.streams.tasks import HeldTasks, Tasks, TaskSets, grouped_active
from ottla.broker.groups.streams.tasks import TaskId as Task
from ottla.broker.groups.streams.topic_configuration import configure
from ottla.broker.groups.streams.topology import received
from ottla.broker.runtime.loop_budget import at_once
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import streams_groups
from ottla.protocol.messages.streams_group_describe import TopicInfo
from peers.java import run_program
from peers.maven import kafka_4_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

GROUPS, REBALANCES, TOPOLOGIES, MEMBERS = 2_000, 5, 5_000, 5_000

Case = dict[str, Any]


def _oracle(cases: list[Case], folder: Path) -> list[Any]:
    """Return what Kafka's parts make of the cases."""
    file = folder / "cases"
    file.write_text("\n".join(json.dumps(case) for case in cases))
    program = Path(__file__).parent / "java" / "StreamsGroupOracle.java"
    printed = run_program(program, kafka_4_server(), str(file)).splitlines()
    assert len(printed) == len(cases)
    return [json.loads(line) for line in printed]


# ---- the assignor


def test_the_sticky_assignor_gives_what_kafka_gives(tmp_path: Path) -> None:
    chance = random.Random(1071)
    cases = [case for _ in range(GROUPS) for case in _rebalances(chance)]

    for case, theirs in zip(cases, _oracle(cases, tmp_path), strict=True):
        assert _assigned(case) == theirs, json.dumps(case)


def _rebalances(chance: random.Random) -> list[Case]:
    """Return rebalances of one group: members and processes come and go with what they had."""
    cases: list[Case] = []
    names = sorted(f"{chance.randint(0, 30)}" for _ in range(chance.randint(1, 5)))
    subtopologies = {name: [chance.randint(1, 12), chance.random() < 0.6] for name in names}
    members: dict[str, dict[str, Any]] = {}
    replicas = chance.randint(0, 3)
    for _ in range(REBALANCES):
        for gone in [member for member in members if chance.random() < 0.25]:
            del members[gone]
        for _ in range(chance.randint(0 if members else 1, 5)):
            process = f"process-{chance.randint(0, 4)}"
            offsets = _offsets(chance, subtopologies) if chance.random() < 0.3 else {}
            members[f"member-{chance.getrandbits(40):x}"] = {
                "process": process, "active": {}, "standby": {}, "offsets": offsets,
            }  # fmt: skip
        case: Case = {
            "part": "assign", "subtopologies": subtopologies, "replicas": replicas,
            "members": json.loads(json.dumps(members)),
        }  # fmt: skip
        cases.append(case)
        for member_id, (active, standby) in _assigned(case).items():
            members[member_id].update(active=active, standby=standby)
            if chance.random() < 0.5:
                members[member_id]["offsets"] = _offsets(chance, subtopologies)
    return cases


def _offsets(chance: random.Random, subtopologies: dict[str, list[Any]]) -> dict[str, dict[int, int]]:
    found = {
        name: {number: chance.randint(0, 5) for number in range(tasks) if chance.random() < 0.3}
        for name, (tasks, is_stateful) in subtopologies.items()
        if is_stateful
    }
    return {name: offsets for name, offsets in found.items() if offsets}


def _assigned(case: Case) -> dict[str, list[dict[str, list[int]]]]:
    members = {
        member_id: AssignedMember(
            process_id=member["process"],
            active=_sets(member["active"]),
            standby=_sets(member["standby"]),
            task_offsets={
                name: {int(number): offset for number, offset in offsets.items()}
                for name, offsets in member["offsets"].items()
            },
        )
        for member_id, member in case["members"].items()
    }
    subtopologies = {name: AssignedSubtopology(*part) for name, part in case["subtopologies"].items()}
    made = at_once(assign(members, subtopologies, case["replicas"]))
    return {member_id: [_shown(tasks.active), _shown(tasks.standby)] for member_id, tasks in made.items()}


# ---- the topics


def test_topics_of_a_topology_are_configured_as_kafka_does(tmp_path: Path) -> None:
    chance = random.Random(1)
    cases = [_topology(chance) for _ in range(TOPOLOGIES)]

    outcomes = _oracle(cases, tmp_path)

    differing = [
        json.dumps([case, theirs, ours])
        for case, theirs in zip(cases, outcomes, strict=True)
        if (ours := _configured(case)) != _comparable(theirs)
    ]
    assert not differing, differing[0]
    statuses = {theirs.get("status", "ready") for theirs in outcomes}
    assert {"ready", 1, 2, 3} <= statuses
    assert any("error" in theirs for theirs in outcomes)


def _topology(chance: random.Random) -> Case:
    """Return a topology of a few parts, which may contradict itself, and some topics of a cluster."""
    count = chance.randint(1, 5)
    inputs = [f"in{number}" for number in range(3)]
    internal = [f"r{number}" for number in range(count)]
    parts = []
    for number in range(count):
        sources = chance.sample(inputs, chance.choice([0, 1, 1, 2]))
        read = chance.sample(internal, min(count, chance.choice([0, 0, 1, 2])))
        repartition = {name: chance.choice([0, 0, 0, 2, 4]) for name in read}
        copartition = []
        if chance.random() < 0.4 and (sources or read):
            places = [list(range(len(sources))), list(range(len(read)))]
            copartition.append([chance.sample(group, chance.randint(0, len(group))) for group in places])
        parts.append({
            "id": str(number), "sources": sources, "repartition": repartition, "copartition": copartition,
            "sinks": chance.sample(internal, chance.choice([0, 1, 1, 2]) if count > 1 else 0),
            "changelogs": {f"c{number}": 0} if chance.random() < 0.5 else {},
        })  # fmt: skip
    existing = {name: chance.choice([2, 4, 4]) for name in inputs if chance.random() < 0.95}
    for name in [*internal, *(f"c{number}" for number in range(count))]:
        if chance.random() < 0.3:
            existing[name] = chance.choice([2, 4, 4, 4])
    return {"part": "configure", "subtopologies": parts, "existing": existing}


def _configured(case: Case) -> Any:
    topology = streams_groups.Topology(
        epoch=1,
        subtopologies=[
            streams_groups.Subtopology(
                subtopology_id=part["id"],
                source_topics=part["sources"],
                repartition_sink_topics=part["sinks"],
                repartition_source_topics=_infos(part["repartition"]),
                state_changelog_topics=_infos(part["changelogs"]),
                copartition_groups=[
                    streams_groups.CopartitionGroup(source_topics=sources, repartition_source_topics=internal)
                    for sources, internal in part["copartition"]
                ],
            )
            for part in case["subtopologies"]
        ],
    )
    try:
        made = configure(received(topology), case["existing"].get)
    except KafkaError as error:
        return {"error": type(error).__name__}
    outcome: dict[str, Any] = {
        "missing": {name: [topic.partitions, -1] for name, topic in made.missing.items()},
        "tasks": {name: part.tasks for name, part in (made.subtopologies or {}).items()},
    }
    if made.status is not None:
        outcome |= {"status": made.status.code, "detail": made.status.detail}
    return outcome


def _infos(topics: dict[str, int]) -> list[TopicInfo]:
    return [TopicInfo(name=name, partitions=partitions) for name, partitions in topics.items()]


def _comparable(theirs: Any) -> Any:
    """Return Kafka's outcome; each of its exceptions is our answer that the topology is not valid.

    A topology that passes its checks and then fails is answered with UNKNOWN_SERVER_ERROR by Kafka.
    """
    if "error" in theirs:
        return {"error": "StreamsInvalidTopology"}
    return theirs


# ---- the member


def test_members_are_reconciled_as_kafka_does(tmp_path: Path) -> None:
    chance = random.Random(2)
    cases = [_member_case(chance) for _ in range(MEMBERS)]

    states = set()
    for case, theirs in zip(cases, _oracle(cases, tmp_path), strict=True):
        assert _reconciled(case) == theirs, json.dumps(case)
        states.add("error" if isinstance(theirs, dict) else theirs[2])
    assert states >= {1, 2, 3, "error"}


def _member_case(chance: random.Random) -> Case:
    """Return a member with some tasks of two subtopologies, its target, and who has the tasks beside it."""
    tasks = [(name, number) for name in ("0", "1") for number in range(3)]

    def some(chosen: float) -> dict[str, list[int]]:
        sets: dict[str, list[int]] = {}
        for name, number in tasks:
            if chance.random() < chosen:
                sets.setdefault(name, []).append(number)
        return sets

    def held(chosen: float) -> list[Any]:
        active = {
            name: {str(number): chance.randint(1, 9) for number in numbers}
            for name, numbers in some(chosen).items()
        }
        return [active, some(chosen), some(chosen)]

    assigned, pending = held(0.3), held(0.2)
    holders: list[dict[str, Any]] = [{}, {}, {}]
    for task in tasks:
        key = f"{task[0]}_{task[1]}"
        if chance.random() < 0.3:
            holders[0][key] = chance.choice(["mine", "other"])
        for replicas in holders[1:]:
            if chance.random() < 0.3:
                replicas[key] = chance.sample(["mine", "other"], chance.randint(1, 2))
    for tasks_held in (assigned, pending):  # a member is among the holders of what it has
        for name, epochs in tasks_held[0].items():
            holders[0].update((f"{name}_{number}", "mine") for number in epochs)
        for replicas, sets in zip(holders[1:], tasks_held[1:], strict=True):
            for name, numbers in sets.items():
                for number in numbers:
                    replicas[f"{name}_{number}"] = sorted({*replicas.get(f"{name}_{number}", []), "mine"})
    epoch = chance.randint(8, 10)
    state = chance.choice([1, 1, 2, 2, 3, 127])
    if state != MemberState.UNREVOKED_TASKS:
        pending = [{}, {}, {}]
    owned = None if chance.random() < 0.3 else [some(0.2), some(0.2), some(0.2)]
    return {
        "part": "reconcile",
        "member": {
            "epoch": epoch, "previous": epoch - 1, "state": state, "process": "mine",
            "assigned": assigned, "pending": pending,
        },
        "epoch": 10, "target": [some(0.4), some(0.3), some(0.2)],
        "owned": None if owned is None else _in_its_roles(owned, assigned, pending),
        "active": holders[0], "standby": holders[1], "warmup": holders[2],
    }  # fmt: skip


def _in_its_roles(owned: list[Any], *held: list[Any]) -> list[Any]:
    """Return the tasks that are owned, each that the member has only in the roles in which it has it.

    In another role it counts as given up with Kafka, and with us it does not.
    """
    has = [{(name, int(number)) for tasks in held for name in tasks[role] for number in tasks[role][name]}
           for role in range(3)]  # fmt: skip
    everywhere = set().union(*has)
    kept: list[Any] = []
    for sets, in_role in zip(owned, has, strict=True):
        elsewhere = everywhere - in_role
        left = {
            name: [number for number in numbers if (name, number) not in elsewhere]
            for name, numbers in sets.items()
        }
        kept.append({name: numbers for name, numbers in left.items() if numbers})
    return kept


class _GivenHolders(Holders):
    """The holders of a case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._active = {_task(key): process for key, process in case["active"].items()}
        self._standby = {_task(key): set(processes) for key, processes in case["standby"].items()}
        self._warmup = {_task(key): set(processes) for key, processes in case["warmup"].items()}


def _task(key: str) -> Task:
    name, _, number = key.rpartition("_")
    return Task(name, int(number))


def _reconciled(case: Case) -> Any:
    member = case["member"]
    before = StreamsMember(
        id="member",
        epoch=member["epoch"],
        previous_epoch=member["previous"],
        state=MemberState(member["state"]),
        process_id=member["process"],
        assigned=_held(member["assigned"]),
        pending_revocation=_held(member["pending"]),
    )
    owned = None if case["owned"] is None else Tasks(*map(_sets, case["owned"]))
    target = Tasks(*map(_sets, case["target"]))
    try:
        after = reconciled(before, case["epoch"], target, owned, _GivenHolders(case))
    except KafkaError as error:
        return {"error": f"{type(error).__name__}Exception"}
    return [
        after.epoch,
        after.previous_epoch,
        int(after.state),
        _shown_held(after.assigned),
        _shown_held(after.pending_revocation),
    ]


def _held(given: list[Any]) -> HeldTasks:
    active = {
        Task(name, int(number)): epoch
        for name, epochs in given[0].items()
        for number, epoch in epochs.items()
    }
    return HeldTasks(grouped_active(active), _sets(given[1]), _sets(given[2]))


def _shown_held(held: HeldTasks) -> list[Any]:
    active = {
        name: {str(number): epochs[number] for number in sorted(epochs)}
        for name, epochs in held.active.items()
    }
    return [active, _shown(held.standby), _shown(held.warmup)]


def _sets(given: dict[str, list[int]]) -> TaskSets:
    return {name: frozenset(numbers) for name, numbers in given.items()}


def _shown(sets: TaskSets) -> dict[str, list[int]]:
    return {name: sorted(numbers) for name, numbers in sets.items()}
