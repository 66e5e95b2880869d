"""Changes of replicas and leaders: move partitions, cancel moves, elect the preferred leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from ottla.admin import Admin
from ottla.admin.balancing import TooFewBrokers, balanced
from ottla.admin.reassigning import (
    MalformedReassignment,
    PartitionPlan,
    cancel,
    current_plans,
    decode_plans,
    encode_plans,
    execute,
    verify,
)
from ottla.client.cluster import not_alive
from ottla.client.errors import ClientError
from ottla.console.changes.plans import SHOWN, Field, Form, Plan, cut, needs, shown_offsets
from ottla.console.clusters.replica_grid import planned_grid
from ottla.console.logins.access import Role
from ottla.console.web.fields import Unclear, is_whole, settings, whole
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

THROTTLE_LOOK_S: Final = 2.0
"""How often it is looked whether moves are over, and their throttle is to be removed."""
MOST_MOVED: Final = 5_000
"""Partitions of one plan here; `ottla reassign` has no such bound."""
_COUNT, _SIZE = "the number of replicas", "their bytes"
_BACK: Final = "/reassignments"
Placement = Mapping[TopicPartition, Sequence[int]]


@needs(Role.ADMINISTRATOR)
async def reassign(admin: Admin, form: Form) -> Plan:
    """Plan the move of partitions: spread evenly over brokers, or placed by hand."""
    fields = (
        Field("topics", "Topics, divided by commas; all without", form.get("topics", "")),
        Field("brokers", "To brokers, such as 1,2,3; all without", form.get("brokers", "")),
        Field("replicas", "Replicas of each; as many as now without", form.get("replicas", ""), "number"),
        Field("by", "Spread evenly", form.get("by", _COUNT), "choice", (_COUNT, _SIZE)),
        Field("lines", "Or by hand, TOPIC:PARTITION=1,2,3 in lines", form.get("lines", ""), "lines"),
        Field(
            "throttle", "Bytes per second that each broker copies at most", form.get("throttle", ""), "number"
        ),
    )
    title = "Move partitions"
    try:
        present = {plan.partition: plan.replicas for plan in await current_plans(admin)}
        wanted = _shown_plan(form, present) or await _wanted(admin, form, present)
        throttle = whole(form["throttle"], "the bytes per second", least=1) if form.get("throttle") else None
    except Unclear as error:
        return Plan(title, "Move", fields, unclear=str(error))
    target = {partition: tuple(to) for partition, to in wanted.items() if tuple(to) != present[partition]}
    if not target:
        return Plan(title, "Move", fields, unclear="all replicas are where they are to be")
    plans = [PartitionPlan(partition, replicas) for partition, replicas in sorted(target.items())]
    added = sum(len(set(target[partition]) - set(present[partition])) for partition in target)

    async def perform(admin: Admin) -> str:
        await execute(admin, plans, throttle=throttle, additional=True)
        return f"The move of {_partitions(len(plans))} began."

    async def end_throttle(admin: Admin) -> str:
        return f"The throttle of the move is removed: {', '.join(await without_throttle(admin, plans))}."

    summary = (
        f"Other replicas, or another order, for {_partitions(len(plans))}; the first broker of each leads."
    )
    if added:
        summary += f" Copies to make: {added}, " + (
            "as fast as the network allows." if throttle is None
            else f"each broker with at most {throttle} bytes per second; the console removes this bound at "
            "the end. A console that ends before leaves it, among the settings."
        )  # fmt: skip
    rows = [
        (str(partition), _listed(present[partition]), _listed(replicas))
        for partition, replicas in sorted(target.items())
    ]
    return Plan(
        title, "Move", fields, summary, ("Partition", "Now", "Then"), cut(rows), perform=perform,
        back=_BACK, shown_text=encode_plans(plans), picture=planned_grid(present, target),
        after=None if throttle is None else end_throttle,
    )  # fmt: skip


async def without_throttle(admin: Admin, plans: Sequence[PartitionPlan]) -> list[str]:
    """Remove the throttle of moves once nothing moves any more, and return where it was."""
    while True:
        await asyncio.sleep(THROTTLE_LOOK_S)
        with suppress(ClientError, KafkaError):  # a controller that is away is asked again
            if not await admin.partitions.reassignments():  # those of others may need the same throttle
                return (await verify(admin, plans))[1]


async def _wanted(admin: Admin, form: Form, present: Placement) -> Placement:
    racks = {broker.id: broker.rack for broker in (await admin.brokers.describe()).brokers}
    if lines := form.get("lines", "").strip():
        return _by_hand(lines, present, racks)
    if not any(name in form for name in ("topics", "brokers", "replicas")):
        raise Unclear("choose what moves, and where to; without anything, all is spread evenly")
    topics = {part.strip() for part in form.get("topics", "").split(",") if part.strip()}
    if unknown := topics - {partition.topic for partition in present}:
        raise Unclear(f"there is no topic {min(unknown)!r}")
    chosen = {
        partition: replicas
        for partition, replicas in present.items()
        if (partition.topic in topics if topics else not partition.topic.startswith("__"))
    }
    if len(chosen) > MOST_MOVED:
        raise Unclear(f"{len(chosen)} partitions are more than {MOST_MOVED}: name topics")
    brokers = _brokers(form.get("brokers", ""), racks) if form.get("brokers", "").strip() else list(racks)
    factor = whole(form["replicas"], "replicas", least=1) if form.get("replicas", "").strip() else None
    weights = await _sizes(admin) if form.get("by") == _SIZE else None
    try:
        # Thousands of partitions take their time.
        return await asyncio.to_thread(
            balanced, chosen, {broker: racks[broker] for broker in brokers},
            weights=weights, replication_factor=factor,
        )  # fmt: skip
    except TooFewBrokers as error:
        raise Unclear(str(error).partition(":")[0]) from None


def _by_hand(lines: str, present: Placement, known: Mapping[int, str | None]) -> Placement:
    found = {}
    for name, brokers in settings(lines).items():
        partition = _partition(name)
        if partition not in present:
            raise Unclear(f"there is no partition {name}")
        found[partition] = tuple(_brokers(brokers, known))
    return found


def _partition(text: str) -> TopicPartition:
    topic, _, index = text.strip().rpartition(":")
    if not (topic and is_whole(index)):
        raise Unclear(f"{text!r} must be TOPIC:PARTITION")
    return TopicPartition(topic, int(index))


def _brokers(text: str, known: Mapping[int, str | None]) -> list[int]:
    found = [whole(part, "a broker's id") for part in text.split(",")]
    if unknown := set(found) - known.keys():
        raise Unclear(not_alive(min(unknown), known))
    if len(set(found)) != len(found):
        raise Unclear(f"a broker is named twice in {text}")
    return found


def _shown_plan(form: Form, present: Placement) -> Placement | None:
    """Return the plan of the preview that a form was sent from; None for a form without one."""
    if not form.get(SHOWN):
        return None
    try:
        plans = decode_plans(form[SHOWN])
    except MalformedReassignment:
        raise Unclear("the preview cannot be read: look at it again") from None
    if not present.keys() >= {plan.partition for plan in plans}:
        raise Unclear("a partition of the preview is not there any more: look at it again")
    return {plan.partition: plan.replicas for plan in plans}


async def _sizes(admin: Admin) -> dict[TopicPartition, int]:
    """Return the size of the largest replica of each partition."""
    sizes: dict[TopicPartition, int] = {}
    for log_dir in (await admin.cluster_state()).log_dirs:
        for replica in log_dir.replicas:
            sizes[replica.partition] = max(sizes.get(replica.partition, 0), replica.size_bytes)
    return sizes


@needs(Role.ADMINISTRATOR)
async def cancel_reassignment(admin: Admin, form: Form) -> Plan:
    """Plan the end of moves: of one partition, or of all."""
    which = form.get("partition", "")
    fields = (Field("partition", "Partition", which, "hidden"),)
    title = "Cancel moves" if which == "all" else f"Cancel the move of {which}"
    wanted = None if which == "all" else [_partition(which)]
    moves = await admin.partitions.reassignments(wanted)
    if not moves:
        return Plan(title, "Cancel", fields, unclear="nothing moves any more")
    chosen = [move.partition for move in moves]

    async def perform(admin: Admin) -> str:
        cancelled, _ = await cancel(admin, chosen)
        return f"The move of {_partitions(len(cancelled))} is cancelled, and the throttle of it removed."

    rows = [(str(move.partition), _listed(move.adding), _listed(move.removing)) for move in moves]
    summary = "New replicas are dropped with what they have copied; the old ones stay."
    return Plan(
        title, "Cancel the moves", fields, summary, ("Partition", "Dropped on", "Stays on"), cut(rows),
        perform=perform, back=_BACK, shown_text=" ".join(map(str, chosen)),
    )  # fmt: skip


@needs(Role.OPERATOR)
async def elect_preferred(admin: Admin, form: Form) -> Plan:
    """Plan the election of the first replicas as leaders, where others lead."""
    topic = form.get("topic", "").strip()
    fields = (Field("topic", "Topic; all without", topic),)
    title = "Elect preferred leaders"
    found = [
        (TopicPartition(described.name, index), partition)
        for described in await admin.topics.list(internal=True)
        if topic in ("", described.name)
        for index, partition in sorted(described.partitions.items())
        if partition.replicas and partition.leader != partition.replicas[0]
    ]
    able = {
        where: partition.replicas[0] for where, partition in found if partition.replicas[0] in partition.isr
    }
    rows = [
        (
            str(where),
            "none" if partition.leader < 0 else str(partition.leader),
            str(partition.replicas[0]) if where in able else f"stays: {partition.replicas[0]} is not in sync",
        )
        for where, partition in found
    ]
    if not able:
        unclear = rows[0][2].partition(": ")[2] if rows else "each partition is led by its first replica"
        return Plan(title, "Elect", fields, unclear=unclear)
    new = shown_offsets(form, able) or able

    async def perform(admin: Admin) -> str:
        outcomes = await admin.partitions.elect_leaders(list(new))
        failed = sorted((str(where), error) for where, error in outcomes.items() if error is not None)
        done = f"The first replica of {_partitions(len(outcomes) - len(failed))} leads now."
        reasons = "; ".join(f"{where}: {error}" for where, error in failed[:5])
        return f"{done} Not of {len(failed)}: {reasons}" if failed else done

    summary = f"Another leader for {_partitions(len(able))}. Clients go on within moments; nothing is copied."
    return Plan(
        title, "Elect", fields, summary, ("Partition", "Leader now", "Then"), cut(rows), perform=perform,
        back=_BACK, shown=new,
    )  # fmt: skip


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
