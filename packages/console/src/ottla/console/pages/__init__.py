"""The pages, one module each, and what a handler needs: the console of the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.console.clusters.connections import SeenClusters, ShownCluster
from ottla.console.clusters.samples import FRESH_S, NoSample, Sample
from ottla.console.logins.access import Viewer
from ottla.console.web.rendering import Renderer

T = TypeVar("T")

ClusterPage = Callable[[Request, ShownCluster], Awaitable[Response]]


def viewer_of(request: Request) -> Viewer:
    """Return the person behind a request."""
    found: Viewer = request.state.viewer
    return found


def clusters_of(request: Request) -> SeenClusters:
    """Return the clusters of the console that its viewer may see."""
    return SeenClusters(request.state.clusters, viewer_of(request), request.state.mask_rules)


def respond(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page made of a template."""
    renderer: Renderer = request.app.state.renderer
    return renderer.respond(request, template, status=status, **values)


async def service_sample(
    cluster: ShownCluster,
    key: tuple[str, ...],
    question: Callable[[], Awaitable[T]],
    fresh_s: float = FRESH_S,
) -> tuple[Sample[T] | None, str]:
    """Return the last answer of a service beside the brokers, or none and the reason."""
    try:
        return await cluster.ask_service(key, question, fresh_s=fresh_s), ""
    except NoSample as error:
        return None, str(error)


def of_cluster(page: ClusterPage) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a page of one cluster, which its path names.

    While nothing of the cluster is known, the page says why.
    """

    async def handle(request: Request) -> Response:
        name = request.path_params["cluster"]
        if (cluster := clusters_of(request).get(name)) is None:
            raise HTTPException(404, f"there is no cluster {name!r}")
        try:
            return await page(request, cluster)
        except NoSample as error:
            return respond(
                request, "unreachable", status=503, title=cluster.name, cluster=cluster, reason=str(error)
            )

    handle.__name__ = page.__name__
    return handle
