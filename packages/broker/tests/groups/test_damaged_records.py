"""Damaged and foreign records in `__consumer_offsets`: the others are loaded, and two lines tell of these."""

from __future__ import annotations

import random

from ottla.broker.coordinators.coordinator_partitions import KeyValue
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.coordinators.testing import LoggedWarnings, MemoryStore, in_virtual_time
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.events import ShareHeartbeat
from ottla.broker.groups.testing import PARTITIONS, TOPIC_0, leading, offset
from ottla.protocol.stored_groups import GROUP_RECORDS, key_bytes


def damaged(chance: random.Random, kind: int) -> KeyValue:
    """A record of a kind whose value is not as its version has it, or says what cannot be."""
    key_class, value_class = GROUP_RECORDS[kind]
    key = key_class(group_id="damaged", **({"member_id": "m"} if hasattr(key_class(), "member_id") else {}))
    value = bytearray(value_class().to_bytes(value_class.MAX_VERSION))
    for _ in range(chance.randint(0, 4)):
        value[chance.randrange(len(value))] = chance.randrange(256)
    cut = chance.choice([len(value), len(value), chance.randrange(len(value) + 1)])
    return KeyValue(key_bytes(key), bytes(value[:cut]) + chance.randbytes(chance.choice([0, 0, 3])))


@in_virtual_time
async def test_a_coordinator_loads_what_it_can_beside_damaged_and_foreign_records() -> None:
    store, chance = MemoryStore(PARTITIONS), random.Random(11)
    async with leading(store) as groups:
        await groups.offsets.commit("fine", {TOPIC_0: offset(5)}, generation=-1)
        heartbeat = ConsumerHeartbeat(
            member_id="m", epoch=0, rebalance_timeout_ms=9_000, topics=frozenset({"a"}), owned={}
        )
        await groups.request("c", GroupKind.CONSUMER, heartbeat, creates=True)
        share = ShareHeartbeat(member_id="m", epoch=0, topics=frozenset({"a"}))
        await groups.request("s", GroupKind.SHARE, share, creates=True)
    foreign = [
        KeyValue(b"", b"x"),
        KeyValue(b"\0\x63\0\1g", b"x"),
        KeyValue(b"\xff\xff", None),
        KeyValue(b"{}", b"{}"),
    ]
    for number in range(PARTITIONS):
        records = [damaged(chance, kind) for kind in GROUP_RECORDS for _ in range(60)]
        store.append_batch(number, build_batch([*records, *foreign], 1))

    with LoggedWarnings() as logged:
        async with leading(store) as groups:
            listed = {group.group_id for group in groups.list_groups()[1]}
            fetched = groups.offsets.fetch("fine", [TOPIC_0])[1]
            answer = await groups.request("c", GroupKind.CONSUMER, ConsumerHeartbeat(member_id="m", epoch=2))

    assert {"fine", "c", "s"} <= listed
    assert fetched == {TOPIC_0: offset(5)}
    assert answer.epoch == 2
    assert 1 <= len(logged.seen) <= 2 * PARTITIONS, logged.seen[:5]
