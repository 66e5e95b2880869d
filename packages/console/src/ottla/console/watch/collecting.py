"""Collect the lag of all groups and the ends of all topics, every half minute, while the console runs."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ottla.admin import LATEST, Admin, ClusterState, problems
from ottla.admin.groups import GroupProgress
from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster, ShownClusters
from ottla.console.clusters.group_rows import total_lag
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.watch.history import MINUTE_S, History, Series
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")

EVERY_S: Final = 30.0
MOST_GROUPS: Final = 500
"""Groups of a cluster that are watched; those further on in the alphabet are not."""
_AT_ONCE: Final = 4
_THIN_EVERY_S: Final = 3_600

LAG, COMMITTED, ENDS, PROBLEMS = "lag", "committed", "ends", "problems"
"""The kinds of series: of a group its lag and the sum of its commits, of a topic the sum of its ends."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a cluster: the progress of its groups, and the end of each partition."""

    cluster: str
    state: ClusterState
    progress: Mapping[str, GroupProgress] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    silent_groups: frozenset[str] = frozenset()
    """Groups whose coordinators did not answer."""


def values_of(look: Look) -> dict[Series, float]:
    """Return the numbers of a look that are kept. A group whose lag is not known has none."""
    values: dict[Series, float] = {Series(look.cluster, PROBLEMS, ""): len(problems(look.state))}
    for group, progress in look.progress.items():
        if (lag := total_lag(progress)) is not None:
            values[Series(look.cluster, LAG, group)] = lag
        committed = [partition.offset for partition in progress.partitions if partition.offset is not None]
        values[Series(look.cluster, COMMITTED, group)] = sum(committed)
    ends: dict[str, int] = defaultdict(int)
    for partition, end in look.ends.items():
        ends[partition.topic] += end
    return values | {Series(look.cluster, ENDS, topic): end for topic, end in ends.items()}


class Collector:
    """Looks at all clusters again and again; a cluster that does not answer leaves a gap."""

    def __init__(
        self, clusters: ShownClusters, history: History, *, every_s: float = EVERY_S,
        now_ms: Callable[[], int] = now_ms, on_look: Callable[[Look, int], None] | None = None,
    ) -> None:  # fmt: skip
        self._clusters = clusters
        self._history = history
        self._every_s = every_s
        self._now_ms = now_ms
        self._thinned_s = 0
        self._on_look = on_look
        self.latest: dict[str, tuple[Look, int]] = {}
        """The last look at each cluster, and its time in seconds since 1970."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.gather(*(self._look_at(cluster) for cluster in self._clusters))
            now_s = self._now_ms() // 1_000
            if now_s - self._thinned_s >= _THIN_EVERY_S:
                self._thinned_s = now_s
                await self._keep(self._history.thin(now_s))
            await asyncio.sleep(self._every_s)

    async def _look_at(self, cluster: ShownCluster) -> None:
        try:
            async with asyncio.timeout(MINUTE_S):
                look = await look_at(cluster)
        except (ClientError, KafkaError, NoSample, TimeoutError, OSError, ValueError) as error:
            _log.info("a cluster cannot be watched", extra={"cluster": cluster.name, "reason": str(error)})
            return
        except Exception:  # of one cluster: the others are watched
            _log.exception("a cluster cannot be watched", extra={"cluster": cluster.name})
            return
        at_s = self._now_ms() // 1_000
        self.latest[cluster.name] = look, at_s
        self._report(look, at_s)
        await self._keep(self._history.add(at_s, values_of(look)))

    def _report(self, look: Look, at_s: int) -> None:
        if self._on_look is None:
            return
        try:
            self._on_look(look, at_s)
        except Exception:  # the watch goes on
            _log.exception("rules cannot be judged", extra={"cluster": look.cluster})

    async def _keep(self, change: Awaitable[None]) -> None:
        """Change the history; a full disk leaves a gap, and the pages go on."""
        try:
            await change
        except sqlite3.Error as error:
            _log.warning("the history cannot be written", extra={"reason": str(error)})


async def look_at(cluster: ShownCluster) -> Look:
    """Look at a cluster now. Raises NoSample, for answers of a minute ago too: they are no look."""
    state = _present(await cluster.state())
    groups = [group.name for group in _present(await cluster.groups())][:MOST_GROUPS]
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(group: str) -> GroupProgress | None:
        async with places:
            try:
                return _present(await cluster.progress(group))
            except NoSample:
                return None

    read_all = await asyncio.gather(*map(read, groups))
    progress = {group: found for group, found in zip(groups, read_all, strict=True) if found is not None}
    partitions = [health.partition for health in state.partitions]
    watched = [partition for partition in partitions if not partition.topic.startswith("__")]
    ends = await _ends(await cluster.admin(), watched)
    return Look(cluster.name, state, progress, ends, frozenset(groups) - progress.keys())


def _present(sample: Sample[T]) -> T:
    if sample.age_s > MINUTE_S:
        raise NoSample(sample.failure or f"the answer is {sample.age_s:.0f} s old")
    return sample.value


async def _ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    return await admin.offsets.find_reachable(dict.fromkeys(partitions, LATEST))
