"""The groups of a cluster with their lag, and the page of one: members, partitions, offsets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.admin import EARLIEST, Admin, GroupListing
from ottla.admin.groups import GroupProgress
from ottla.client.environment import now_ms
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.group_rows import (
    GroupRow,
    chosen_groups,
    group_row,
    lagging_partitions,
    most_unread,
    owned_lags,
    partition_ranges,
    total_lag,
    uncommitted,
    unknown_ends,
)
from ottla.console.clusters.metrics_pages import Acquired, group_acquired
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.pages import of_cluster, respond
from ottla.console.pages.watched import lag_points, watched_of
from ottla.console.records.reading import read_window
from ottla.console.watch.paces import UNKNOWN
from ottla.console.watch.trends import behind_since, diagnosis, falls_behind, trend
from ottla.console.web.tables import Page, page_of, table_view
from ottla.protocol.topics import TopicPartition

GROUP_ROWS: Final = 50
MOST_WAITS: Final = 20
"""Partitions whose oldest unread record is read: those that lag most."""
ZOOKEEPER: Final = "zookeeper"
"""The type of groups whose members are znodes, as it stands in addresses."""
SHARE: Final = "share"
"""The type of groups whose members acquire records one by one."""
SOON_S: Final = 2.0
"""How long the list waits for the lag of its groups; those that come later are there at the next look."""


@of_cluster
async def groups(request: Request, cluster: ShownCluster) -> Response:
    """Show the groups of a cluster; the lag of those on the page."""
    view = replace(table_view(request.query_params, ("lag", "name"), more=("state", "type")), first="")
    if "order" not in request.query_params:
        view = replace(view, descending=True)
    state, kind = dict(view.more).get("state", ""), dict(view.more).get("type", "")
    sample = await cluster.groups()
    old, old_failure = await _zookeeper_groups(cluster)
    listed_all = [*sample.value, *old]
    chosen = chosen_groups(listed_all, text=view.text, state=state, kind=kind)
    latest = watched_of(request, cluster)
    lags = {} if latest is None else {name: total_lag(of) for name, of in latest.look.progress.items()}
    if view.descending:
        chosen.reverse()
    if view.order == "lag":  # of groups that no look has seen yet it is not known
        chosen.sort(key=lambda group: lags.get(group.name) or -1, reverse=view.descending)
    listed = page_of(chosen, view.page, GROUP_ROWS)
    rows = await asyncio.gather(*(_row(cluster, listing) for listing in listed.rows))
    has_share = any(row.type == SHARE for row in rows)
    return respond(
        request,
        "groups",
        title=f"Groups · {cluster.name}",
        cluster=cluster,
        sample=sample,
        view=view,
        state=state,
        states=sorted({group.state for group in listed_all if group.state}),
        kind=kind,
        kinds=sorted({group.type for group in listed_all}),
        old_failure=old_failure,
        page=Page(rows, listed.total, listed.number, listed.last),
        unread_s={} if latest is None else latest.look.time_lags_s,
        has_share=has_share,
        acquired=await _acquired(cluster) if has_share else None,
        is_whole=all(row.acquired is None or row.acquired.is_whole for row in rows),
    )


async def _zookeeper_groups(cluster: ShownCluster) -> tuple[list[GroupListing], str]:
    """Return the groups in ZooKeeper, where the profile names it, and the reason why they are not known."""
    if not cluster.has_zookeeper:
        return [], ""
    try:
        found = await cluster.zookeeper_groups()
    except NoSample as error:
        return [], str(error)
    return [GroupListing(name, "", "consumer", ZOOKEEPER) for name in found.value], found.failure


async def _row(cluster: ShownCluster, listing: GroupListing) -> GroupRow:
    try:
        async with asyncio.timeout(SOON_S):
            is_old = listing.type == ZOOKEEPER
            ask = cluster.zookeeper_progress if is_old else cluster.progress
            progress = await ask(listing.name)
    except NoSample as error:
        return group_row(listing, None, str(error))
    except TimeoutError:
        return group_row(listing, None, "its coordinator has not answered yet")
    row = group_row(listing, progress.value, progress.failure)
    if row.type != SHARE:
        return row
    return replace(row, acquired=group_acquired(progress.value, await _acquired(cluster)))


async def _acquired(cluster: ShownCluster) -> Acquired | None:
    """Return what members of share groups hold, or why that is not known; None where no page is named."""
    try:
        async with asyncio.timeout(SOON_S):
            return await cluster.acquired()
    except NoSample as error:
        return Acquired({}, (str(error),))
    except TimeoutError:
        return Acquired({}, ("the metrics pages have not answered yet",))


@of_cluster
async def group(request: Request, cluster: ShownCluster) -> Response:
    """Show one group. Its name stands in the query: names of groups may have any character."""
    name = request.query_params.get("name", "")
    if not name:
        raise HTTPException(404, "the address names no group")
    is_old = request.query_params.get("type") == ZOOKEEPER
    sample = await (cluster.zookeeper_progress(name) if is_old else _progress(cluster, name))
    progress, last = sample.value, watched_of(request, cluster)
    lag, now_s = total_lag(progress), now_ms() // 1_000
    points = [] if is_old else await lag_points(request, cluster, name)
    since_s, found = behind_since(points, lag or 0), trend(points, now_s)
    pace = UNKNOWN if last is None else last.pace(progress, now_s)
    held = await _held(cluster, progress)
    is_share = progress.description.type == SHARE
    acquired = await _acquired(cluster) if is_share else None
    return respond(
        request,
        "group",
        title=f"{name} · {cluster.name}",
        cluster=cluster,
        sample=sample,
        group=progress.description,
        progress=progress,
        is_share=is_share,
        acquired=acquired,
        in_hand=group_acquired(progress, acquired),
        is_old=is_old,
        lag_per_s={} if last is None or is_old else last.lag_per_s.get(name, {}),
        read_per_s=None if last is None else last.committed_per_s.get(name),
        lag=lag,
        unknown=unknown_ends(progress),
        where=lagging_partitions(progress),
        trend=found,
        why=diagnosis(progress, found, replace(pace, falls_behind=falls_behind(points, now_s))),
        behind_s=None if since_s is None else now_s - since_s,
        behind_since_ms=None if since_s is None else since_s * 1_000,
        is_since_ever=bool(points) and since_s == points[0].at_s,
        waits=await _waits(cluster, progress),
        held=held,
        uncommitted=uncommitted(progress),
        lags=most_unread(progress, held),
        owned=owned_lags(progress, held),
        ranges=partition_ranges,
    )


@of_cluster
async def named_group(request: Request, cluster: ShownCluster) -> Response:
    """Lead from the address that one would guess to the page of a group."""
    base = request.app.state.renderer.base_path
    query = urlencode({"name": request.path_params["name"]})
    return RedirectResponse(f"{base}/c/{quote(cluster.name, safe='')}/group?{query}", 308)


async def _progress(cluster: ShownCluster, name: str) -> Sample[GroupProgress]:
    """Return the progress of a group. Raises HTTPException for one that no broker lists."""
    try:
        return await cluster.progress(name)
    except NoSample:
        if name in {listing.name for listing in (await cluster.groups()).value}:
            raise
        raise HTTPException(404, f"there is no group {name!r} in cluster {cluster.name}") from None


async def _waits(cluster: ShownCluster, progress: GroupProgress) -> dict[TopicPartition, float]:
    """Return how many seconds ago the first record was written that the group has not read, by partition.

    The record itself is asked, so this is true for a group that has been away for months, too.
    """
    behind = sorted(
        (found for found in progress.partitions if found.lag is not None and found.lag > 0),
        key=lambda found: -(found.lag or 0),
    )[:MOST_WAITS]

    async def ask(admin: Admin) -> dict[TopicPartition, float]:
        windows = await asyncio.gather(
            *(
                read_window(admin.cluster, found.partition, found.offset or 0, found.end_offset or 0, 1)
                for found in behind
            )
        )
        return {
            found.partition: max(0.0, now_ms() - window.records[0].timestamp_ms) / 1_000
            for found, window in zip(behind, windows, strict=True)
            if window.records
        }

    key = ("waits", progress.description.name, *(f"{found.partition}@{found.offset}" for found in behind))
    try:
        return (await cluster.ask(key, ask)).value
    except NoSample:
        return {}


async def _held(cluster: ShownCluster, progress: GroupProgress) -> dict[TopicPartition, int]:
    """Return how many records those partitions hold in which a group has committed nothing."""
    ends = {found.partition: found.end_offset for found in progress.partitions}
    asked = uncommitted(progress)

    async def ask(admin: Admin) -> dict[TopicPartition, int]:
        return await admin.offsets.find_reachable(dict.fromkeys(asked, EARLIEST))

    try:
        starts = (await cluster.ask(("starts", *map(str, asked)), ask)).value if asked else {}
    except NoSample:
        return {}
    return {
        partition: max(0, end - start)
        for partition, start in starts.items()
        if (end := ends[partition]) is not None
    }
