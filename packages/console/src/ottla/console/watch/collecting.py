"""Look at all clusters every half minute, while the console runs: for the history, rules and Prometheus."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ottla.admin import problems
from ottla.admin.groups import GroupProgress
from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster, ShownClusters
from ottla.console.clusters.samples import NoSample
from ottla.console.watch.history import MINUTE_S, History, Series
from ottla.console.watch.looks import Look, WrittenTimes, look_at, whole_lags
from ottla.console.watch.paces import NOWHERE, UNKNOWN, Pace, Stands, has_moved, stands_of
from ottla.console.watch.rules import Readings, readings, remembered, unreached
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
_THIN_EVERY_S: Final = 3_600

LAG, COMMITTED, ENDS, PROBLEMS, MEMBERS = "lag", "committed", "ends", "problems", "members"
"""The kinds of series: of a group its lag and the sum of its commits, of a topic the sum of its ends."""
KEPT_READINGS: Final = (
    "time_lag", "under_replicated", "offline", "no_leader", "unclean_election", "broker_away", "disk",
    "certificate", "unreachable",
)  # fmt: skip
"""The kinds of alerts whose readings are kept as they are; the others follow from the series above."""

N = TypeVar("N", str, int)
OnReadings = Callable[[Readings, int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Watched:
    """The last look at a cluster and when it was, in seconds since 1970, with its rates per second."""

    look: Look
    at_s: int
    readings: Readings
    written_per_s: dict[str, float] = field(default_factory=dict)
    """Records written, by topic."""
    committed_per_s: dict[str, float] = field(default_factory=dict)
    """Records that were committed as read, by group."""
    taken_per_s: dict[int, float] = field(default_factory=dict)
    """Records written, by the broker that leads their partitions now."""
    lag_per_s: dict[str, dict[TopicPartition, float]] = field(default_factory=dict)
    """The growth of the lag of each partition, by group; below 0 where the group catches up."""
    stands: Stands = NOWHERE
    """Since when groups have been behind, and have finished nothing."""

    def pace(self, progress: GroupProgress, now_s: int) -> Pace:
        """Return how a group moves, by its progress now and by the looks."""
        name = progress.description.name
        if (then := self.look.progress.get(name)) is None:
            return UNKNOWN
        per_s, since_s = self.committed_per_s.get(name), self.stands.behind_since_s.get(name)
        if since_s is None:  # it had read everything at the last look
            return Pace(per_s, 0.0)
        still_since_s = self.stands.still_since_s.get(name, self.at_s)
        still_s = None if has_moved(then, progress) else max(0.0, now_s - still_since_s)
        return Pace(per_s, max(0.0, now_s - since_s), still_s)


def values_of(look: Look, read: Readings) -> dict[Series, float]:
    """Return the numbers of a look that are kept. A group whose lag is not known has none."""
    values: dict[Series, float] = {Series(look.cluster, PROBLEMS, ""): len(problems(look.state))}
    values |= {Series(look.cluster, LAG, group): lag for group, lag in whole_lags(look).items()}
    for group, progress in look.progress.items():
        values[Series(look.cluster, COMMITTED, group)] = committed_of(look, group)
        values[Series(look.cluster, MEMBERS, group)] = len(progress.description.members)
    values |= kept_readings(read)
    return values | {Series(look.cluster, ENDS, topic): end for topic, end in ends_of(look).items()}


def kept_readings(read: Readings) -> dict[Series, float]:
    """Return the readings that are kept as they are."""
    return {
        Series(read.cluster, kind, found.subject): found.value
        for kind in KEPT_READINGS
        for found in read.found.get(kind, ())
    }


def committed_of(look: Look, group: str) -> int:
    """Return the sum of a group's commits; of a share group, how many records it has finished."""
    return sum(found.read or 0 for found in look.progress[group].partitions)


def ends_of(look: Look) -> dict[str, int]:
    """Return the sum of the ends of each topic of which all are known.

    The next look would make up for one that is not: as if that much was written.
    """
    exist = (health.partition for health in look.state.partitions)
    unknown = {partition.topic for partition in exist if partition not in look.ends}
    ends: dict[str, int] = defaultdict(int)
    for partition, end in look.ends.items():
        if partition.topic not in unknown:
            ends[partition.topic] += end
    return dict(ends)


def watched(look: Look, at_s: int, earlier: Look | None, before: Watched | None) -> Watched:
    """Return a look with its readings and rates; `earlier` also has what only looks before that one know."""
    written: dict[str, float] = {}
    committed: dict[str, float] = {}
    taken: dict[int, float] = {}
    lags: dict[str, dict[TopicPartition, float]] = {}
    stands = stands_of(look.progress, at_s, {}, at_s, NOWHERE)
    if before is not None and at_s > before.at_s:
        passed_s = at_s - before.at_s
        written = _rates(_grown_ends(look, before.look), passed_s)
        committed = _rates(_grown_commits(look, before.look), passed_s)
        taken = _rates(_grown_by_leader(look, before.look), passed_s)
        lags = _lag_changes(look, before.look, passed_s)
        stands = stands_of(look.progress, at_s, before.look.progress, before.at_s, before.stands)
    return Watched(look, at_s, readings(look, earlier), written, committed, taken, lags, stands)


def _rates(grown: dict[N, int], passed_s: int) -> dict[N, float]:
    # A count that shrinks was made again, or reset: it has no rate this time.
    return {name: count / passed_s for name, count in grown.items() if count >= 0}


def _grown_ends(look: Look, before: Look) -> dict[str, int]:
    """Return the growth of each topic, over the partitions that both looks know."""
    grown: dict[str, int] = defaultdict(int)
    for partition, end in look.ends.items():
        if partition in before.ends:
            grown[partition.topic] += end - before.ends[partition]
    return dict(grown)


def _grown_by_leader(look: Look, before: Look) -> dict[int, int]:
    """Return the growth of the partitions that each broker leads; one that shrank was made again."""
    grown = {broker.id: 0 for broker in look.state.brokers}
    for health in look.state.partitions:
        then, now = before.ends.get(health.partition), look.ends.get(health.partition)
        if health.leader is not None and then is not None and now is not None:
            grown[health.leader] = grown.get(health.leader, 0) + max(0, now - then)
    return grown


def _grown_commits(look: Look, before: Look) -> dict[str, int]:
    grown: dict[str, int] = {}
    for group in look.progress.keys() & before.progress.keys():
        then = {found.partition: found.read for found in before.progress[group].partitions}
        now = {found.partition: found.read for found in look.progress[group].partitions}
        committed = {partition: offset for partition, offset in now.items() if offset is not None}
        known = {
            partition: earlier for partition in committed if (earlier := then.get(partition)) is not None
        }
        count = sum(committed[partition] - earlier for partition, earlier in known.items())
        # A first commit has nothing that it grew from; it is not the silence of a group that hangs.
        if count or len(known) == len(committed):
            grown[group] = count
    return grown


def _lag_changes(look: Look, before: Look, passed_s: int) -> dict[str, dict[TopicPartition, float]]:
    changes: dict[str, dict[TopicPartition, float]] = {}
    for group in look.progress.keys() & before.progress.keys():
        then = {found.partition: found.lag for found in before.progress[group].partitions}
        changes[group] = {
            found.partition: (found.lag - earlier) / passed_s
            for found in look.progress[group].partitions
            if found.lag is not None and (earlier := then.get(found.partition)) is not None
        }
    return changes


class Collector:
    """Looks at all clusters again and again; a cluster that does not answer leaves a gap."""

    def __init__(
        self, clusters: ShownClusters, history: History, *, every_s: float = EVERY_S,
        now_ms: Callable[[], int] = now_ms, on_readings: OnReadings | None = None,
    ) -> None:  # fmt: skip
        self._clusters = clusters
        self._history = history
        self._every_s = every_s
        self._now_ms = now_ms
        self._thinned_s = 0
        self._on_readings = on_readings
        self._times: dict[str, WrittenTimes] = {}
        self._remembered: dict[str, Look] = {}
        self.latest: dict[str, Watched] = {}
        """The last look at each cluster."""

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
        times = self._times.setdefault(cluster.name, WrittenTimes())
        try:
            async with asyncio.timeout(MINUTE_S):
                look = await look_at(cluster, times, self._now_ms() / 1_000)
            await self._take(look, self._now_ms() // 1_000)
        except (ClientError, KafkaError, NoSample, TimeoutError, OSError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            _log.info("a cluster cannot be watched", extra={"cluster": cluster.name, "reason": reason})
            await self._miss(cluster.name, reason)
        except Exception:  # of one cluster: the others are watched
            _log.exception("a cluster cannot be watched", extra={"cluster": cluster.name})

    async def _take(self, look: Look, at_s: int) -> None:
        before, earlier = self.latest.get(look.cluster), self._remembered.get(look.cluster)
        # Ten thousand topics are more work than the loop may be held up for.
        found = await asyncio.to_thread(watched, look, at_s, earlier, before)
        values = await asyncio.to_thread(values_of, look, found.readings)
        self.latest[look.cluster] = found
        self._remembered[look.cluster] = await asyncio.to_thread(remembered, look, earlier)
        await self._report(found.readings, at_s)
        await self._keep(self._history.add(at_s, values))

    async def _miss(self, cluster: str, reason: str) -> None:
        """Report a cluster that does not answer."""
        at_s, missed = self._now_ms() // 1_000, unreached(cluster, reason)
        await self._report(missed, at_s)
        await self._keep(self._history.add(at_s, kept_readings(missed)))

    async def _report(self, read: Readings, at_s: int) -> None:
        if self._on_readings is None:
            return
        try:
            await self._on_readings(read, at_s)
        except Exception:  # the watch goes on
            _log.exception("rules cannot be judged", extra={"cluster": read.cluster})

    async def _keep(self, change: Awaitable[None]) -> None:
        """Change the history; a full disk leaves a gap, and the pages go on."""
        try:
            await change
        except sqlite3.Error as error:
            _log.warning("the history cannot be written", extra={"reason": str(error)})
