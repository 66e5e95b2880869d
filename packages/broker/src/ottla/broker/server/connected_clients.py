"""The page of the clients that are connected: each connection with its user, software, rates and quotas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from ottla.broker.network.session import Session
    from ottla.broker.quotas.rates import QuotaBucket
    from ottla.broker.runtime.loop_budget import Turn

MOST_SHOWN: Final = 10_000
"""Connections on the page."""


class Connected(Protocol):
    """A connection."""

    @property
    def session(self) -> Session:
        """Its client."""
        ...


async def page_of(connections: Iterable[Connected], broker_id: int, now_ms: float, turn: Turn) -> bytes:
    """Return the page as JSON; yields to the event loop when its turn is spent."""
    shown: list[dict[str, Any]] = []
    left_out = 0
    for connection in connections:
        if len(shown) == MOST_SHOWN:
            left_out += 1
            continue
        shown.append(_described(connection.session, now_ms))
        await turn.yield_if_spent()
    return json.dumps({"broker": broker_id, "clients": shown, "left_out": left_out}).encode()


def _described(session: Session, now_ms: float) -> dict[str, Any]:
    software_name, software_version = session.software or (None, None)
    quotas = session.quotas
    return {
        "client_id": session.client_id,
        "user": str(session.principal) if session.is_authenticated else None,
        "software": software_name,
        "version": software_version,
        "address": session.client_host,
        "listener": session.listener_name,
        "connection": session.connection_id,
        "produce": _usage(quotas.produce, now_ms),
        "fetch": _usage(quotas.fetch, now_ms),
        "request": _usage(quotas.request, now_ms),
    }


def _usage(bucket: QuotaBucket | None, now_ms: float) -> dict[str, float] | None:
    """Return a rate and its quota; without a quota the rate is not measured."""
    return None if bucket is None else {"rate": round(bucket.rate.per_s(now_ms), 3), "quota": bucket.bound}
