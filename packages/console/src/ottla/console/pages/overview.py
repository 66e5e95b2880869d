"""The page of a cluster: its problems, brokers, log directories, and the picture of its replicas."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import problems
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.replica_grid import BrokerLoad, broker_loads, replica_grid
from ottla.console.pages import of_cluster, respond
from ottla.console.pages.reassignments import moves_of
from ottla.console.pages.watched import watched_of

MOST_PROBLEMS = 50


@of_cluster
async def overview(request: Request, cluster: ShownCluster) -> Response:
    """Show a cluster."""
    sample = await cluster.state()
    state = sample.value
    found = problems(state)
    loads = broker_loads(state.partitions)
    moves, _ = await moves_of(cluster)
    last = watched_of(request, cluster)
    return respond(
        request,
        "overview",
        title=cluster.name,
        cluster=cluster,
        sample=sample,
        state=state,
        problems=found[:MOST_PROBLEMS],
        more_problems=max(0, len(found) - MOST_PROBLEMS),
        loads={broker.id: loads.get(broker.id, BrokerLoad()) for broker in state.brokers},
        topics=len({health.partition.topic for health in state.partitions}),
        grid=replica_grid(state, moves=moves),
        moving=len(moves),
        taken={} if last is None else last.taken_per_s,
    )
