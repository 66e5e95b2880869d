"""Changes in the browser: a form, a preview of what would happen, and the change once it is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ottla.client.environment import now_ms
from ottla.client.errors import ClientError
from ottla.console.changes.audit import AuditLog
from ottla.console.changes.brokers import set_broker_setting
from ottla.console.changes.connect import (
    create_connector,
    delete_connector,
    pause_connector,
    restart_connector,
    restart_task,
    resume_connector,
    set_connector_setting,
    stop_connector,
)
from ottla.console.changes.groups import delete_group, reset_group
from ottla.console.changes.plans import SHOWN, Change, Plan, ServiceChange
from ottla.console.changes.registry import delete_subject, register_schema, set_compatibility
from ottla.console.changes.replicas import cancel_reassignment, elect_preferred, reassign
from ottla.console.changes.topics import (
    add_partitions,
    copy_settings,
    create_topic,
    delete_records,
    delete_topic,
    produce,
    set_topic_setting,
)
from ottla.console.changes.transactions import abort_transaction
from ottla.console.clusters.connections import ShownCluster
from ottla.console.clusters.samples import HIDDEN_REASON, NoSample, is_nameless
from ottla.console.logins.gate import check
from ottla.console.pages import check_form, of_cluster, respond_with_form, viewer_of
from ottla.console.web.fields import Unclear
from ottla.protocol.errors import KafkaError

CHANGES: Final[Mapping[str, Change | ServiceChange]] = {
    "create-topic": create_topic,
    "add-partitions": add_partitions,
    "set-topic-setting": set_topic_setting,
    "copy-settings": copy_settings,
    "delete-records": delete_records,
    "delete-topic": delete_topic,
    "produce": produce,
    "reset-group": reset_group,
    "delete-group": delete_group,
    "reassign": reassign,
    "cancel-reassignment": cancel_reassignment,
    "elect-preferred": elect_preferred,
    "abort-transaction": abort_transaction,
    "set-broker-setting": set_broker_setting,
    "register-schema": register_schema,
    "set-compatibility": set_compatibility,
    "delete-subject": delete_subject,
    "create-connector": create_connector,
    "set-connector-setting": set_connector_setting,
    "pause-connector": pause_connector,
    "resume-connector": resume_connector,
    "stop-connector": stop_connector,
    "restart-connector": restart_connector,
    "restart-task": restart_task,
    "delete-connector": delete_connector,
}
MOST_FORM_BYTES: Final = 4 << 20
MOST_FORM_S: Final = 60.0
_MOST_FIELDS: Final = 20


@of_cluster
async def change(request: Request, cluster: ShownCluster) -> Response:
    """Show the form of a change with its preview; with POST, do it, or preview data of records."""
    name = request.path_params["change"]
    if (planner := CHANGES.get(name)) is None:
        raise HTTPException(404, f"there is no change {name!r}")
    await check_allowed(request, cluster.name, name)
    if request.method != "POST":
        return await _show(request, cluster, name, planner, dict(request.query_params))
    form = await read_form(request)
    token = form.pop("token", "")
    if form.pop("preview", ""):
        check_form(request, token)
        return await _show(request, cluster, name, planner, form)
    return await _do(request, cluster, name, planner, form, token)


async def _show(
    request: Request, cluster: ShownCluster, name: str, planner: Change | ServiceChange, form: dict[str, str],
    *, failure: str = "", done: str = "",
) -> Response:  # fmt: skip
    plan = None
    if not done:
        try:
            plan = await _planned(cluster, planner, form)
        except (Unclear, ClientError, KafkaError) as error:
            failure = failure or why_failed(cluster, error)
    return respond_with_form(
        request, "change", title=f"Change · {cluster.name}", cluster=cluster, is_live=False, change=name,
        plan=plan, form=form, failure=failure, done=done, status=400 if failure else 200,
    )  # fmt: skip


def why_failed(cluster: ShownCluster, error: Exception) -> str:
    """Return why a change fails, without names that its person may not see: brokers name what they refuse."""
    reason = " ".join(str(error).split())
    if cluster.may() or isinstance(error, Unclear) or is_nameless(error):
        return reason
    return f"{type(error).__name__}: {HIDDEN_REASON}"


async def _planned(cluster: ShownCluster, planner: Change | ServiceChange, form: Mapping[str, str]) -> Plan:
    """Return the plan of a form that its viewer may send. Raises HTTPException, Unclear, ClientError."""
    check(cluster.viewer, planner.need(cluster.name, form))
    if isinstance(planner, ServiceChange):
        return await planner(cluster, form)
    check(cluster.viewer, planner.need_to_read(cluster.name, form))
    plan = await planner(await cluster.admin(), form)
    if not all(cluster.may(topic=topic) for topic in plan.topics):
        raise HTTPException(403, "this is about topics that you may not see")
    return plan


async def _do(
    request: Request, cluster: ShownCluster, name: str, planner: Change | ServiceChange, form: dict[str, str],
    token: str,
) -> Response:  # fmt: skip
    typed = form.pop("typed", "").strip()
    audit = partial(write_audit, request, cluster.name, name, form, hides=planner.hides)
    try:
        check_form(request, token)
        plan = await _planned(cluster, planner, form)
        if (why := _why_not(plan, form, typed)) is not None:
            await audit(f"refused: {why}")
            return await _show(request, cluster, name, planner, form, failure=why)
        await audit("begins")
        done = await _perform(plan, cluster)
    except (Unclear, ClientError, KafkaError) as error:
        await audit(f"failed: {' '.join(str(error).split())}")
        return await _show(request, cluster, name, planner, form, failure=why_failed(cluster, error))
    except HTTPException as error:
        await audit(f"refused: {error.detail}")
        raise
    except NoSample as error:
        await audit(f"failed: {error}")
        raise
    except Exception as error:
        await audit(f"failed: the console failed ({type(error).__name__}); its log says why")
        raise
    await audit(done)
    if (after := plan.after) is not None:

        async def behind() -> None:
            await audit(await after(await cluster.admin()))

        cluster.begin(behind)
    cluster.forget()
    return await _show(request, cluster, name, planner, {"back": plan.back}, done=done)


async def _perform(plan: Plan, cluster: ShownCluster) -> str:
    if plan.act is not None:
        return await plan.act()
    assert plan.perform is not None
    return await plan.perform(await cluster.admin())


def _why_not(plan: Plan, form: Mapping[str, str], typed: str) -> str | None:
    if not plan.is_possible:
        return plan.unclear or "the form is not complete"
    if plan.preview and not form.get(SHOWN):
        return "look at the preview first"
    if plan.typed and typed != plan.typed:
        return f"type {plan.typed} to confirm, not {typed!r}" if typed else f"type {plan.typed} to confirm"
    return None


async def check_allowed(request: Request, cluster: str, name: str) -> None:
    """Return at a console that may change something. Raises HTTPException."""
    if not request.app.state.allows_changes:
        why = "the console only reads: `ottla console --allow-changes` allows changes"
        if request.method == "POST":
            await write_audit(request, cluster, name, {}, f"refused: {why}")
        raise HTTPException(403, why)


async def write_audit(
    request: Request, cluster: str, name: str, form: Mapping[str, str], outcome: str,
    *, hides: Collection[str] = (),
) -> None:  # fmt: skip
    """Write a change of the viewer of a request to the audit log. Raises OSError."""
    audit: AuditLog = request.app.state.audit
    client = request.client.host if request.client else "unknown"
    await audit.write(now_ms(), viewer_of(request), client, cluster, name, form, outcome, hides)


async def read_form(
    request: Request, most_bytes: int = MOST_FORM_BYTES, most_s: float = MOST_FORM_S
) -> dict[str, str]:
    """Return the fields of a posted form, of a bounded size, that comes in a bounded time.

    Raises HTTPException.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(most_s):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise HTTPException(413, f"a form has at most {most_bytes} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the form was not there within {most_s:g} s") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise HTTPException(400, "the form cannot be read") from None
    return dict(fields)
