"""Changes of topics: create, more partitions, settings, delete records, delete, produce a record."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Final

from ottla.admin import EARLIEST, LATEST, TOPIC, Admin
from ottla.admin.balancing import TooFewBrokers, balanced
from ottla.client.cluster import Topic
from ottla.console.changes.plans import SHOWN, Field, Form, Plan, cut, needs, shown_offsets
from ottla.console.logins.access import Role
from ottla.console.web.fields import Unclear, named, settings, whole
from ottla.producer import Producer, ProducerConfig
from ottla.protocol.topics import TopicPartition

_MOST_DRAWN: Final = 10_000


@needs(Role.OPERATOR, topic="topic")
async def create_topic(admin: Admin, form: Form) -> Plan:
    """Plan a topic, with the placement of its replicas."""
    fields = (
        Field("topic", "Name", form.get("topic", "")),
        Field("partitions", "Partitions", form.get("partitions", "6"), "number"),
        Field("replicas", "Replicas of each", form.get("replicas", "1"), "number"),
        Field("settings", "Settings, KEY=VALUE in lines", form.get("settings", ""), "lines"),
    )
    try:
        name, configs = named(form, "topic", "the name"), settings(form.get("settings", ""))
        count, factor = (
            whole(form.get("partitions", ""), "partitions", least=1),
            whole(form.get("replicas", ""), "replicas", least=1),
        )
        if count > _MOST_DRAWN:
            raise Unclear(f"at most {_MOST_DRAWN} partitions can be placed here")
        racks = {broker.id: broker.rack for broker in (await admin.brokers.describe()).brokers}
        empty: dict[TopicPartition, tuple[int, ...]] = {
            TopicPartition(name, index): () for index in range(count)
        }
        placed = balanced(empty, racks, replication_factor=factor)
    except TooFewBrokers:
        return Plan(
            "Create a topic",
            "Create",
            fields,
            unclear=f"there are only {len(racks)} brokers for {factor} replicas",
        )
    except Unclear as error:
        return Plan("Create a topic", "Create", fields, unclear=str(error))
    by_index = {partition.partition: replicas for partition, replicas in placed.items()}

    async def perform(admin: Admin) -> str:
        await admin.topics.create(name, configs=configs, assignments=by_index)
        return f"Topic {name} is created with {count} partitions."

    return Plan(
        "Create a topic", "Create", fields, f"Topic {name} gets these replicas; the first one of each leads.",
        ("Partition", "Brokers"),
        cut([(str(index), ", ".join(map(str, by_index[index]))) for index in range(count)]),
        perform=perform, back=f"/topics/{name}",
    )  # fmt: skip


@needs(Role.OPERATOR, topic="topic")
async def add_partitions(admin: Admin, form: Form) -> Plan:
    """Plan more partitions of a topic."""
    name = named(form, "topic", "the topic")
    before = len((await admin.topics.describe(name)).partitions)
    total = form.get("total", "")
    fields = (
        Field("topic", "Topic", name, "hidden"),
        Field("total", "Partitions in all", total or str(before + 1), "number"),
    )
    title = f"Add partitions to {name}"
    if not total:
        return Plan(title, "Add", fields, unclear=f"the topic has {before} partitions now")
    wanted = whole(form.get("total", ""), "partitions", least=before + 1)

    async def perform(admin: Admin) -> str:
        await admin.topics.add_partitions(name, wanted)
        return f"Topic {name} has {wanted} partitions now."

    summary = (
        f"Topic {name} gets {wanted - before} more partitions, {wanted} in all. Keys go to other partitions "
        "from then on, so the order of a key's records is lost once. Partitions cannot be taken away again."
    )
    return Plan(title, "Add", fields, summary, typed=name, perform=perform, back=f"/topics/{name}")


@needs(Role.OPERATOR, topic="topic")
async def set_topic_setting(admin: Admin, form: Form) -> Plan:
    """Plan a change of one setting of a topic; an empty value goes back to the default."""
    name, key, value = (
        named(form, "topic", "the topic"),
        form.get("key", "").strip(),
        form.get("value", "").strip(),
    )
    fields = (
        Field("topic", "Topic", name, "hidden"), Field("key", "Key", key),
        Field("value", "Value, empty for the default", value),
    )  # fmt: skip
    title = f"Change a setting of {name}"
    entries = {entry.name: entry for entry in await admin.configs.describe(TOPIC, name)}
    if key not in entries:
        return Plan(title, "Change", fields, unclear=f"{key!r} is no key of a topic" if key else "name a key")
    now = entries[key]

    async def perform(admin: Admin) -> str:
        await admin.configs.alter(TOPIC, name, {key: value or None})
        return f"{key} of {name} is {value or 'the default'} now."

    row = (key, now.value or "", now.source, value or "the default")
    return Plan(
        title, "Change", fields, f"{key} of topic {name} changes for all brokers.",
        ("Key", "Now", "From", "Then"), (row,),
        perform=perform, back=f"/topics/{name}",
    )  # fmt: skip


@needs(Role.OPERATOR, topic="other", reads="topic")
async def copy_settings(admin: Admin, form: Form) -> Plan:
    """Plan that a topic gets the settings that another one has of its own."""
    name, other = named(form, "topic", "the topic"), form.get("other", "").strip()
    fields = (
        Field("topic", "From", name, "hidden"), Field("other", "To topic", other),
        Field("unset", "Set back what only that topic has", form.get("unset", ""), "check"),
    )  # fmt: skip
    title = f"Copy the settings of {name}"
    source = await _own_settings(admin, name)
    if not other:
        count = "1 setting" if len(source) == 1 else f"{len(source)} settings"
        return Plan(title, "Copy", fields, unclear=f"name a topic: {name} has {count} of its own")
    now = await _own_settings(admin, other)
    changes: dict[str, str | None] = {key: value for key, value in source.items() if now.get(key) != value}
    if form.get("unset"):
        changes |= dict.fromkeys(now.keys() - source.keys())
    changes = _shown_settings(form) or changes
    if not changes:
        return Plan(title, "Copy", fields, unclear=f"{other} has these settings already")

    async def perform(admin: Admin) -> str:
        await admin.configs.alter(TOPIC, other, changes)
        return f"{len(changes)} settings of {other} are as those of {name}."

    rows = [
        (key, now.get(key, "the default"), "the default" if value is None else value)
        for key, value in sorted(changes.items())
    ]
    return Plan(
        title, "Copy", fields, f"These settings of topic {other} change for all brokers.",
        ("Key", "Now", "Then"), tuple(rows), perform=perform, back=f"/topics/{other}",
        shown_text=json.dumps(changes),
    )  # fmt: skip


async def _own_settings(admin: Admin, topic: str) -> dict[str, str]:
    """Return the settings that a topic has of its own, not from the brokers."""
    entries = await admin.configs.describe(TOPIC, topic)
    return {entry.name: entry.value or "" for entry in entries if entry.source == "topic"}


def _shown_settings(form: Form) -> dict[str, str | None]:
    """Return the settings of the preview that a form was sent from; none for a form without one."""
    try:
        found = json.loads(form.get(SHOWN) or "{}")
    except ValueError:
        raise Unclear("the preview cannot be read: look at it again") from None
    if not isinstance(found, dict) or not all(isinstance(value, str | None) for value in found.values()):
        raise Unclear("the preview cannot be read: look at it again")
    return found


@needs(Role.ADMINISTRATOR, topic="topic")
async def delete_records(admin: Admin, form: Form) -> Plan:
    """Plan the deletion of a partition's records before an offset."""
    name, before = named(form, "topic", "the topic"), form.get("before", "").strip()
    topic = await admin.topics.describe(name)
    fields = (
        Field("topic", "Topic", name, "hidden"),
        _partition_field(form, "all", topic),
        Field("before", "Delete all before offset, empty for all records", before),
    )
    title = f"Delete records of {name}"
    if not (which := form.get("partition", "")):
        return Plan(title, "Delete", fields, unclear="choose a partition")
    chosen = (
        sorted(topic.partitions) if which == "all" else [whole(form.get("partition", ""), "the partition")]
    )
    if any(index not in topic.partitions for index in chosen):
        raise Unclear(f"topic {name} has no partition {which}")
    if before and which == "all":
        return Plan(title, "Delete", fields, unclear="an offset is one of a single partition")
    partitions = [TopicPartition(name, index) for index in chosen]
    starts = await admin.offsets.find(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.offsets.find(dict.fromkeys(partitions, LATEST))
    to = shown_offsets(form, partitions) or {
        partition: whole(form.get("before", ""), "the offset") if before else ends[partition]
        for partition in partitions
    }

    async def perform(admin: Admin) -> str:
        await admin.offsets.delete_records(to)
        return f"The records of {name} are deleted as shown."

    rows = [
        (
            str(partition),
            str(starts[partition]),
            str(to[partition]),
            str(max(0, to[partition] - starts[partition])),
        )
        for partition in partitions
    ]
    return Plan(
        title, "Delete", fields, "These offsets are deleted for good.",
        ("Partition", "From", "Before", "Offsets"), cut(rows),
        typed=name, perform=perform, back=f"/topics/{name}", shown=to,
    )  # fmt: skip


@needs(Role.ADMINISTRATOR, topic="topic")
async def delete_topic(admin: Admin, form: Form) -> Plan:
    """Plan the deletion of a topic."""
    name = named(form, "topic", "the topic")
    topic = await admin.topics.describe(name)
    partitions = [TopicPartition(name, index) for index in topic.partitions]
    starts = await admin.offsets.find_reachable(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.offsets.find_reachable(dict.fromkeys(partitions, LATEST))
    offsets = sum(ends[partition] - starts[partition] for partition in set(starts) & set(ends))

    async def perform(admin: Admin) -> str:
        await admin.topics.delete(name)
        return f"Topic {name} is deleted."

    summary = (
        f"Topic {name} is deleted with its {len(partitions)} partitions and {offsets} offsets, for good."
    )
    fields = (Field("topic", "Topic", name, "hidden"),)
    return Plan(f"Delete {name}", "Delete", fields, summary, typed=name, perform=perform, back="/topics")


@needs(Role.OPERATOR, topic="topic", hides=("key", "value", "headers"))
async def produce(admin: Admin, form: Form) -> Plan:
    """Plan one record: a new one, or an edited copy of another."""
    name = named(form, "topic", "the topic")
    topic = await admin.topics.describe(name)
    is_tombstone = form.get("tombstone") == "1"
    fields = (
        Field("topic", "Topic", name, "hidden"),
        _partition_field(form, "by key", topic),
        Field("key", "Key, empty for none", form.get("key", "")),
        Field("value", "Value", form.get("value", ""), "lines"),
        Field(
            "tombstone",
            "No value: deletes the key in a compacted topic",
            "1" if is_tombstone else "",
            "check",
        ),
        Field("headers", "Headers, NAME=VALUE in lines", form.get("headers", ""), "lines"),
    )
    title = f"Produce a record to {name}"
    if not (which := form.get("partition", "")):
        return Plan(title, "Produce", fields, unclear="fill in the record", is_data=True)
    partition = None if which == "by key" else whole(form.get("partition", ""), "the partition")
    if partition is not None and partition not in topic.partitions:
        raise Unclear(f"topic {name} has no partition {partition}")
    key, headers = form.get("key", "").encode() or None, settings(form.get("headers", ""))
    value = None if is_tombstone else form.get("value", "").replace("\r\n", "\n").encode()
    if key is None and is_tombstone:
        return Plan(
            title, "Produce", fields, unclear="a record that deletes a key needs that key", is_data=True
        )
    shown = "no value" if value is None else f"{len(value)} bytes"
    return Plan(
        title, "Produce", fields, f"Topic {name} gets a record with {shown}.",
        perform=partial(_send, topic=name, partition=partition, key=key, value=value, headers=headers),
        back=f"/topics/{name}/records", is_data=True,
    )  # fmt: skip


def _partition_field(form: Form, other: str, topic: Topic) -> Field:
    choices = (other, *map(str, sorted(topic.partitions)))
    return Field("partition", "Partition", form.get("partition", ""), "choice", choices)


async def _send(
    admin: Admin,
    *,
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: dict[str, str],
) -> str:
    config = ProducerConfig(
        client=replace(admin.cluster.config, bootstrap_servers=",".join(map(str, admin.cluster.bootstrap)))
    )
    async with Producer(config=config) as producer:
        written = await producer.send_and_wait(
            topic,
            value,
            key=key,
            partition=partition,
            headers=[(name, text.encode()) for name, text in headers.items()],
        )
    return f"The record is at offset {written.offset} of {topic}-{written.partition}."
