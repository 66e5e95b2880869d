"""The state of share partitions that a group reads for the first time: thousands begin a few at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from ottla.broker.api.share_group_heartbeat import initialize
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.events import ShareAnswer, StateInitialized
from ottla.broker.runtime.loop_budget import SLICE
from ottla.broker.share.state import SharePartitionKey
from ottla.protocol.errors import CoordinatorNotAvailable

TOPIC = UUID(int=1)
PARTITIONS = 2_000


class Persister:
    """Counts the partitions whose state is being begun."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun: list[int] = []
        self.most = 0
        self._fails = fails
        self._going_on = 0

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self._going_on += 1
        self.most = max(self.most, self._going_on)
        await asyncio.sleep(0)
        self._going_on -= 1
        self.begun.append(key.partition)
        if self._fails:
            raise CoordinatorNotAvailable


class Groups:
    """Takes note of what a group is told."""

    def __init__(self) -> None:
        self.told: list[StateInitialized] = []

    async def request(self, group_id: str, kind: GroupKind, event: Any) -> None:
        self.told.append(event)


async def begun_by(persister: Persister) -> list[StateInitialized]:
    groups = Groups()
    services: Any = SimpleNamespace(groups=groups, share=lambda: SimpleNamespace(persister=persister))
    answer = ShareAnswer("m", 1, to_initialize={TOPIC: frozenset(range(PARTITIONS))})
    await initialize(services, "g", answer)
    return groups.told


async def test_the_states_of_thousands_of_partitions_are_begun_in_slices() -> None:
    persister = Persister()

    told = await begun_by(persister)

    assert sorted(persister.begun) == list(range(PARTITIONS))
    assert persister.most == SLICE
    assert told == [StateInitialized({TOPIC: frozenset(range(PARTITIONS))}, False)]


async def test_a_coordinator_that_is_away_is_asked_for_one_slice_only() -> None:
    persister = Persister(fails=True)

    (told,) = await begun_by(persister)

    assert len(persister.begun) == SLICE
    assert told == StateInitialized({TOPIC: frozenset(range(PARTITIONS))}, True)
