"""Reassignments: what moves between brokers, how far it is, and leaders that are not the preferred ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import BROKER, Admin, Reassignment
from ottla.admin.reassigning import FOLLOWER_RATE
from ottla.client.environment import monotonic_s
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.replica_grid import MoveProgress, move_progress, replica_grid, unpreferred
from ottla.console.clusters.samples import NoSample
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import page_of, table_view
from ottla.protocol.topics import TopicPartition

MOVES = 100
_THROTTLES_S = 10.0


@of_cluster
async def reassignments(request: Request, cluster: ShownCluster) -> Response:
    """Show what moves, its progress and its picture, and the leaders that an election would change."""
    view = table_view(request.query_params)
    state = await cluster.state()
    moves, failure = await moves_of(cluster)
    progress = move_progress(state.value, moves)
    left = _left_bytes(cluster, progress, monotonic_s() - state.age_s)
    page = page_of(progress, view.page, MOVES)
    return respond(
        request,
        "reassignments",
        title=f"Reassignments · {cluster.name}",
        cluster=cluster,
        sample=state,
        failure=failure,
        view=view,
        page=page,
        left_s={partition: cluster.copies.left_s({partition: count}) for partition, count in left.items()},
        all_left_s=cluster.copies.left_s(left),
        throttles=await _throttles_of(cluster) if moves and cluster.may() else {},
        grid=replica_grid(state.value, moves=moves, only_moves=True),
        unpreferred=unpreferred(state.value.partitions),
    )


def _left_bytes(
    cluster: ShownCluster, progress: Sequence[MoveProgress], at_s: float
) -> dict[TopicPartition, int]:
    """Return the bytes that are to be copied yet, and take those that are copied for the rates."""
    known = [
        (found.move.partition, found.copied_bytes, found.total_bytes)
        for found in progress
        if found.copied_bytes is not None and found.total_bytes is not None
    ]
    cluster.copies.look(at_s, {partition: copied for partition, copied, _ in known})
    return {partition: total - copied for partition, copied, total in known if total > copied}


async def _throttles_of(cluster: ShownCluster) -> dict[int, str]:
    """Return the bytes per second that brokers may copy, of those with a bound; none while not known."""
    try:
        return (await cluster.ask(("throttles",), _ask_throttles, fresh_s=_THROTTLES_S)).value
    except NoSample:
        return {}


async def _ask_throttles(admin: Admin) -> dict[int, str]:
    brokers = [broker.id for broker in (await admin.brokers.describe()).brokers]
    described = await asyncio.gather(*(admin.configs.describe(BROKER, str(broker)) for broker in brokers))
    return {
        broker: entry.value or ""
        for broker, entries in zip(brokers, described, strict=True)
        for entry in entries
        if entry.name == FOLLOWER_RATE and entry.source in ("broker", "all brokers")
    }


async def moves_of(cluster: ShownCluster) -> tuple[list[Reassignment], str]:
    """Return what moves, and the reason why that is not known, or is old ("" where there is none)."""
    try:
        sample = await cluster.ask(("reassignments",), _ask)
    except NoSample as error:
        return [], str(error)
    return [move for move in sample.value if cluster.may(topic=move.partition.topic)], sample.failure


async def _ask(admin: Admin) -> list[Reassignment]:
    return await admin.partitions.reassignments()
