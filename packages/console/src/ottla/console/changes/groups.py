"""Changes of groups: reset offsets with a preview of every partition, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from ottla.admin import EARLIEST, LATEST, Admin
from ottla.admin.group_descriptions import SHARE
from ottla.admin.groups import GroupDescription, PartitionProgress, read_progress
from ottla.console.changes.plans import Field, Form, Plan, cut, needs, shown_offsets
from ottla.console.logins.access import Role
from ottla.console.web.fields import named, signed, time_ms, time_zone, whole
from ottla.console.web.formats import count, moment
from ottla.protocol.topics import TopicPartition

BY_RECORDS: Final = "by so many records"
WAYS: Final = ("the oldest record", "the end", "an offset", "a time", BY_RECORDS)


@needs(Role.ADMINISTRATOR, group="group")
async def delete_group(admin: Admin, form: Form) -> Plan:
    """Plan the deletion of a group with its offsets."""
    name = named(form, "group", "the group")
    description = await admin.groups.describe(name)
    fields = (Field("group", "Group", name, "hidden"),)
    if description.members:
        unclear = _has_members(description)
        return Plan(f"Delete group {name}", "Delete", fields, unclear=unclear)

    async def perform(admin: Admin) -> str:
        await admin.groups.delete(name)
        return f"Group {name} is deleted with its offsets."

    summary = f"Group {name} is deleted with its commits; its members begin where auto.offset.reset says."
    return Plan(
        f"Delete group {name}", "Delete", fields, summary, typed=name, perform=perform, back="/groups"
    )


@needs(Role.OPERATOR, group="group")
async def reset_group(admin: Admin, form: Form) -> Plan:
    """Plan new offsets of a group, of one topic or of all that it reads."""
    name, way, at = named(form, "group", "the group"), form.get("to", ""), form.get("at", "").strip()
    progress = await read_progress(admin.groups, admin.offsets, admin.topics, name)
    topics = sorted({found.partition.topic for found in progress.partitions})
    fields = (
        Field("group", "Group", name, "hidden"),
        Field("topic", "Topic", form.get("topic", ""), "choice", ("all", *topics)),
        Field("to", "Go on at", way, "choice", WAYS),
        Field("at", "Offset, time such as 2026-11-26T08:00, or number of records (may be negative)", at),
        Field("zone", "Time zone of the time", form.get("zone", "UTC")),
    )
    title = f"Reset the offsets of {name}"
    if progress.description.members:
        unclear = _has_members(progress.description)
        return Plan(title, "Reset", fields, unclear=unclear, topics=frozenset(topics))
    if way not in WAYS:
        unclear = "choose where the group goes on"
        return Plan(title, "Reset", fields, unclear=unclear, topics=frozenset(topics))
    chosen = [
        found
        for found in progress.partitions
        if form.get("topic", "all") in ("all", "", found.partition.topic)
    ]
    positions = {found.partition: found.position for found in chosen}
    at_ms = time_ms(at, time_zone(form.get("zone", ""))) if way == "a time" else 0
    new = shown_offsets(form, positions) or await _offsets(admin, positions, way, at, at_ms)
    is_share = progress.description.type == SHARE

    async def perform(admin: Admin) -> str:
        await (admin.groups.alter_share_offsets if is_share else admin.groups.commit)(name, new)
        return f"Group {name} goes on at the offsets that were shown."

    summary = f"Group {name} goes on at these offsets.{_read_again(chosen, new)}"
    if way == BY_RECORDS and any(found.acknowledged_ahead and found.lag for found in chosen):
        summary += " They count from its start: brokers do not tell which records after it are finished."
    if way == "a time":
        at_utc = " ".join(moment(at_ms).split())
        summary += f" They are those of the first records at {at_utc} or later."
    return Plan(
        title, "Reset", fields, summary,
        ("Partition", "Start now" if is_share else "Now", "Then", "Lag now", "Lag then"),
        cut(_rows(chosen, new)), typed=name, perform=perform, back=f"/group?{urlencode({'name': name})}",
        shown=new, topics=frozenset(topics),
    )  # fmt: skip


def _has_members(description: GroupDescription) -> str:
    if len(description.members) == 1:
        return "the group has 1 member: stop it first"
    return f"the group has {len(description.members)} members: stop them first"


def _read_again(chosen: Sequence[PartitionProgress], new: Mapping[TopicPartition, int]) -> str:
    """Return how many of the records that a group has finished it gets again, from new offsets on."""
    again, is_least = 0, False
    for found in chosen:
        if found.end_offset is None or found.lag is None or found.offset is None:
            continue
        again += max(0, found.end_offset - new[found.partition] - max(0, found.lag))
        is_skipping = found.offset < new[found.partition] < found.end_offset
        is_least |= is_skipping and bool(found.acknowledged_ahead) and found.lag > 0
    if not again:
        return " It may get records again that it has finished." if is_least else ""
    records = "1 record" if again == 1 else f"{count(again)} records"
    return f" It gets {'at least ' if is_least else ''}{records} again that it has finished."


def _rows(
    chosen: Sequence[PartitionProgress], new: Mapping[TopicPartition, int]
) -> list[tuple[str, str, str, str, str]]:
    """Return each partition with its offset now and then, and the lags."""
    return [
        (
            str(found.partition),
            "none" if found.offset is None else str(found.offset),
            str(new[found.partition]),
            "" if found.lag is None else str(found.lag),
            "" if found.end_offset is None else str(found.end_offset - new[found.partition]),
        )
        for found in sorted(chosen, key=lambda found: found.partition)
    ]


async def _offsets(
    admin: Admin, positions: dict[TopicPartition, int | None], way: str, at: str, at_ms: int
) -> dict[TopicPartition, int]:
    starts = await admin.offsets.find(dict.fromkeys(positions, EARLIEST))
    ends = await admin.offsets.find(dict.fromkeys(positions, LATEST))
    match way:
        case "the oldest record":
            wanted = starts
        case "the end":
            wanted = ends
        case "an offset":
            wanted = dict.fromkeys(positions, whole(at, "the offset"))
        case "a time":
            wanted = await admin.offsets.find(dict.fromkeys(positions, at_ms))
        case _:
            step = signed(at, "the number")
            wanted = {partition: (offset or 0) + step for partition, offset in positions.items()}
    # An offset outside of the log would be reset again, by the members, and elsewhere.
    return {
        partition: min(max(offset, starts[partition]), ends[partition])
        for partition, offset in wanted.items()
    }
