"""Changes of a schema registry: register a schema, set a compatibility level, delete."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from ottla.console.changes.plans import Field, Form, Plan, service_needs
from ottla.console.clusters.connections import ShownCluster
from ottla.console.logins.access import Role
from ottla.console.registry.differences import schema_differences
from ottla.console.web.fields import Unclear, is_whole, named
from ottla.registry.client import KINDS, LEVELS, Reference, RegistryClient, schema_body
from ottla.registry.rest import ServiceRefused

_MOST_REASONS: Final = 20


def client_of(cluster: ShownCluster) -> RegistryClient:
    """Return the client of a cluster's registry. Raises Unclear where its profile names none."""
    if cluster.registry is None:
        raise Unclear(f"cluster {cluster.name} has no registry: set schema_registry_url in its profile")
    return cluster.registry.client


def checked_schema(form: Form) -> dict[str, object]:
    """Return the body for the registry of a schema that was pasted. Raises Unclear."""
    kind, text = form.get("kind", KINDS[0]), form.get("schema", "").strip()
    if kind not in KINDS:
        raise Unclear(f"a schema is one of {', '.join(KINDS)}")
    if not text:
        raise Unclear("paste a schema")
    if kind != "PROTOBUF":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unclear(f"the schema is no JSON: {str(error)[:200]}") from None
    return schema_body(kind, text, _references(form.get("references", "")))


def _references(text: str) -> list[Reference]:
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        parts = line.split()
        if len(parts) != 3 or not is_whole(parts[2]):
            raise Unclear(f"{line!r} must be NAME SUBJECT VERSION")
        found.append(Reference(parts[0], parts[1], int(parts[2])))
    return found


@service_needs(Role.OPERATOR)
async def register_schema(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the next version of a subject, once the registry has checked its schema."""
    client = client_of(cluster)
    subject, kind = form.get("subject", "").strip(), form.get("kind", KINDS[0])
    fields = (
        Field("subject", "Subject", subject),
        Field("kind", "Type", kind, "choice", KINDS),
        Field("schema", "Schema", form.get("schema", ""), "lines"),
        Field("references", "Imports, NAME SUBJECT VERSION in lines", form.get("references", ""), "lines"),
    )
    title = "Register a schema"
    try:
        name = named(form, "subject", "the subject")
        body = await asyncio.to_thread(checked_schema, form)
    except Unclear as error:
        return Plan(title, "Register", fields, unclear=str(error), is_data=True)
    verdict = await _verdict(client, name, body)
    if verdict is not None and not verdict[0]:
        reasons = "; ".join(verdict[1][:_MOST_REASONS]) or "the registry gives no reason"
        unclear = f"the schema is not compatible with those of {name}: {reasons}"
        return Plan(title, "Register", fields, unclear=unclear, is_data=True)

    async def act() -> str:
        return f"The schema has the id {await client.register(name, body)} in {name}."

    rows, latest = await _rows(client, name, kind, form.get("schema", ""))
    summary = (
        f"Subject {name} begins with this schema." if latest is None
        else f"The registry finds the schema compatible. It follows version {latest} of {name}; producers "
        "that take the latest version use it from then on."
    )  # fmt: skip
    return Plan(
        title, "Register", fields, summary, ("Change",), rows, act=act, is_data=True,
        back=_back(name),
    )  # fmt: skip


async def _verdict(
    client: RegistryClient, name: str, body: dict[str, object]
) -> tuple[bool, list[str]] | None:
    try:
        verdict = await client.check(name, body)
    except ServiceRefused as error:
        if error.status == 404:  # there is no such subject
            return None
        raise
    return verdict.is_compatible, verdict.reasons


async def _rows(
    client: RegistryClient, name: str, kind: str, text: str
) -> tuple[tuple[tuple[str, ...], ...], int | None]:
    try:
        latest = await client.version(name)
    except ServiceRefused as error:
        if error.status == 404:
            return (), None
        raise
    lines = await asyncio.to_thread(schema_differences, (latest.schema_type, latest.schema), (kind, text))
    return tuple((f"{line.sign} {line.text}",) for line in lines or ()), latest.version


@service_needs(Role.OPERATOR)
async def set_compatibility(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the compatibility level of a subject, or without a name that of all others."""
    client = client_of(cluster)
    subject, level = form.get("subject", "").strip(), form.get("level", "")
    now, is_own = await client.level(subject)
    fields = (
        Field("subject", "Subject", subject, "hidden"),
        Field("level", "Level", level or now, "choice", LEVELS),
    )
    of = f"subject {subject}" if subject else "all subjects without a level of their own"
    if level not in LEVELS:
        return Plan(f"Compatibility of {of}", "Set", fields, unclear=f"the level is {now} now")

    async def act() -> str:
        await client.set_level(subject, level)
        return f"The compatibility level of {of} is {level}."

    return Plan(
        f"Compatibility of {of}", "Set", fields,
        f"New versions of {of} are checked by {level}; versions that there are stay as they are.",
        ("Now", "From", "Then"), ((now, "its own" if is_own or not subject else "the default", level),),
        typed=subject or "all" if level == "NONE" else "", act=act, back=_back(subject),
    )  # fmt: skip


@service_needs(Role.ADMINISTRATOR)
async def delete_subject(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the deletion of a subject or of one of its versions."""
    client, name = client_of(cluster), named(form, "subject", "the subject")
    version = int(form["version"]) if is_whole(form.get("version", "")) else None
    permanent = bool(form.get("permanent"))
    fields = (
        Field("subject", "Subject", name, "hidden"),
        Field("version", "Version, empty for all", form.get("version", "")),
        Field("permanent", "For good (after a deletion without)", form.get("permanent", ""), "check"),
    )
    what = f"subject {name}" if version is None else f"version {version} of {name}"

    async def act() -> str:
        await client.delete(name, version, permanent=permanent)
        return f"Deleted {what}{' for good' if permanent else ''}."

    summary = (
        f"The schemas of {what} are gone for good: records that were written with them can be decoded only "
        "if they are registered elsewhere, too." if permanent
        else f"{what[0].upper()}{what[1:]} is not listed any more. Its schemas stay there by their ids, "
        "so records stay readable."
    )  # fmt: skip
    return Plan(f"Delete {what}", "Delete", fields, summary, typed=name, act=act, back="/registry")


def _back(subject: str) -> str:
    from urllib.parse import urlencode

    return f"/registry/subject?{urlencode({'name': subject})}" if subject else "/registry"
