"""Znodes: the tree of ZooKeeper where the cluster keeps its state, read-only and without secrets."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import NoSample
from ottla.console.clusters.znodes import read_znode
from ottla.console.pages import of_cluster, respond
from ottla.console.records.values import FORMS, Form, shown_value
from ottla.console.web.tables import page_of, table_view
from ottla.zookeeper.paths import parent_of

MOST_PATH = 2_000


@of_cluster
async def znodes(request: Request, cluster: ShownCluster) -> Response:
    """Show a znode with its children."""
    view = table_view(request.query_params, more=("path", "form"))
    path, form = request.query_params.get("path", "/")[:MOST_PATH], request.query_params.get("form", "auto")
    title = f"Znodes · {cluster.name}"
    if not cluster.has_zookeeper:
        return respond(request, "znodes", title=title, cluster=cluster, znode=None, failure="", path=path)
    try:
        sample = await cluster.ask_zookeeper(("znode", path), lambda session: read_znode(session, path))
    except NoSample as error:
        return respond(
            request, "znodes", title=title, cluster=cluster, znode=None, failure=str(error), path=path,
            parent=parent_of(path),
        )  # fmt: skip
    znode, words = sample.value, view.text.lower().split()
    children = [name for name in znode.children if all(word in name.lower() for word in words)]
    steps = path.strip("/").split("/") if path != "/" else []
    return respond(
        request, "znodes", title=title, cluster=cluster, sample=sample, znode=znode, failure="", path=path,
        view=view, page=page_of(children, view.page), form=form, forms=FORMS,
        steps=[(step, "/" + "/".join(steps[: index + 1])) for index, step in enumerate(steps)],
        value=None if znode.data is None
        else shown_value(znode.data, cast("Form", form if form in FORMS else "auto")),
    )  # fmt: skip
