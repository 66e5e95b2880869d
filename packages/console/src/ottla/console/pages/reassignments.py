"""Reassignments: what moves between brokers, how far it is, and leaders that are not the preferred ones."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import Admin, Reassignment
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.replica_grid import move_progress, replica_grid, unpreferred
from ottla.console.clusters.samples import NoSample
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import page_of, table_view

MOVES = 100


@of_cluster
async def reassignments(request: Request, cluster: ShownCluster) -> Response:
    """Show what moves, its progress and its picture, and the leaders that an election would change."""
    view = table_view(request.query_params)
    state = await cluster.state()
    moves, failure = await moves_of(cluster)
    page = page_of(move_progress(state.value, moves), view.page, MOVES)
    return respond(
        request,
        "reassignments",
        title=f"Reassignments · {cluster.name}",
        cluster=cluster,
        sample=state,
        failure=failure,
        view=view,
        page=page,
        grid=replica_grid(state.value, moves=moves, only_moves=True),
        unpreferred=unpreferred(state.value.partitions),
    )


async def moves_of(cluster: ShownCluster) -> tuple[list[Reassignment], str]:
    """Return what moves, and the reason why that is not known, or is old ("" where there is none)."""
    try:
        sample = await cluster.ask(("reassignments",), _ask)
    except NoSample as error:
        return [], str(error)
    return [move for move in sample.value if cluster.may(topic=move.partition.topic)], sample.failure


async def _ask(admin: Admin) -> list[Reassignment]:
    return await admin.partitions.reassignments()
