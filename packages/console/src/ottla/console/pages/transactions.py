"""Transactions: which are open and since when, and the partitions whose readers wait for them."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import Admin, TransactionDescription, TransactionListing
from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import page_of, table_view
from ottla.protocol.errors import KafkaError

ROWS: Final = 50
ENDED: Final = frozenset({"CompleteCommit", "CompleteAbort", "Empty"})


@of_cluster
async def transactions(request: Request, cluster: ShownCluster) -> Response:
    """Show transactional ids; those with an open transaction come first."""
    view = table_view(request.query_params, more=("all",))
    shows_all = ("all", "1") in view.more
    sample = await cluster.ask(("transactions",), _list)
    words = view.text.lower().split()
    chosen = [
        listing
        for listing in sorted(
            sample.value, key=lambda listing: (listing.state in ENDED, listing.transactional_id)
        )
        if (shows_all or listing.state not in ENDED)
        and all(word in listing.transactional_id.lower() for word in words)
    ]
    page = page_of(chosen, view.page, ROWS)
    described = await asyncio.gather(*(_described(cluster, listing) for listing in page.rows))
    return respond(
        request,
        "transactions",
        title=f"Transactions · {cluster.name}",
        cluster=cluster,
        sample=sample,
        view=view,
        shows_all=shows_all,
        page=page,
        rows=list(zip(page.rows, described, strict=True)),
        now_ms=now_ms(),
        ended=sum(listing.state in ENDED for listing in sample.value),
    )


async def _list(admin: Admin) -> list[TransactionListing]:
    return await admin.transactions.list()


async def _described(cluster: ShownCluster, listing: TransactionListing) -> TransactionDescription | None:
    if listing.state in ENDED:
        return None
    try:
        return await (await cluster.admin()).transactions.describe(listing.transactional_id)
    except (ClientError, KafkaError):  # it ended, or its coordinator moves
        return None
