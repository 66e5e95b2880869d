"""Transactions: which are open, since when, and which hold the last stable offset of a partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin import LATEST, Admin, OpenTransaction, TransactionDescription, TransactionListing
from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import NoSample
from ottla.console.pages import of_cluster, respond
from ottla.console.web.tables import page_of, table_view
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

ROWS: Final = 50
MOST_HELD: Final = 200
"""Partitions that are shown; those with most records behind come first."""
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
    held, held_failure = await _held(cluster)
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
        held=held,
        held_failure=held_failure,
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


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose readers of committed records stop at an open transaction, the first of it."""

    partition: TopicPartition
    last_stable: int
    end: int
    holder: OpenTransaction

    @property
    def waiting(self) -> int:
        """Offsets behind the last stable one."""
        return self.end - self.last_stable

    @property
    def hangs(self) -> bool:
        """Whether no coordinator will end the transaction."""
        return self.holder.transactional_id is None


async def _held(cluster: ShownCluster) -> tuple[list[HeldPartition], str]:
    """Return the partitions that are held, and the reason why that is not known, or is old."""
    try:
        sample = await cluster.ask(("held",), read_held)
    except NoSample as error:
        return [], str(error)
    return sample.value, sample.failure


async def read_held(admin: Admin) -> list[HeldPartition]:
    """Return the partitions whose last stable offset an open transaction holds, the fullest first."""
    partitions = [
        TopicPartition(topic.name, index)
        for topic in await admin.topics.list(internal=True)
        for index in topic.partitions
    ]
    latest = dict.fromkeys(partitions, LATEST)
    stable = await admin.offsets.find_reachable(latest, read_committed=True)
    ends = await admin.offsets.find_reachable(latest)
    behind = sorted(
        (where for where in stable if stable[where] < ends.get(where, 0)),
        key=lambda where: stable[where] - ends[where],
    )
    first: dict[TopicPartition, OpenTransaction] = {}
    for opened in await admin.transactions.opened(behind[:MOST_HELD]) if behind else ():
        known = first.get(opened.producer.partition)
        if known is None or _start(opened) < _start(known):
            first[opened.producer.partition] = opened
    return [
        HeldPartition(where, stable[where], ends[where], first[where]) for where in behind if where in first
    ]


def _start(opened: OpenTransaction) -> int:
    return opened.producer.start_offset or 0
