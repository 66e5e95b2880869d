"""Changes of groups: reset offsets with a preview of every partition, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from ottla.admin import EARLIEST, LATEST, Admin
from ottla.admin.group_descriptions import SHARE
from ottla.admin.groups import PartitionProgress, read_progress
from ottla.console.changes.plans import Field, Form, Plan, cut, needs, shown_offsets
from ottla.console.logins.access import Role
from ottla.console.web.fields import named, signed, time_ms, time_zone, whole
from ottla.console.web.formats import moment
from ottla.protocol.topics import TopicPartition

WAYS: Final = ("the oldest record", "the end", "an offset", "a time", "by so many records")


@needs(Role.ADMINISTRATOR, group="group")
async def delete_group(admin: Admin, form: Form) -> Plan:
    """Plan the deletion of a group with its offsets."""
    name = named(form, "group", "the group")
    description = await admin.groups.describe(name)
    fields = (Field("group", "Group", name, "hidden"),)
    if description.members:
        unclear = f"the group has {len(description.members)} members: stop them first"
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
        unclear = f"the group has {len(progress.description.members)} members: stop them first"
        return Plan(title, "Reset", fields, unclear=unclear, topics=frozenset(topics))
    if way not in WAYS:
        unclear = "choose where the group goes on"
        return Plan(title, "Reset", fields, unclear=unclear, topics=frozenset(topics))
    chosen = [
        found
        for found in progress.partitions
        if form.get("topic", "all") in ("all", "", found.partition.topic)
    ]
    committed = {found.partition: found.offset for found in chosen}
    at_ms = time_ms(at, time_zone(form.get("zone", ""))) if way == "a time" else 0
    new = shown_offsets(form, committed) or await _offsets(admin, committed, way, at, at_ms)
    is_share = progress.description.type == SHARE

    async def perform(admin: Admin) -> str:
        await (admin.groups.alter_share_offsets if is_share else admin.groups.commit)(name, new)
        return f"Group {name} goes on at the offsets that were shown."

    summary = f"Group {name} goes on at these offsets."
    if way == "a time":
        at_utc = " ".join(moment(at_ms).split())
        summary += f" They are those of the first records at {at_utc} or later."
    return Plan(
        title, "Reset", fields, summary,
        ("Partition", "Now", "Then", "Lag then"), cut(_rows(chosen, new)),
        typed=name, perform=perform, back=f"/group?{urlencode({'name': name})}", shown=new,
        topics=frozenset(topics),
    )  # fmt: skip


def _rows(
    chosen: Sequence[PartitionProgress], new: Mapping[TopicPartition, int]
) -> list[tuple[str, str, str, str]]:
    """Return each partition with its offset now and then, and the lag then."""
    return [
        (
            str(found.partition),
            "none" if found.offset is None else str(found.offset),
            str(new[found.partition]),
            "" if found.end_offset is None else str(found.end_offset - new[found.partition]),
        )
        for found in sorted(chosen, key=lambda found: found.partition)
    ]


async def _offsets(
    admin: Admin, committed: dict[TopicPartition, int | None], way: str, at: str, at_ms: int
) -> dict[TopicPartition, int]:
    starts = await admin.offsets.find(dict.fromkeys(committed, EARLIEST))
    ends = await admin.offsets.find(dict.fromkeys(committed, LATEST))
    match way:
        case "the oldest record":
            wanted = starts
        case "the end":
            wanted = ends
        case "an offset":
            wanted = dict.fromkeys(committed, whole(at, "the offset"))
        case "a time":
            wanted = await admin.offsets.find(dict.fromkeys(committed, at_ms))
        case _:
            step = signed(at, "the number")
            wanted = {partition: (offset or 0) + step for partition, offset in committed.items()}
    # An offset outside of the log would be reset again, by the members, and elsewhere.
    return {
        partition: min(max(offset, starts[partition]), ends[partition])
        for partition, offset in wanted.items()
    }
