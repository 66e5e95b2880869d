"""The schema registry: subjects, a subject with its versions and their differences, a schema by its id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.console.changes.registry import checked_schema
from ottla.console.clusters.connections import ShownCluster
from ottla.console.pages import check_form, of_cluster, respond, respond_with_form, service_sample
from ottla.console.pages.changes import read_form
from ottla.console.registry.differences import schema_differences, schema_text
from ottla.console.registry.values import Registry
from ottla.console.web.fields import Unclear
from ottla.console.web.tables import page_of, table_view
from ottla.registry.client import KINDS, RegisteredSchema, RegistryClient
from ottla.registry.rest import ServiceFailed, ServiceRefused

ROWS: Final = 50
LATEST_S: Final = 30.0
"""How long the latest version of a subject is shown in the list without another look."""
SOON_S: Final = 1.5
"""How long the list waits for the latest versions of its rows."""


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """A subject in the list; its latest version is None until the registry has answered."""

    name: str
    latest: RegisteredSchema | None = None
    failure: str = ""


def registry_of(cluster: ShownCluster) -> Registry:
    """Return the registry of a cluster. Raises HTTPException where its profile names none."""
    if cluster.registry is None:
        reason = f"cluster {cluster.name} has no schema registry: set schema_registry_url in its profile"
        raise HTTPException(404, reason)
    return cluster.registry


@of_cluster
async def subjects(request: Request, cluster: ShownCluster) -> Response:
    """Show the subjects of a registry."""
    found = registry_of(cluster)
    view = table_view(request.query_params, more=("deleted",))
    deleted = ("deleted", "1") in view.more
    sample, failure = await service_sample(
        cluster, ("registry", "subjects", str(deleted)), lambda: found.client.subjects(deleted=deleted)
    )
    level, _ = await service_sample(
        cluster,
        (
            "registry",
            "level",
        ),
        found.client.level,
    )
    words = view.text.lower().split()
    names = [] if sample is None else sample.value
    page = page_of([name for name in names if all(word in name.lower() for word in words)], view.page, ROWS)
    rows = await asyncio.gather(*(_row(cluster, found.client, name) for name in page.rows))
    return respond(
        request, "subjects", title=f"Registry · {cluster.name}", cluster=cluster, sample=sample,
        failure=failure, view=view, deleted=deleted, page=page, rows=rows, total=len(names),
        level=level.value[0] if level else None,
    )  # fmt: skip


async def _row(cluster: ShownCluster, client: RegistryClient, name: str) -> SubjectRow:
    async def ask() -> RegisteredSchema:
        try:
            found = await client.version(name)
        except ServiceRefused as error:
            if error.status != 404:
                raise
            found = await client.version(name, deleted=True)
        return structs.replace(found, schema="")  # the list does not show it, and keeps many

    try:
        async with asyncio.timeout(SOON_S):
            sample, failure = await service_sample(cluster, ("registry", "latest", name), ask, LATEST_S)
    except TimeoutError:
        return SubjectRow(name)
    return SubjectRow(name, None if sample is None else sample.value, failure)


@of_cluster
async def subject(request: Request, cluster: ShownCluster) -> Response:
    """Show a subject: one version of it, and its differences from another."""
    name = request.query_params.get("name", "")
    return await _subject(request, cluster, name)


@of_cluster
async def check(request: Request, cluster: ShownCluster) -> Response:
    """Show whether a pasted schema may follow in a subject, and its differences from the latest version."""
    form = await read_form(request)
    check_form(request, form.pop("token", ""))
    name = form.get("subject", "").strip()
    client = registry_of(cluster).client
    verdict, failure, lines = None, "", None
    try:
        body = await asyncio.to_thread(checked_schema, form)
        verdict = await client.check(name, body)
        latest = await client.version(name)
        lines = await asyncio.to_thread(
            schema_differences, (latest.schema_type, latest.schema),
            (form.get("kind", KINDS[0]), form.get("schema", "")),
        )  # fmt: skip
    except ServiceRefused as error:
        if verdict is None or error.status != 404:
            failure = str(error)
    except (Unclear, ServiceFailed) as error:
        failure = str(error)
    return await _subject(
        request, cluster, name, form=form, verdict=verdict, check_failure=failure, check_lines=lines
    )


async def _subject(
    request: Request, cluster: ShownCluster, name: str, *, form: dict[str, str] | None = None, **more: Any
) -> Response:
    client, query = registry_of(cluster).client, request.query_params
    sample, failure = await service_sample(
        cluster, ("registry", "versions", name), lambda: client.versions(name)
    )
    versions = [] if sample is None else sample.value
    level, _ = await service_sample(cluster, ("registry", "level", name), lambda: client.level(name))
    version = _chosen(query.get("version", ""), versions) or (versions[-1] if versions else None)
    against = _chosen(query.get("against", ""), versions)
    shown, shown_failure = await _version(cluster, client, name, version)
    before, before_failure = await _version(cluster, client, name, against)
    key = ("registry", "referrers", name, str(version))
    referrers, _ = (
        await service_sample(cluster, key, lambda: client.referrers(name, version or 0), LATEST_S)
        if shown
        else (None, "")
    )
    lines = None
    if shown is not None and before is not None:
        lines = await asyncio.to_thread(
            schema_differences, (before.schema_type, before.schema), (shown.schema_type, shown.schema)
        )  # fmt: skip
    values = {"verdict": None, "check_failure": "", "check_lines": None, **more}
    return respond_with_form(
        request, "subject", title=f"{name} · {cluster.name}", cluster=cluster, is_live=form is None,
        name=name, sample=sample, failure=failure or shown_failure or before_failure, versions=versions,
        version=version, against=against, shown=shown, lines=lines, level=level and level.value,
        text=await _text(shown),
        referrers=referrers.value if referrers else [], kinds=KINDS, form=form or {}, **values,
    )  # fmt: skip


async def _version(
    cluster: ShownCluster, client: RegistryClient, name: str, version: int | None
) -> tuple[RegisteredSchema | None, str]:
    if version is None:
        return None, ""
    sample, failure = await service_sample(
        cluster, ("registry", "version", name, str(version)), lambda: client.version(name, version), LATEST_S
    )
    return (None if sample is None else sample.value), failure


async def _text(found: RegisteredSchema | None) -> str:
    """Return a schema in lines, set out in a thread."""
    if found is None:
        return ""
    return await asyncio.to_thread(schema_text, found.schema_type, found.schema)


def _chosen(text: str, versions: list[int]) -> int | None:
    return int(text) if text in map(str, versions) else None


@of_cluster
async def schema(request: Request, cluster: ShownCluster) -> Response:
    """Show a schema by its id or GUID, and the subjects where it is registered."""
    given = request.query_params.get("id", "").strip()
    key: int | str = int(given) if given.isascii() and given.isdigit() and len(given) < 11 else given
    if key == "":
        raise HTTPException(404, "the id of the schema is missing")
    client = registry_of(cluster).client
    sample, failure = await service_sample(
        cluster, ("registry", "schema", given), lambda: client.schema(key), LATEST_S
    )
    places, places_failure = (
        await service_sample(cluster, ("registry", "places", given), lambda: client.places(key), LATEST_S)
        if isinstance(key, int) and sample
        else (None, "")
    )
    found = None if sample is None else sample.value
    return respond(
        request, "schema", title=f"Schema {given} · {cluster.name}", cluster=cluster, given=given,
        found=found, failure=failure or places_failure, places=places.value if places else [],
        text=await _text(found),
    )  # fmt: skip
