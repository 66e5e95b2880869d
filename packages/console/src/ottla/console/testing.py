"""A console in the process of a test, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.console.app import application
from ottla.console.clusters.applications import Place
from ottla.console.settings import ClusterSettings, ConsoleSettings
from ottla.console.watch.rule_files import Rule, Targets

ORIGIN = "http://127.0.0.1:8180"


@asynccontextmanager
async def serving(
    *clusters: ClusterSettings,
    allows_changes: bool = False,
    audit: Path | None = None,
    rules: tuple[Rule, ...] = (),
    targets: Targets | None = None,
    places: tuple[Place, ...] = (),
    history: Path | None = None,
    logins: Path | None = None,
    base_path: str = "",
    openid_transport: object = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a console for clusters, and return a client whose requests come from a page of it."""
    settings = ConsoleSettings(
        clusters,
        allows_changes=allows_changes,
        audit=audit,
        rules=rules,
        targets=targets or Targets(),
        places=places,
        history=history,
        logins=logins,
        base_path=base_path,
    )
    app = application(settings)
    app.state.openid_transport = openid_transport
    async with app.router.lifespan_context(app) as state:
        transport = httpx.ASGITransport(_with_state(app, dict(state or {})))
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, timeout=60) as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


def _with_state(app: ASGIApp, state: dict[str, object]) -> ASGIApp:
    """Give each request the state of the application, as a server does."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": dict(state)}, receive, send)

    return serve
