"""A console in the process of a test, a client for it, and its forms; alerts without waits between looks."""

from __future__ import annotations

import asyncio
import html
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.client.environment import monotonic_s, now_ms
from ottla.client.errors import ClientError
from ottla.console.app import application
from ottla.console.clusters.applications import Place
from ottla.console.clusters.connections import ShownCluster, ShownClusters
from ottla.console.clusters.samples import NoSample
from ottla.console.settings import ClusterSettings, ConsoleSettings
from ottla.console.watch.alerts import Alerts
from ottla.console.watch.looks import Look, WrittenTimes, look_at
from ottla.console.watch.rule_files import Rule, Targets
from ottla.console.watch.rules import readings, remembered, unreached

ORIGIN = "http://127.0.0.1:8180"
MOST_LOOKS: Final = 600
LOOK_S: Final = 30


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


async def preview(console: httpx.AsyncClient, change: str, *, cluster: str = "local", **form: str) -> str:
    """Return the page with the form of a change, and what the change would do."""
    answer = await console.get(f"/c/{cluster}/change/{change}?{urlencode(form)}")
    return answer.text


async def do(
    console: httpx.AsyncClient, change: str, typed: str = "", *, cluster: str = "local", **form: str
) -> httpx.Response:
    """Open the form of a change as a browser does, and send it."""
    text = await preview(console, change, cluster=cluster, **form)
    return await send(console, change, text, typed, cluster=cluster, **form)


async def send(
    console: httpx.AsyncClient, change: str, shown: str, typed: str = "", *, cluster: str = "local",
    **form: str,
) -> httpx.Response:  # fmt: skip
    """Send the form of a preview, with the hidden fields that it has beside those of the user."""
    hidden = dict(re.findall(r'name="(token|shown)" value="([^"]*)"', shown))
    hidden = {name: html.unescape(value) for name, value in hidden.items()}
    return await console.post(
        f"/c/{cluster}/change/{change}", content=urlencode({**form, "typed": typed, **hidden}),
        headers={"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"},
    )  # fmt: skip


class AlertWatch:
    """Looks at a real cluster, and judges rules at each look; a look is half a minute for the rules.

    A test makes a fault, and waits for the events that follow from it.
    """

    def __init__(self, cluster: ShownCluster, *rules: Rule) -> None:
        self.alerts = Alerts(rules)
        self.at_s = 0
        self._cluster = cluster
        self._times = WrittenTimes()
        self._earlier: Look | None = None

    async def look(self) -> list[tuple[str, str]]:
        """Look once; return the events, each as its kind and its rule."""
        self.at_s += LOOK_S
        try:
            look = await look_at(self._cluster, self._times, now_ms() / 1_000)
            found = readings(look, self._earlier)
            self._earlier = remembered(look, self._earlier)
        except (NoSample, ClientError) as error:
            found = unreached(self._cluster.name, str(error))
        return [(event.kind, event.rule) for event in self.alerts.step(found, self.at_s).events]

    async def until(self, *events: tuple[str, str]) -> None:
        """Look until all of these events have happened. Raises AssertionError for any other event."""
        left = list(events)
        for _ in range(MOST_LOOKS):
            for event in await self.look():
                assert event in left, f"{event} instead of {left}: {self.alerts.events[-1].text}"
                left.remove(event)
            if not left:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{left} did not happen: {[alert.text for alert in self.alerts.raised]}")


@asynccontextmanager
async def alert_watch(settings: ClusterSettings, *rules: Rule) -> AsyncIterator[AlertWatch]:
    """Return a watch of a cluster, connected as the console is."""
    watch: AlertWatch | None = None

    def now_s() -> float:
        return monotonic_s() + (0 if watch is None else watch.at_s)

    async with ShownClusters([settings], now_s) as clusters:
        (cluster,) = clusters
        watch = AlertWatch(cluster, *rules)
        yield watch


@asynccontextmanager
async def listening(*clusters: ClusterSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a console at a port, and return a client for it: one that sees answers as they come."""
    server = uvicorn.Server(
        uvicorn.Config(
            application(ConsoleSettings(clusters)),
            log_config=None,
            lifespan="on",
            timeout_graceful_shutdown=1,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as port:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([port]))
            origin = f"http://127.0.0.1:{port.getsockname()[1]}"
            try:
                async with httpx.AsyncClient(base_url=origin, timeout=60) as client:
                    yield client
            finally:
                server.should_exit = True
