from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ottla.admin.cluster_health import ClusterState
from ottla.admin.commands.top import GROUPS_AT_ONCE, Sample, sampled, screen
from ottla.admin.groups import PartitionProgress
from ottla.protocol.errors import GroupIdNotFound
from ottla.protocol.topics import TopicPartition

STATE = ClusterState("c1", 1, (), ())


def test_topics_are_ordered_by_their_rate_and_groups_by_their_lag() -> None:
    before = Sample(10.0, STATE, {"slow": 100, "fast": 0}, {"g": ("Stable", 5, 10)})
    now = Sample(
        12.0, STATE, {"slow": 102, "fast": 2_000, "new": 7}, {"g": ("Stable", 3, 20), "h": ("Empty", 9, 0)}
    )

    lines = [line.split() for line in screen(before, now, 100, 40)]

    assert lines[0][:4] == ["cluster", "c1", "brokers", "0"]
    assert ["fast", "1000", "2000"] in lines
    assert lines.index(["fast", "1000", "2000"]) < lines.index(["slow", "1", "102"])
    assert lines.index(["h", "Empty", "9", "-"]) < lines.index(["g", "Stable", "3", "5"])


def test_a_group_without_commits_has_a_dash_for_a_lag_before_groups_that_are_not_behind() -> None:
    now = Sample(1.0, STATE, {}, {"done": ("Stable", 0, 9), "quiet": ("Stable", None, 0)})

    lines = [line.split() for line in screen(None, now, 100, 40)]

    assert lines.index(["quiet", "Stable", "-", "-"]) < lines.index(["done", "Stable", "0", "-"])


def test_the_view_fits_the_terminal() -> None:
    now = Sample(1.0, STATE, {f"topic-{number}-{'x' * 80}": 1 for number in range(100)}, {})

    lines = screen(None, now, 40, 12)

    assert len(lines) <= 11
    assert max(map(len, lines)) <= 40
    assert any(line.startswith("and ") and line.endswith(" more") for line in lines)


class Admin:
    """An admin client of a cluster with the groups `kept` and `ended`; the last ends once it is listed."""

    def __init__(self) -> None:
        self.offsets = self.groups = self

    async def cluster_state(self) -> ClusterState:
        return STATE

    async def find_reachable(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {}

    async def list(self) -> list[Any]:
        return [SimpleNamespace(name=name, state="Empty") for name in ("ended", "kept")]

    async def group_progress(self, name: str) -> Any:
        if name == "ended":
            raise GroupIdNotFound(name)
        progress = PartitionProgress(TopicPartition("orders", 0), 4, 7)
        return SimpleNamespace(partitions=[progress])


async def test_a_group_that_ends_once_it_is_listed_is_left_out() -> None:
    admin: Any = Admin()

    assert (await sampled(admin)).groups == {"kept": ("Empty", 3, 4)}


class AdminOfOtherGroups(Admin):
    """An admin client of a cluster with a group that never commits and a share group that has finished."""

    async def group_progress(self, name: str) -> Any:
        offset, lag = (None, None) if name == "ended" else (4, 0)
        found = PartitionProgress(TopicPartition("orders", 0), offset, 7, unacknowledged=lag)
        return SimpleNamespace(partitions=[found])


async def test_no_commit_is_no_lag_of_0_and_a_share_group_has_read_what_it_finished() -> None:
    admin: Any = AdminOfOtherGroups()

    assert (await sampled(admin)).groups == {"ended": ("Empty", None, 0), "kept": ("Empty", 0, 7)}


class SlowAdmin(Admin):
    """An admin client of a cluster with 100 groups; none is read before `GROUPS_AT_ONCE` were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.most = asyncio.Event()

    async def list(self) -> list[Any]:
        return [SimpleNamespace(name=f"group-{number}", state="Stable") for number in range(100)]

    async def group_progress(self, name: str) -> Any:
        self.asked += 1
        if self.asked == GROUPS_AT_ONCE:
            await asyncio.sleep(0)
            assert self.asked == GROUPS_AT_ONCE, "more groups are read at once than allowed"
            self.most.set()
        await self.most.wait()
        return await super().group_progress(name)


async def test_groups_are_read_at_once_and_not_all_of_them() -> None:
    admin: Any = SlowAdmin()

    async with asyncio.timeout(30):
        assert len((await sampled(admin)).groups) == 100
