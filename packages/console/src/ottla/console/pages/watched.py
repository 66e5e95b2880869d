"""Collected numbers: points of a series for a chart, and the page for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ottla.client.environment import now_ms
from ottla.console.clusters.connections import ShownCluster
from ottla.console.logins.access import Need, a_cluster
from ottla.console.pages import of_cluster, viewer_of
from ottla.console.watch.alert_store import StoredAlerts
from ottla.console.watch.collecting import COMMITTED, ENDS, LAG, PROBLEMS, Collector, Watched
from ottla.console.watch.exporter import exposition
from ottla.console.watch.history import KEPT_FOR_S, History, Point, Series
from ottla.console.watch.trends import Since, growth, held_since, rates

_KINDS: Final = (LAG, COMMITTED, ENDS, PROBLEMS, "time_lag")
_DAY_S: Final = 86_400
_MOST_HOURS: Final = 14 * 24


def a_series(path: Mapping[str, str], query: Mapping[str, str]) -> Need:
    """Need to see the group or the topic of a series."""
    kind, name = query.get("kind", LAG), query.get("name", "")
    if kind == ENDS:
        return Need(cluster=path["cluster"], topic=name)
    return a_cluster(path, query) if kind == PROBLEMS else Need(cluster=path["cluster"], group=name)


@of_cluster
async def points(request: Request, cluster: ShownCluster) -> Response:
    """Return the points of a series as columns: times and values, or with `per=second` its growth."""
    kind, hours = request.query_params.get("kind", LAG), request.query_params.get("hours", "")
    back = min(int(hours), _MOST_HOURS) if hours.isascii() and hours.isdigit() and len(hours) < 5 else 6
    series = Series(cluster.name, kind if kind in _KINDS else LAG, request.query_params.get("name", ""))
    found = await history_of(request).read(series, now_ms() // 1_000 - back * 3_600)
    if request.query_params.get("per") == "second":
        found = rates(found)
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    return JSONResponse({"at_s": columns[0], "low": columns[1], "high": columns[2], "mean": columns[3]})


async def metrics(request: Request) -> Response:
    """Return the last look at all clusters for Prometheus, of those that its viewer may see whole."""
    collector: Collector = request.state.collector
    stored: StoredAlerts = request.state.alerts
    viewer = viewer_of(request)
    seen = {
        name: found
        for name, found in collector.latest.items()
        if viewer.may(Need(cluster=name, is_whole=True))
    }
    sees_rules = viewer.may(Need(is_whole=True))  # their names may hold those of topics
    text = await asyncio.to_thread(
        exposition,
        seen,
        [alert for alert in stored.alerts.raised if viewer.may(Need(cluster=alert.cluster, is_whole=True))],
        [rule.name for rule in stored.alerts.rules] if sees_rules else (),
        {box.target.name: box.given_up for box in stored.outboxes} if sees_rules else {},
        most_series=request.app.state.most_series,
    )
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def history_of(request: Request) -> History:
    """Return the history that the console keeps."""
    found: History = request.state.history
    return found


def watched_of(request: Request, cluster: ShownCluster) -> Watched | None:
    """Return the last look at a cluster; None until the console has had one."""
    collector: Collector = request.state.collector
    return collector.latest.get(cluster.name)


async def topic_growth(request: Request, cluster: ShownCluster, topic: str) -> tuple[float, int] | None:
    """Return how many records a topic got over the last day, and in how many seconds of it."""
    since_s = now_ms() // 1_000 - _DAY_S
    return growth(await history_of(request).read(Series(cluster.name, ENDS, topic), since_s))


async def away_since(request: Request, cluster: ShownCluster, broker: int) -> Since | None:
    """Return since when a broker has been away, by the looks of the console; None if no look saw that yet."""
    now_s, history = now_ms() // 1_000, history_of(request)
    since_s = now_s - KEPT_FOR_S
    away = await history.read(Series(cluster.name, "broker_away", str(broker)), since_s)
    if not away:
        return None
    looks = await history.read(Series(cluster.name, PROBLEMS, ""), since_s)
    return await asyncio.to_thread(held_since, away, looks, now_s)


async def lag_points(request: Request, cluster: ShownCluster, group: str) -> list[Point]:
    """Return a group's lag over the time that is kept."""
    since_s = now_ms() // 1_000 - KEPT_FOR_S
    return await history_of(request).read(Series(cluster.name, LAG, group), since_s)
