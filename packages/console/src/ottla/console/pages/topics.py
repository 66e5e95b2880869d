"""The topics of a cluster, and the page of one: its partitions, offsets, sizes, replicas and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import EARLIEST, LATEST, TOPIC, Admin, ClusterState, ConfigEntry, PartitionHealth
from ottla.client.cluster import Topic
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.replica_grid import replica_grid
from ottla.console.clusters.samples import NoSample
from ottla.console.clusters.topic_rows import TOPIC_ORDERS, chosen_topics, topic_rows
from ottla.console.pages import of_cluster, respond
from ottla.console.pages.watched import topic_growth, watched_of
from ottla.console.web.tables import page_of, table_view
from ottla.protocol.topics import TopicPartition

PARTITION_ROWS = 500


@of_cluster
async def topics(request: Request, cluster: ShownCluster) -> Response:
    """Show the topics of a cluster: searched, sorted and cut into pages here, not in the browser."""
    view = table_view(request.query_params, TOPIC_ORDERS, more=("internal", "health"))
    internal, lacking = ("internal", "1") in view.more, ("health", "lacking") in view.more
    sample, last = await cluster.state(), watched_of(request, cluster)
    rates = None if last is None else last.written_per_s
    rows = await cluster.derived("topics", (sample.value, last), lambda: topic_rows(sample.value, rates))
    chosen = await asyncio.to_thread(
        chosen_topics, rows, text=view.text, order=view.order, descending=view.descending,
        internal=internal, lacking=lacking,
    )  # fmt: skip
    return respond(
        request,
        "topics",
        title=f"Topics · {cluster.name}",
        cluster=cluster,
        sample=sample,
        view=view,
        internal=internal,
        hidden=0 if internal else sum(row.is_internal for row in rows),
        lacking=lacking,
        page=page_of(chosen, view.page),
    )


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """Offsets and settings of a topic: offsets by partition, without those whose leader is away."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    settings: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of a topic; offsets are None where its leader does not answer, the size -1 if not known."""

    index: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int | None
    end: int | None
    size_bytes: int

    @property
    def records(self) -> int | None:
        """Offsets between start and end: as many records, or more in a compacted topic than there are."""
        return None if self.start is None or self.end is None else self.end - self.start


@of_cluster
async def topic(request: Request, cluster: ShownCluster) -> Response:
    """Show one topic."""
    name = request.path_params["topic"]
    state = await cluster.state()
    if name not in await cluster.derived("names", (state.value,), lambda: _names(state.value)):
        raise HTTPException(404, f"there is no topic {name!r} in cluster {cluster.name}")
    details, failure = None, ""
    try:
        asked = await cluster.ask(("topic", name), lambda admin: _details(admin, name))
        details, failure = asked.value, asked.failure
    except NoSample as error:
        failure = str(error)
    view, last = table_view(request.query_params), watched_of(request, cluster)
    rows = await asyncio.to_thread(partition_rows, state.value, name, details)
    return respond(
        request,
        "topic",
        title=f"{name} · {cluster.name}",
        cluster=cluster,
        sample=state,
        topic=name,
        failure=failure,
        view=view,
        page=page_of(rows, view.page, PARTITION_ROWS),
        records=_sum([row.records for row in rows]),
        settings=details.settings if details else (),
        grid=await asyncio.to_thread(replica_grid, state.value, topic=name),
        written_per_s=None if last is None else last.written_per_s.get(name),
        growth=await topic_growth(request, cluster, name),
    )


def _names(state: ClusterState) -> frozenset[str]:
    return frozenset(health.partition.topic for health in state.partitions)


async def _details(admin: Admin, name: str) -> TopicDetails:
    found: Topic = await admin.topics.describe(name)
    partitions = [TopicPartition(name, index) for index in sorted(found.partitions)]
    return TopicDetails(
        await admin.offsets.find_reachable(dict.fromkeys(partitions, EARLIEST)),
        await admin.offsets.find_reachable(dict.fromkeys(partitions, LATEST)),
        tuple(await admin.configs.describe(TOPIC, name, documentation=True)),
    )


def partition_rows(state: ClusterState, name: str, details: TopicDetails | None) -> list[PartitionRow]:
    """Return a row for each partition of a topic."""
    sizes = {
        (log_dir.broker, replica.partition): replica.size_bytes
        for log_dir in state.log_dirs
        for replica in log_dir.replicas
        if replica.partition.topic == name and not replica.is_future
    }
    chosen = [health for health in state.partitions if health.partition.topic == name]
    return [_partition_row(health, sizes, details) for health in chosen]


def _partition_row(
    health: PartitionHealth, sizes: Mapping[tuple[int, TopicPartition], int], details: TopicDetails | None
) -> PartitionRow:
    partition = health.partition
    return PartitionRow(
        partition.partition,
        health.leader,
        health.replicas,
        health.isr,
        None if details is None else details.starts.get(partition),
        None if details is None else details.ends.get(partition),
        -1 if health.leader is None else sizes.get((health.leader, partition), -1),
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
