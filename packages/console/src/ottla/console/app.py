"""The application: routes, guards, and the clusters that it keeps connected while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, TypedDict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from ottla.client.environment import monotonic_s, now_ms
from ottla.console.changes.audit import AuditLog
from ottla.console.clusters.applications import Applications
from ottla.console.clusters.connections import ShownClusters
from ottla.console.logins.access import (
    a_cluster,
    a_group,
    a_login,
    a_named_group,
    a_topic,
    a_whole_cluster,
    everybody,
)
from ottla.console.logins.authenticator import Authenticator
from ottla.console.logins.files import read_logins
from ottla.console.logins.gate import Gate, Page
from ottla.console.pages import respond
from ottla.console.pages.access import access
from ottla.console.pages.alerts import alerts as alerts_page
from ottla.console.pages.alerts import silence
from ottla.console.pages.changes import CHANGES, change
from ottla.console.pages.clusters import all_clusters
from ottla.console.pages.connect import connector, connectors
from ottla.console.pages.groups import group, groups, named_group
from ottla.console.pages.logins import begin_oidc, finish_oidc, login, logout
from ottla.console.pages.overview import overview
from ottla.console.pages.reassignments import reassignments
from ottla.console.pages.records import compare, record, records
from ottla.console.pages.registry import check, schema, subject, subjects
from ottla.console.pages.searches import cancel_search, events, export, searches
from ottla.console.pages.settings import settings as settings_page
from ottla.console.pages.streams import dead_letters, streams
from ottla.console.pages.topics import topic, topics
from ottla.console.pages.transactions import transactions
from ottla.console.pages.versions import versions
from ottla.console.pages.watched import a_series, metrics, points
from ottla.console.pages.znodes import znodes
from ottla.console.records.searches import Searches
from ottla.console.settings import ConsoleSettings
from ottla.console.watch.alert_store import StoredAlerts
from ottla.console.watch.collecting import Collector
from ottla.console.watch.history import History
from ottla.console.watch.sending import outboxes
from ottla.console.web.csrf import FormTokens
from ottla.console.web.guards import BehindProxy, Guards
from ottla.console.web.rendering import Renderer


class Shared(TypedDict):
    """The state that requests of a running application share."""

    clusters: ShownClusters
    history: History
    collector: Collector
    alerts: StoredAlerts
    applications: Applications
    searches: Searches


def application(settings: ConsoleSettings) -> Starlette:
    """Return the application; it connects to its clusters when it begins to watch them.

    Raises LoginsError.
    """
    file = settings.logins
    authenticator = None if file is None else Authenticator(file, read_logins(file))
    renderer = Renderer(settings.base_path)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[Shared]:
        async with watching(settings, authenticator, renderer) as shared:
            yield shared

    app = Starlette(
        routes=routes(),
        middleware=_guards(settings, authenticator),
        exception_handlers={HTTPException: refused, Exception: failed},
        lifespan=lifespan,
    )
    app.state.renderer = renderer
    app.state.authenticator = authenticator
    app.state.openid = app.state.openid_transport = None
    app.state.changes = CHANGES
    app.state.form_tokens = FormTokens()
    app.state.audit = AuditLog(settings.audit)
    app.state.allows_changes = settings.allows_changes
    app.state.most_series = settings.most_series
    return app


def _guards(settings: ConsoleSettings, authenticator: Authenticator | None) -> list[Middleware]:
    proxy = [Middleware(BehindProxy, proxies=settings.proxies)] if settings.proxies else []
    https_only = bool(settings.proxies or settings.certificate)
    return [
        *proxy,
        Middleware(Guards, names=settings.names, base_path=settings.base_path, https_only=https_only),
        Middleware(Gate, authenticator=authenticator),
    ]


def routes() -> list[Page | Mount]:
    """Return all routes; each page declares the right that it needs."""
    return [
        Page("/", all_clusters, a_login),
        Page("/health", health, everybody),
        Page("/login", login, everybody, methods=["GET", "POST"]),
        Page("/login/oidc", begin_oidc, everybody),
        Page("/login/oidc/callback", finish_oidc, everybody),
        Page("/logout", logout, everybody, methods=["POST"]),
        Page("/metrics", metrics, a_login),
        Page("/alerts", alerts_page, a_login),
        Page("/alerts/silence", silence, a_login, methods=["GET", "POST"]),
        Page("/c/{cluster}/", overview, a_cluster),
        Page("/c/{cluster}/topics", topics, a_cluster),
        Page("/c/{cluster}/topics/{topic}", topic, a_topic),
        Page("/c/{cluster}/topics/{topic}/records", records, a_topic),
        Page("/c/{cluster}/topics/{topic}/records/events", events, a_topic),
        Page("/c/{cluster}/topics/{topic}/records/export", export, a_topic),
        Page("/c/{cluster}/topics/{topic}/record", record, a_topic),
        Page("/c/{cluster}/topics/{topic}/dead-letters", dead_letters, a_topic),
        Page("/c/{cluster}/streams", streams, a_cluster),
        Page("/c/{cluster}/topics/{topic}/compare", compare, a_topic),
        Page("/c/{cluster}/searches", searches, a_cluster),
        Page("/c/{cluster}/searches/{search}/cancel", cancel_search, a_cluster, methods=["POST"]),
        Page("/c/{cluster}/groups", groups, a_cluster),
        Page("/c/{cluster}/group", group, a_group),
        Page("/c/{cluster}/groups/{name:path}", named_group, a_named_group),
        Page("/c/{cluster}/points", points, a_series),
        Page("/c/{cluster}/change/{change}", change, a_cluster, methods=["GET", "POST"]),
        Page("/c/{cluster}/transactions", transactions, a_whole_cluster),
        Page("/c/{cluster}/reassignments", reassignments, a_cluster),
        Page("/c/{cluster}/versions", versions, a_cluster),
        Page("/c/{cluster}/znodes", znodes, a_whole_cluster),
        Page("/c/{cluster}/settings", settings_page, a_whole_cluster),
        Page("/c/{cluster}/access", access, a_whole_cluster),
        Page("/c/{cluster}/registry", subjects, a_whole_cluster),
        Page("/c/{cluster}/registry/subject", subject, a_whole_cluster),
        Page("/c/{cluster}/registry/check", check, a_whole_cluster, methods=["POST"]),
        Page("/c/{cluster}/registry/schema", schema, a_whole_cluster),
        Page("/c/{cluster}/connect", connectors, a_whole_cluster),
        Page("/c/{cluster}/connect/connector", connector, a_whole_cluster),
        Mount("/static", StaticFiles(packages=[("ottla.console", "static")]), name="static"),
    ]


@asynccontextmanager
async def watching(
    settings: ConsoleSettings,
    authenticator: Authenticator | None = None,
    renderer: Renderer | None = None,
) -> AsyncIterator[Shared]:
    """Watch the clusters, and judge the rules of alerts at each look."""
    async with (
        History(settings.history) as history,
        ShownClusters(settings.clusters, monotonic_s) as clusters,
        Applications(settings.places, monotonic_s, lambda: now_ms() / 1_000) as applications,
        asyncio.TaskGroup() as tasks,
    ):
        alerts = await StoredAlerts.load(
            history,
            settings.rules,
            [cluster.name for cluster in settings.clusters],
            outboxes(settings.targets),
        )
        collector = Collector(clusters, history, on_readings=alerts.judge)
        running = [tasks.create_task(collector.run(), name="collector")]
        running += [tasks.create_task(box.run(), name=box.target.name) for box in alerts.outboxes]
        if authenticator is not None:
            running.append(tasks.create_task(authenticator.run(), name="logins"))
        if renderer is not None:
            running.append(tasks.create_task(renderer.compile(), name="templates"))
        yield {
            "clusters": clusters, "history": history, "collector": collector, "alerts": alerts,
            "applications": applications, "searches": Searches(monotonic_s),
        }  # fmt: skip
        for task in running:
            task.cancel()


async def health(_: Request) -> Response:
    """Answer as long as the console serves."""
    return PlainTextResponse("ok\n")


_REASONS: Final = {
    404: "The console has no page at this address.",
    405: "This page takes no such request: it was made for another form of it.",
}


def refused(request: Request, error: Exception) -> Response:
    """Return the page of an error that the user can do something about."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    reason = error.detail if error.detail != phrase else _REASONS.get(error.status_code, "")
    return respond(
        request,
        "refused",
        status=error.status_code,
        title=phrase,
        reason=reason,
    )


def failed(request: Request, _: Exception) -> Response:
    """Return the page of a fault of the console; its details stand in the log."""
    reason = "the console failed; its log says why"
    return respond(request, "refused", status=500, title="Failed", reason=reason)
