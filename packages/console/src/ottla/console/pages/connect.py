"""Kafka Connect: the connectors of all its clusters; one connector, its tasks, failures and settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.console.changes.connect import passwords_of
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import Sample
from ottla.console.connect.client import ConnectClient, Connector, Task, WorkerInfo
from ottla.console.connect.masking import secrets_of, shown_settings, without_secrets
from ottla.console.pages import of_cluster, respond, service_sample
from ottla.console.web.tables import page_of, table_view
from ottla.registry.rest import ServiceRefused

ROWS: Final = 100
MOST_TRACE: Final = 20_000
MOST_OFFSETS: Final = 100
RARE_S: Final = 30.0
"""How long that which changes seldom is shown without another look."""
_ORDERS: Final = {"FAILED": 0, "UNASSIGNED": 1, "RESTARTING": 2, "PAUSED": 3, "STOPPED": 4, "RUNNING": 5}


@dataclass(frozen=True, slots=True)
class ConnectCard:
    """One cluster of Connect; without a worker, `failure` says why there is none."""

    client: ConnectClient
    worker: WorkerInfo | None
    sample: Sample[dict[str, Connector]] | None
    failure: str


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    """A connector in the list."""

    connect: str
    name: str
    kind: str
    class_: str
    state: str
    worker: str
    tasks: tuple[Task, ...]

    @property
    def failed(self) -> int:
        """Its tasks that failed."""
        return sum(task.state == "FAILED" for task in self.tasks)

    @property
    def rank(self) -> tuple[int, int, str, str]:
        """Its place in the list: failures first."""
        return (
            -int(self.state == "FAILED" or self.failed > 0),
            _ORDERS.get(self.state, 0),
            self.name,
            self.connect,
        )


@of_cluster
async def connectors(request: Request, cluster: ShownCluster) -> Response:
    """Show the connectors of all clusters of Connect."""
    if not cluster.connects:
        reason = f"cluster {cluster.name} has no Connect cluster: set connect_urls in its profile"
        raise HTTPException(404, reason)
    view = table_view(request.query_params, more=("state",))
    state = dict(view.more).get("state", "")
    cards = await asyncio.gather(*(_card(cluster, client) for client in cluster.connects.values()))
    rows = sorted((row for card in cards for row in _rows(card)), key=lambda row: row.rank)
    words = view.text.lower().split()
    chosen = [
        row
        for row in rows
        if state in ("", row.state, "FAILED" if row.failed else "")
        and all(word in f"{row.name} {row.class_}".lower() for word in words)
    ]
    return respond(
        request, "connectors", title=f"Connect · {cluster.name}", cluster=cluster, cards=cards, view=view,
        state=state, states=sorted({row.state for row in rows}), page=page_of(chosen, view.page, ROWS),
        failed=sum(row.rank[0] < 0 for row in rows),
    )  # fmt: skip


async def _card(cluster: ShownCluster, client: ConnectClient) -> ConnectCard:
    (worker, failure), (sample, list_failure) = await asyncio.gather(
        service_sample(cluster, ("connect", client.name, "worker"), client.worker, RARE_S),
        service_sample(cluster, ("connect", client.name, "connectors"), client.connectors),
    )
    shown_failure = list_failure or failure or (sample.failure if sample else "")
    return ConnectCard(client, None if worker is None else worker.value, sample, shown_failure)


def _rows(card: ConnectCard) -> list[ConnectorRow]:
    found = {} if card.sample is None else card.sample.value
    return [_row(card.client.name, name, connector) for name, connector in found.items()]


def _row(connect: str, name: str, found: Connector) -> ConnectorRow:
    status, info = found.status, found.info
    class_ = str((info.config if info else {}).get("connector.class", "–"))
    state = status.connector.state if status else "UNASSIGNED"
    return ConnectorRow(
        connect, name, (info and info.type) or "–", class_, state,
        status.connector.worker_id if status else "",
        tuple(sorted(status.tasks, key=lambda task: task.id)) if status else (),
    )  # fmt: skip


@of_cluster
async def connector(request: Request, cluster: ShownCluster) -> Response:
    """Show one connector."""
    connect, name = request.query_params.get("connect", ""), request.query_params.get("name", "")
    if (client := cluster.connects.get(connect)) is None:
        raise HTTPException(404, f"cluster {cluster.name} has no Connect cluster {connect!r}")
    key = ("connect", connect, "connector", name)

    async def ask() -> Connector | None:
        try:
            return await client.connector(name)
        except ServiceRefused as error:
            if error.status == 404:
                return None
            raise

    sample, failure = await service_sample(cluster, key, ask)
    if sample is not None and sample.value is None:
        raise HTTPException(404, f"Connect cluster {connect} has no connector {name!r}")
    found = None if sample is None else sample.value
    config = found.info.config if found and found.info else {}
    (passwords, _), (topics, _), (offsets, offsets_failure) = await asyncio.gather(
        service_sample(cluster, (*key, "passwords"), lambda: passwords_of(client, config), RARE_S),
        service_sample(cluster, (*key, "topics"), lambda: client.topics(name)),
        service_sample(cluster, (*key, "offsets"), lambda: client.offsets(name)),
    )
    hidden = passwords.value if passwords else frozenset()
    secrets = secrets_of(config, hidden)

    def readable(trace: str | None) -> str:
        return without_secrets((trace or "")[:MOST_TRACE], secrets)

    row = _row(connect, name, found) if found else None
    traces = [] if row is None or found is None or found.status is None else [
        (where, readable(trace))
        for where, trace in (
            ("the connector", found.status.connector.trace),
            *((f"task {task.id}", task.trace) for task in row.tasks),
        )
        if trace
    ]  # fmt: skip
    return respond(
        request, "connector", title=f"{name} · {cluster.name}", cluster=cluster, connect=connect, name=name,
        sample=sample, failure=failure, row=row, traces=traces, settings=shown_settings(config, hidden),
        topics=topics.value if topics else [], offsets=(offsets.value if offsets else [])[:MOST_OFFSETS],
        offsets_failure=offsets_failure,
    )  # fmt: skip
