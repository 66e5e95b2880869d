"""The first page: all clusters, and whether each is well."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ottla.admin import ClusterState, Problem, problems
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.clusters.topic_rows import is_internal
from ottla.console.pages import clusters_of, respond

SOON_S = 1.0
"""How long the page waits for clusters that it does not know yet."""


@dataclass(frozen=True, slots=True)
class ClusterCard:
    """A cluster on the first page; without a sample, `failure` says why."""

    cluster: ShownCluster
    sample: Sample[ClusterState] | None
    problems: tuple[Problem, ...] = ()
    topics: int = 0
    """Topics that are not internal."""
    failure: str = ""


async def all_clusters(request: Request) -> Response:
    """Show the clusters; with one cluster only, that one."""
    shown = list(clusters_of(request))
    if len(shown) == 1:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/c/{quote(shown[0].name)}/")
    cards = await asyncio.gather(*map(_card, shown))
    return respond(request, "clusters", title="Clusters", cards=cards)


async def _card(cluster: ShownCluster) -> ClusterCard:
    try:
        async with asyncio.timeout(SOON_S):
            sample = await cluster.state()
    except NoSample as error:
        return ClusterCard(cluster, None, failure=str(error))
    except TimeoutError:
        return ClusterCard(cluster, None, failure="no answer yet")
    found, topics = await cluster.derived("card", (sample.value,), lambda: _of_card(sample.value))
    return ClusterCard(cluster, sample, found, topics)


def _of_card(state: ClusterState) -> tuple[tuple[Problem, ...], int]:
    names = {health.partition.topic for health in state.partitions}
    return tuple(problems(state)), sum(not is_internal(name) for name in names)
