"""The settings of all brokers side by side: where each comes from, and what differs between brokers."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import BROKER, Admin, ConfigEntry
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.setting_rows import setting_rows
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import table_view
from ottla.protocol.errors import KafkaError


@of_cluster
async def settings(request: Request, cluster: ShownCluster) -> Response:
    """Show the settings of the brokers."""
    view = table_view(request.query_params, more=("all",))
    sample = await cluster.ask(("settings",), _read)
    described, silent = sample.value
    words = view.text.lower().split()
    rows = [row for row in setting_rows(described) if all(word in row.name for word in words)]
    shows_all = ("all", "1") in view.more or bool(words)
    return respond(
        request,
        "settings",
        title=f"Settings · {cluster.name}",
        cluster=cluster,
        sample=sample,
        view=view,
        shows_all=shows_all,
        brokers=sorted(described),
        silent=silent,
        rows=[row for row in rows if shows_all or row.differs or not row.is_default],
        differing=sum(row.differs for row in rows),
    )


async def _read(admin: Admin) -> tuple[dict[int, list[ConfigEntry]], dict[int, str]]:
    """Return the settings of each broker, and the reasons of those that do not describe theirs."""
    brokers = [broker.id for broker in (await admin.brokers.describe()).brokers]
    found = await asyncio.gather(*(_of_broker(admin, broker) for broker in brokers))
    described = {
        broker: entries for broker, entries in zip(brokers, found, strict=True) if isinstance(entries, list)
    }
    silent = {
        broker: reason for broker, reason in zip(brokers, found, strict=True) if isinstance(reason, str)
    }
    return described, silent


async def _of_broker(admin: Admin, broker: int) -> list[ConfigEntry] | str:
    try:
        return await admin.configs.describe(BROKER, str(broker), documentation=True)
    except (ClientError, KafkaError) as error:
        return " ".join(str(error).split())
