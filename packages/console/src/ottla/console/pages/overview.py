"""The page of a cluster: its problems, brokers, log directories, and the picture of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import ClusterState, Problem, Reassignment, problems
from ottla.client.environment import now_ms
from ottla.console.clusters.connections import LastSeen, ShownCluster
from ottla.console.clusters.group_rows import partition_ranges
from ottla.console.clusters.replica_grid import BrokerLoad, ReplicaGrid, broker_loads, replica_grid
from ottla.console.clusters.topic_rows import is_internal
from ottla.console.pages import is_opened, of_cluster, respond
from ottla.console.pages.reassignments import moves_of
from ottla.console.pages.watched import away_since, watched_of
from ottla.console.watch.trends import Since

MOST_PROBLEMS = 50
FIRST_S = 0.05
"""How long a browser waits for the state of a cluster that was never asked before."""


@dataclass(frozen=True, slots=True)
class Summary:
    """That which the page derives from a state of the cluster."""

    problems: list[Problem]
    loads: Mapping[int, BrokerLoad]
    topics: int
    internal_topics: int
    lacking: int
    away: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwayBroker:
    """A broker that has replicas and is not there: since when, what it carries, and how it was last seen."""

    id: int
    load: BrokerLoad
    since: Since | None
    last: LastSeen | None


@of_cluster
async def overview(request: Request, cluster: ShownCluster) -> Response:
    """Show a cluster."""
    internal = request.query_params.get("internal") == "1"
    if is_opened(request) and await cluster.state_within(FIRST_S) is None:
        seen = cluster.first_seen
        return respond(request, "first_look", title=cluster.name, cluster=cluster, seen=seen)
    sample, (moves, _) = await asyncio.gather(cluster.state(), moves_of(cluster))
    state = sample.value
    known = await cluster.derived("summary", (state,), lambda: _summary(state))
    last = watched_of(request, cluster)
    return respond(
        request,
        "overview",
        title=cluster.name,
        cluster=cluster,
        sample=sample,
        state=state,
        problems=known.problems[:MOST_PROBLEMS],
        more_problems=max(0, len(known.problems) - MOST_PROBLEMS),
        ranges=partition_ranges,
        loads={broker.id: known.loads.get(broker.id, BrokerLoad()) for broker in state.brokers},
        away=[await _away(request, cluster, broker, known) for broker in known.away],
        now_s=now_ms() // 1_000,
        summary=known,
        internal=internal,
        grid=await _grid(cluster, state, moves, internal=internal),
        moving=len(moves),
        taken={} if last is None else last.taken_per_s,
    )


async def _grid(
    cluster: ShownCluster, state: ClusterState, moves: list[Reassignment], *, internal: bool
) -> ReplicaGrid:
    def draw() -> ReplicaGrid:
        return replica_grid(state, moves=moves, internal=internal)

    if moves:
        return await asyncio.to_thread(draw)
    return await cluster.derived("grid with internal topics" if internal else "grid", (state,), draw)


async def _away(request: Request, cluster: ShownCluster, broker: int, known: Summary) -> AwayBroker:
    since = await away_since(request, cluster, broker)
    return AwayBroker(broker, known.loads[broker], since, cluster.last_seen(broker))


def _summary(state: ClusterState) -> Summary:
    loads, names = broker_loads(state.partitions), {health.partition.topic for health in state.partitions}
    internal, there = sum(map(is_internal, names)), {broker.id for broker in state.brokers}
    return Summary(
        problems(state), loads, len(names) - internal, internal, len(state.under_replicated),
        tuple(sorted(loads.keys() - there)),
    )  # fmt: skip
