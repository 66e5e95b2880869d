"""The snapshots of groups with very many members are encoded in steps, in the order of the group's events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.hosting.hosted_groups import GroupWrites
from ottla.broker.groups.records import GroupRecord, decode_record, encode_in_steps, encode_record
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import LoopBudget, at_once
from ottla.protocol.errors import KafkaError


def snapshot_of(members: int) -> GroupSnapshot:
    return GroupSnapshot(
        group_id="g",
        generation=3,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="m0",
        state_since_ms=5,
        members=tuple(
            MemberSnapshot(
                member_id=f"m{number}",
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=1_000,
                session_timeout_ms=2_000,
                subscription=b"topics",
                assignment=b"%d" % number,
            )
            for number in range(members)
        ),
    )


@pytest.mark.parametrize("members", [0, 1, 129, 5_000])
def test_steps_encode_the_same_record(members: int) -> None:
    snapshot = snapshot_of(members)
    at_end = encode_record(GroupRecord("g", snapshot))

    in_steps = encode_record(GroupRecord("g", snapshot, at_once(encode_in_steps(snapshot))))

    assert in_steps == at_end
    assert decode_record(at_end.key, at_end.value) == GroupRecord("g", snapshot)


class Log:
    """Writes and stops, in order; each look at the clock takes ten milliseconds."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        ticks: Iterator[int] = count(0, 10)
        self.budget = LoopBudget(lambda: float(next(ticks)))

    def write(self, name: str) -> Callable[[bytes | None], None]:
        return lambda value: self.entries.append(f"{name} {'now' if value is None else 'encoded'}")

    def stop(self, name: str) -> Callable[[KafkaError], None]:
        return lambda error: self.entries.append(f"{name} {error.code.name}")


async def turns_until(log: Log, entries: int) -> int:
    turns = 0
    async with asyncio.timeout(60):
        while len(log.entries) < entries:
            turns += 1
            await asyncio.sleep(0)
    return turns


async def test_a_large_snapshot_is_encoded_in_many_turns_of_the_loop() -> None:
    log = Log()
    async with BackgroundTasks(Metrics(), Environment().clock) as tasks:
        GroupWrites(tasks, log.budget).put("g", log.write("large"), snapshot_of(5_000))

        assert await turns_until(log, 1) > 40


async def test_writes_of_a_group_wait_behind_its_large_snapshot_in_order() -> None:
    log = Log()
    async with BackgroundTasks(Metrics(), Environment().clock) as tasks:
        writes = GroupWrites(tasks, log.budget)
        writes.put("g", log.write("first"), snapshot_of(1_000))
        writes.put("g", log.write("second"))
        writes.put("g", log.write("third"), snapshot_of(1_000))
        writes.put("g", log.write("fourth"))
        writes.put("other", log.write("other"))

        await turns_until(log, 5)
        writes.put("g", log.write("fifth"))

    assert log.entries == [
        "other now", "first encoded", "second now", "third encoded", "fourth now", "fifth now",
    ]  # fmt: skip


async def test_the_end_of_the_coordinator_stops_the_writes_that_wait() -> None:
    log = Log()
    async with BackgroundTasks(Metrics(), Environment().clock) as tasks:
        writes = GroupWrites(tasks, log.budget)
        writes.put("g", log.write("first"), snapshot_of(1_000), stopped=log.stop("first"))
        writes.put("g", log.write("second"), stopped=log.stop("second"))
        writes.put("g", log.write("tombstone"))

    assert log.entries == ["first COORDINATOR_NOT_AVAILABLE", "second COORDINATOR_NOT_AVAILABLE"]
