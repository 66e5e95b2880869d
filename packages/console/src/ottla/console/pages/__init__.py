"""The pages, one module each, and what a handler needs: the console of the application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.console.clusters.connections import SeenClusters, ShownCluster
from ottla.console.clusters.samples import FRESH_S, NoSample, Sample
from ottla.console.logins.access import Need, Role, Viewer
from ottla.console.logins.authenticator import Authenticator
from ottla.console.web.csrf import FormTokens
from ottla.console.web.rendering import Renderer

_log = logging.getLogger(__name__)

T = TypeVar("T")

ClusterPage = Callable[[Request, ShownCluster], Awaitable[Response]]


def viewer_of(request: Request) -> Viewer:
    """Return the person behind a request."""
    found: Viewer = request.state.viewer
    return found


def clusters_of(request: Request) -> SeenClusters:
    """Return the clusters of the console that its viewer may see."""
    authenticator: Authenticator | None = request.app.state.authenticator
    masks = () if authenticator is None else authenticator.logins.masks
    return SeenClusters(request.state.clusters, viewer_of(request), masks)


def is_opened(request: Request) -> bool:
    """Whether a browser opens a page, which can be shown in part before its script asks for the rest."""
    return request.headers.get("sec-fetch-mode") == "navigate" and "hx-request" not in request.headers


def respond(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page made of a template, which knows its viewer."""
    renderer: Renderer = request.app.state.renderer
    known = _of_viewer(request, values.get("cluster"))
    return renderer.respond(request, template, status=status, **known, **values)


def respond_with_form(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page whose forms carry `token`, which is good for the browser that gets them."""
    tokens: FormTokens = request.app.state.form_tokens
    browser, token = tokens.of(request)
    response = respond(request, template, status=status, token=token, **values)
    tokens.keep(request, response, browser)
    return response


def check_form(request: Request, token: str) -> None:
    """Return if a token belongs to the browser that sent it. Raises HTTPException."""
    tokens: FormTokens = request.app.state.form_tokens
    if not tokens.is_valid(request, token):
        client = request.client.host if request.client else "unknown"
        _log.warning("a form is refused", extra={"client": client, "path": request.url.path})
        raise HTTPException(403, "the form is not one of this console's, or older than it: open it again")


def _of_viewer(request: Request, cluster: ShownCluster | None) -> dict[str, object]:
    """Return what all templates know of their viewer: the name, and what links make sense.

    `may_change(change, topic=…)` is whether the viewer may open a change.
    """
    viewer: Viewer | None = getattr(request.state, "viewer", None)
    session, changes = getattr(request.state, "session", None), request.app.state.changes
    allows_changes = request.app.state.allows_changes and viewer is not None

    def may_change(name: str, **form: str) -> bool:
        if viewer is None or cluster is None or not allows_changes:
            return False
        return viewer.may(changes[name].need(cluster.name, form))

    is_operator = cluster is not None and viewer is not None and viewer.may(Need(Role.OPERATOR, cluster.name))
    return {
        "viewer": viewer,
        "logout_token": "" if session is None else request.app.state.form_tokens.of(request)[1],
        "sees_whole": cluster is not None and viewer is not None and cluster.may(),
        "allows_changes": allows_changes and (cluster is None or is_operator),
        "may_change": may_change,
    }


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
