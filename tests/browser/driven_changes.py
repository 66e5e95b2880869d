"""The changes of the console, one entry each: what is there before, what is typed, and what is there after.

A new change gets an entry here for each kind of cluster: `test_pages.py` fails for one that is not driven
there to an effect, and has no reason why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from browser.running import KINDS
from browser.shown_pages import CONNECTOR
from ottla.admin import BROKER, LATEST, TOPIC, Admin
from ottla.admin.reassigning import PartitionPlan, execute
from ottla.client.cluster import NoSuchTopic
from ottla.producer import Producer
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition
from peers.batch_writer import Writer

OF_THREE: Final = tuple(kind for kind in KINDS if kind != "ottla")
"""Clusters with brokers to move to."""
SLOW_BYTES_PER_S: Final = 1_000
MOST_ASKED: Final = 600
_HANGING: Final = 7_000_000


@dataclass(frozen=True)
class DrivenChange:
    """A change: what is typed into its form, what the preview shows, and what is there when it is done."""

    name: str
    query: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    previews: str = ""
    typed: str = ""
    done: str = ""
    sees: tuple[str, str] | None = None
    """A page and words on it afterwards."""
    misses: tuple[str, str] | None = None
    """A page and the text of a link that is not on it any more."""
    effect: Callable[[Admin], Awaitable[bool]] | None = None
    """Whether the cluster is afterwards as the change promises."""
    prepare: Callable[[str], Coroutine[Any, Any, None]] | None = None
    """Makes what there is to change, in the cluster with these bootstrap servers."""
    link: tuple[str, str, str] | None = None
    """A page that shows what there is to change, words on it, and the link there that leads to the form."""
    kinds: tuple[str, ...] = KINDS
    unclear: str = ""
    """The words of a form where there is nothing to change: it is driven no further on these kinds."""

    @property
    def has_effect(self) -> bool:
        """Whether it is driven until its effect is seen."""
        return not self.unclear and bool(self.sees or self.misses or self.effect)


# --- that which is there before


async def move_slowly(servers: str) -> None:
    """Begin a move of a partition that a throttle makes last for an hour."""
    async with Admin(servers) as admin:
        await admin.topics.create("slow", assignments={0: [1]})
        async with Producer(bootstrap_servers=servers) as producer:
            for _ in range(4):
                await producer.send_and_wait("slow", b"x" * 900_000, partition=0)
        # The first fetch is not held back, and uses up the rate of many minutes.
        await _move(admin, TopicPartition("slow", 0), 3, throttle=SLOW_BYTES_PER_S)


async def turn_replicas_round(servers: str) -> None:
    """Make a partition whose leader is not its first replica."""
    async with Admin(servers) as admin:
        await admin.topics.create("led", assignments={0: [2, 1]})
        await _move(admin, TopicPartition("led", 0), 1, 2)


async def _move(admin: Admin, partition: TopicPartition, *replicas: int, throttle: int | None = None) -> None:
    """Begin a move once the broker that is asked knows the topic: each learns of a new one by itself."""
    for _ in range(MOST_ASKED):
        try:
            await execute(admin, [PartitionPlan(partition, replicas)], throttle=throttle)
            return
        except NoSuchTopic:
            await asyncio.sleep(0.1)
    raise AssertionError(f"{partition.topic} did not come to be known")


async def hang_a_transaction(servers: str) -> None:
    """Write a transactional batch of which no coordinator knows, and a record behind it."""
    builder = BatchBuilder(1 << 20)
    builder.append(None, b"hangs", time.time_ns() // 1_000_000)
    batch = builder.build(producer_id=_HANGING, producer_epoch=0, base_sequence=0, transactional=True)
    async with Admin(servers) as admin:
        await admin.topics.create("held", partitions=1, replication_factor=1)
    async with Writer(servers) as writer:
        await writer.write_raw("held", 0, batch, transactional_id="late")
        await writer.write("held", b"behind", timestamp_ms=time.time_ns() // 1_000_000)


# --- that which is there afterwards


async def _is_placed(admin: Admin, topic: str, *replicas: int) -> bool:
    admin.cluster.forget(topic)
    return (await admin.topics.describe(topic)).partitions[0].replicas == replicas


async def is_moved(admin: Admin) -> bool:
    """Whether the move by hand is done."""
    where = [TopicPartition("clicks", 0)]
    return await _is_placed(admin, "clicks", 2, 1) and not await admin.partitions.reassignments(where)


async def is_cancelled(admin: Admin) -> bool:
    """Whether the slow move is over, its partition where it was, and the throttle removed."""
    entries = [
        *await admin.configs.describe(BROKER, "1"), *await admin.configs.describe(BROKER, "3"),
        *await admin.configs.describe(TOPIC, "slow"),
    ]  # fmt: skip
    throttled = [entry for entry in entries if "replication.throttled" in entry.name]
    is_throttled = any(entry.source in ("broker", "topic") for entry in throttled)
    moves = await admin.partitions.reassignments([TopicPartition("slow", 0)])
    return await _is_placed(admin, "slow", 1) and not moves and not is_throttled


async def is_led_by_the_first(admin: Admin) -> bool:
    """Whether the first replica leads."""
    admin.cluster.forget("led")
    partition = (await admin.topics.describe("led")).partitions[0]
    return partition.leader == partition.replicas[0] == 1


async def is_free(admin: Admin) -> bool:
    """Whether readers of committed records get to the end, past the marker."""
    where = TopicPartition("held", 0)
    await admin.topics.describe(where.topic)
    latest = {where: LATEST}
    stable = await admin.offsets.find_reachable(latest, read_committed=True)
    return stable == await admin.offsets.find_reachable(latest) == {where: 3}


async def takes_large_messages(admin: Admin) -> bool:
    """Whether each broker has the setting."""
    brokers = (await admin.brokers.describe()).brokers
    found = [await admin.configs.describe(BROKER, str(broker.id)) for broker in brokers]
    values = [entry.value for entries in found for entry in entries if entry.name == "message.max.bytes"]
    return values == ["2000123"] * len(brokers)


async def has_three_partitions(admin: Admin) -> bool:
    """Whether the topic has grown."""
    admin.cluster.forget("fresh")
    return len((await admin.topics.describe("fresh")).partitions) == 3


async def is_reset(admin: Admin) -> bool:
    """Whether the group begins at the oldest record of each partition."""
    found = await admin.groups.committed("shipping")
    return {where.partition: offset for where, (offset, _) in found.items()} == {0: 0, 1: 0, 2: 0}


async def is_deleted(admin: Admin) -> bool:
    """Whether the topic is gone."""
    admin.cluster.forget("fresh")
    try:
        await admin.topics.describe("fresh")
    except NoSuchTopic:
        return True
    return False


CHANGES: Final = (
    DrivenChange(
        "create-topic", "",
        {"topic": "fresh", "partitions": "2", "replicas": "1", "settings": "retention.ms=7200000"},
        "Topic fresh gets these replicas", done="Topic fresh is created with 2 partitions",
        sees=("/c/local/topics/fresh", "7200000"),
    ),
    DrivenChange(
        "copy-settings", "topic=fresh", {"other": "clicks"}, "retention.ms",
        done="1 settings of clicks are as those of fresh", sees=("/c/local/topics/clicks", "7200000"),
    ),
    DrivenChange(
        "add-partitions", "topic=fresh", {"total": "3"}, "1 more partitions, 3 in all", "fresh",
        "Topic fresh has 3 partitions now", effect=has_three_partitions,
    ),
    DrivenChange(
        "set-topic-setting", "topic=fresh", {"key": "retention.ms", "value": "3600000"},
        "retention.ms of topic fresh", done="retention.ms of fresh is 3600000 now",
        sees=("/c/local/topics/fresh", "3600000"),
    ),
    DrivenChange(
        "produce", "topic=fresh",
        {"partition": "1", "key": "k", "value": '{"by":"browser"}', "headers": "trace=7"},
        "Topic fresh gets a record with 16 bytes", done="The record is at offset 0 of fresh-1",
        sees=("/c/local/topics/fresh/records", "browser"),
    ),
    DrivenChange(
        "delete-records", "topic=fresh", {"partition": "1"}, "These offsets are deleted for good", "fresh",
        "The records of fresh are deleted", ("/c/local/topics/fresh/records", "No records there"),
    ),
    DrivenChange(
        "reset-group", "group=shipping", {"topic": "payments", "to": "the oldest record"},
        "Group shipping goes on at these offsets", "shipping", "Group shipping goes on at the offsets",
        ("/c/local/group?name=shipping", "payments-0"), effect=is_reset,
    ),
    DrivenChange(
        "delete-group", "group=shipping", {}, "Group shipping is deleted with its commits", "shipping",
        "Group shipping is deleted", ("/c/local/groups", "billing"), misses=("/c/local/groups", "shipping"),
    ),
    DrivenChange(
        "delete-topic", "topic=fresh", {}, "Topic fresh is deleted with its 3 partitions", "fresh",
        "Topic fresh is deleted", ("/c/local/topics", "orders"), misses=("/c/local/topics", "fresh"),
        effect=is_deleted,
    ),
    DrivenChange(
        "reassign", "", {"lines": "clicks:0=2,1"}, "Other replicas, or another order, for 1 partition",
        done="The move of 1 partition began", effect=is_moved, kinds=OF_THREE,
    ),
    DrivenChange(
        "reassign", "", {"lines": "clicks:0=2,1"}, kinds=("ottla",),
        unclear="is down, or not in the cluster",
    ),
    DrivenChange(
        "cancel-reassignment", previews="New replicas are dropped with what they have copied",
        prepare=move_slowly, link=("/c/local/reassignments", "Copied", "Cancel all moves"),
        done="The move of 1 partition is cancelled", effect=is_cancelled,
        sees=("/c/local/reassignments", "Nothing moves."), kinds=OF_THREE,
    ),
    DrivenChange(
        "cancel-reassignment", "partition=all", kinds=("ottla",), unclear="nothing moves any more",
    ),
    DrivenChange(
        "elect-preferred", previews="Another leader for", prepare=turn_replicas_round,
        link=("/c/local/reassignments", "led-0", "Elect preferred leaders"), done="The first replica of",
        effect=is_led_by_the_first, sees=("/c/local/reassignments", "Each partition is led by its first"),
        kinds=OF_THREE,
    ),
    DrivenChange("elect-preferred", "topic=shipments", kinds=("ottla",), unclear="led by its first replica"),
    DrivenChange(
        "abort-transaction", previews="held-0", typed="held", prepare=hang_a_transaction,
        link=("/c/local/transactions", "nothing: it hangs", "Abort it"), done="readers of held-0 go on",
        effect=is_free, sees=("/c/local/transactions", "No partition: each reader gets to the end."),
    ),
    DrivenChange(
        "set-broker-setting", "", {"broker": "all brokers", "key": "message.max.bytes", "value": "2000123"},
        "changes at once, without a restart", done="message.max.bytes of all brokers is 2000123",
        sees=("/c/local/settings?q=message.max.bytes", "2000123"), effect=takes_large_messages,
    ),
    DrivenChange(
        "register-schema", "subject=orders-value",
        {"schema": '{"type":"record","name":"Order","fields":[{"name":"city","type":"string"}]}'},
        "orders-value", done="The schema has the id 3 in orders-value",
        sees=("/c/local/registry/subject?name=orders-value", "city"),
    ),
    DrivenChange(
        "set-compatibility", "subject=orders-value", {"level": "FULL"}, "are checked by FULL",
        done="The compatibility level of", sees=("/c/local/registry/subject?name=orders-value", "FULL"),
    ),
    DrivenChange(
        "pause-connector", CONNECTOR, {}, "its tasks wait where they are", done="copy-orders pauses",
        sees=(f"/c/local/connect/connector?{CONNECTOR}", "PAUSED"),
    ),
    DrivenChange(
        "resume-connector", CONNECTOR, {}, "copy-orders", done="Connector copy-orders",
        sees=(f"/c/local/connect/connector?{CONNECTOR}", "RUNNING"),
    ),
    DrivenChange(
        "restart-connector", CONNECTOR, {"parts": "the connector"}, "copy-orders", done="Re",
        sees=(f"/c/local/connect/connector?{CONNECTOR}", "restarted 1 times"),
    ),
    DrivenChange(
        "restart-task", f"{CONNECTOR}&task=0", {}, "copy-orders", done="Task 0 of copy-orders",
        sees=(f"/c/local/connect/connector?{CONNECTOR}", "worker of a new task"),
    ),
    DrivenChange(
        "set-connector-setting", CONNECTOR, {"key": "topic", "value": "payments"}, "payments",
        done="topic of copy-orders is changed", sees=(f"/c/local/connect/connector?{CONNECTOR}", "payments"),
    ),
    DrivenChange(
        "stop-connector", CONNECTOR, {}, "ends its tasks", done="copy-orders stops",
        sees=(f"/c/local/connect/connector?{CONNECTOR}", "STOPPED"),
    ),
    DrivenChange(
        "create-connector", "connect=etl", {"name": "second", "config": "connector.class=JdbcSource"},
        "second", done="Connector second is created", sees=("/c/local/connect", "second"),
    ),
    DrivenChange(
        "delete-connector", "connect=etl&name=second", {}, "second", "second", "second is deleted",
        ("/c/local/connect", "copy-orders"), misses=("/c/local/connect", "second"),
    ),
    DrivenChange(
        "delete-subject", "subject=orders-value", {}, "orders-value", "orders-value", "Deleted",
        ("/c/local/registry", "No subject"),
    ),
)  # fmt: skip
