"""Alerts: those that stand, the rules, and what was raised and cleared."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ottla.client.environment import now_ms
from ottla.console.pages import respond
from ottla.console.watch.alerts import Alerts


async def alerts(request: Request) -> Response:
    """Show the alerts of all clusters."""
    found: Alerts = request.state.alerts
    return respond(
        request,
        "alerts",
        title="Alerts",
        raised=found.raised,
        rules=found.rules,
        events=list(reversed(found.events)),
        now_s=now_ms() // 1_000,
    )
