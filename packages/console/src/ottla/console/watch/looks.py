"""Looks at a cluster: the state of brokers, groups and ends at one moment, and how old unread records are.

The age of a partition's oldest unread record follows from the ends of earlier looks: it was written while the
end moved beyond its offset. Where those do not reach back far enough the record is read.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ottla.admin import LATEST, Admin, Broker, ClusterState
from ottla.admin.groups import GroupProgress
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.group_rows import total_lag
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.records.reading import read_window
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

MOST_GROUPS: Final = 500
"""Groups of a cluster that are watched; those further on in the alphabet are not."""
MOST_PARTITIONS: Final = 20_000
"""Partitions of groups whose ends are remembered: a kilobyte each."""
MOST_POINTS: Final = 64
MOST_READS: Final = 32
"""Records of one look that are read for their time."""
OLD_S: Final = 60.0
"""An answer that is older is no look."""
_READ_S: Final = 10.0
"""How long those take together."""
_AT_ONCE: Final = 4
_CERTIFICATES_FOR_S: Final = 600.0
_HANDSHAKE_S: Final = 5.0
_DAY_S: Final = 86_400.0


Commits = dict[TopicPartition, set[int]]
"""The offsets that groups have committed, before the end of the partition."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a cluster: the progress of its groups, and the end of each partition."""

    cluster: str
    state: ClusterState
    progress: Mapping[str, GroupProgress] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    silent_groups: frozenset[str] = frozenset()
    """Groups whose coordinators did not answer."""
    time_lags_s: Mapping[str, float] = field(default_factory=dict)
    """How long ago the oldest record was written that a group has not read."""
    unclear_times: frozenset[str] = frozenset()
    """Groups with a partition whose oldest unread record has no known time."""
    certificate_days: Mapping[str, float] = field(default_factory=dict)
    """The days that the certificate of each broker's TLS listener is still valid, by `BROKER:HOST:PORT`."""


def whole_lags(look: Look) -> dict[str, int]:
    """Return the lag of each group of which all ends are known: a part would look like a lag that sinks.

    Commits in partitions that do not exist any more do not count.
    """
    exist = {health.partition for health in look.state.partitions}
    found: dict[str, int] = {}
    for group, progress in look.progress.items():
        is_whole = not any(
            part.lag is None and part.offset is not None and part.partition in exist
            for part in progress.partitions
        )
        if is_whole and (lag := total_lag(progress)) is not None:
            found[group] = lag
    return found


class WrittenTimes:
    """When records were written, by the ends of partitions at earlier looks. Pure.

    Of each partition it keeps at most 64 points: the older they are, the wider they are apart.
    """

    def __init__(self) -> None:
        self._points: dict[TopicPartition, tuple[array[float], array[int]]] = {}
        self._read: dict[tuple[TopicPartition, int], float] = {}

    def add(self, ends: Mapping[TopicPartition, int], at_s: float) -> None:
        """Note the ends of a look."""
        for partition, end in ends.items():
            if partition not in self._points and len(self._points) >= MOST_PARTITIONS:
                continue
            times, offsets = self._points.setdefault(partition, (array("d"), array("q")))
            if offsets and end < offsets[-1]:  # the topic was made again, or has lost records
                del times[:], offsets[:]
                self._read = {place: at for place, at in self._read.items() if place[0] != partition}
            if len(offsets) > 1 and offsets[-2] == offsets[-1] == end:
                times[-1] = at_s  # the first and the last time of an end are enough
                continue
            times.append(at_s)
            offsets.append(end)
            if len(offsets) > MOST_POINTS:
                del times[1 : MOST_POINTS // 2 : 2], offsets[1 : MOST_POINTS // 2 : 2]

    def learn(self, partition: TopicPartition, offset: int, written_s: float) -> None:
        """Note when the record at an offset was written, which was read."""
        self._read[partition, offset] = written_s

    def forget_others(self, partitions: Iterable[TopicPartition], commits: Commits) -> None:
        """Forget partitions that are not among those that exist, and records that no group waits for."""
        kept = set(partitions)
        for partition in [partition for partition in self._points if partition not in kept]:
            del self._points[partition]
        self._read = {place: at for place, at in self._read.items() if place[1] in commits.get(place[0], ())}

    def written_s(self, partition: TopicPartition, offset: int) -> float | None:
        """Return when the record at an offset was written; None where that is not known."""
        times, offsets = self._points.get(partition, (array("d"), array("q")))
        after = bisect_right(offsets, offset)
        if 0 < after < len(offsets):
            share = (offset - offsets[after - 1]) / (offsets[after] - offsets[after - 1])
            return times[after - 1] + share * (times[after] - times[after - 1])
        return self._read.get((partition, offset))


def behind(progress: Mapping[str, GroupProgress]) -> Commits:
    """Return the commits before the end of their partition, of all groups."""
    found: dict[TopicPartition, set[int]] = {}
    for group in progress.values():
        for partition in group.partitions:
            if partition.offset is not None and (partition.lag or 0) > 0:
                found.setdefault(partition.partition, set()).add(partition.offset)
    return found


def time_lags(
    progress: Mapping[str, GroupProgress], times: WrittenTimes, now_s: float
) -> tuple[dict[str, float], frozenset[str]]:
    """Return the time lag of each group in seconds, and the groups of which a part is not known."""
    lags: dict[str, float] = {}
    unclear: set[str] = set()
    for name, group in progress.items():
        known = [found for found in group.partitions if found.offset is not None and found.lag is not None]
        if known:
            lags[name] = 0.0
        for found in known:
            if (found.lag or 0) <= 0:
                continue
            written_s = times.written_s(found.partition, found.offset or 0)
            if written_s is None:
                unclear.add(name)
            else:
                lags[name] = max(lags[name], now_s - written_s)
    return lags, frozenset(unclear)


# --- asking


async def look_at(cluster: ShownCluster, times: WrittenTimes, now_s: float) -> Look:
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
    admin = await cluster.admin()
    ends = await admin.offsets.find_reachable(dict.fromkeys(watched, LATEST))
    await _learn_times(admin, progress, times, now_s)
    await asyncio.to_thread(times.forget_others, partitions, behind(progress))
    lags, unclear = await asyncio.to_thread(time_lags, progress, times, now_s)
    return Look(
        cluster.name, state, progress, ends, frozenset(groups) - progress.keys(), lags, unclear,
        await _certificate_days(cluster, state, now_s),
    )  # fmt: skip


def _present(sample: Sample[T]) -> T:
    if sample.age_s > OLD_S:
        raise NoSample(sample.failure or f"the answer is {sample.age_s:.0f} s old")
    return sample.value


async def _learn_times(
    admin: Admin, progress: Mapping[str, GroupProgress], times: WrittenTimes, now_s: float
) -> None:
    """Note the ends of the groups' partitions, and read some of the records whose time is not known."""
    ends = {
        found.partition: found.end_offset
        for group in progress.values()
        for found in group.partitions
        if found.offset is not None and found.end_offset is not None
    }
    await asyncio.to_thread(times.add, ends, now_s)
    unknown = [
        (partition, offset)
        for partition, offsets in behind(progress).items()
        for offset in sorted(offsets)
        if times.written_s(partition, offset) is None
    ]
    turn = int(now_s) % max(1, len(unknown))  # those that cannot be read are in no other's way
    places = asyncio.Semaphore(_AT_ONCE)

    async def read(partition: TopicPartition, offset: int) -> None:
        async with places:
            try:
                window = await read_window(admin.cluster, partition, offset, ends[partition], 1)
            except (ClientError, KafkaError, OSError, ValueError):
                return  # its time stays unknown
        if window.records and window.records[0].timestamp_ms > 0:
            times.learn(partition, offset, window.records[0].timestamp_ms / 1_000)

    try:
        async with asyncio.timeout(_READ_S):
            await asyncio.gather(*(read(*place) for place in (unknown[turn:] + unknown[:turn])[:MOST_READS]))
    except TimeoutError:
        pass  # a leader hangs: the times of the others are known by now, or at the next look


async def _certificate_days(cluster: ShownCluster, state: ClusterState, now_s: float) -> dict[str, float]:
    """Return the days until the certificate of each broker's listener ends, of brokers that answer."""

    async def ask(admin: Admin) -> dict[str, float]:
        if not admin.cluster.config.security.uses_tls:
            return {}
        ends = await asyncio.gather(*(certificate_end_s(broker) for broker in state.brokers))
        return {
            f"{broker.id}:{broker.host}:{broker.port}": end_s
            for broker, end_s in zip(state.brokers, ends, strict=True)
            if end_s is not None
        }

    try:
        found = (await cluster.ask(("certificates",), ask, fresh_s=_CERTIFICATES_FOR_S)).value
    except NoSample:
        return {}
    return {subject: (end_s - now_s) / _DAY_S for subject, end_s in found.items()}


async def certificate_end_s(broker: Broker) -> float | None:
    """Return when the certificate of a broker's TLS listener ends; None while it does not show one.

    The certificate is not verified, as one that has ended is to be reported as well, and nothing is sent.
    """
    from cryptography.x509 import load_der_x509_certificate

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            _, writer = await asyncio.open_connection(broker.host, broker.port, ssl=context)
    except (OSError, TimeoutError):
        return None
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return load_der_x509_certificate(shown).not_valid_after_utc.timestamp() if shown else None
    except ValueError:
        return None
    finally:
        await _hang_up(writer)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    # Orderly: a broker that has not got the end of the handshake logs one that failed.
    writer.close()
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
