"""Changes of connectors: create, settings, pause, resume, stop, restart, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import urlencode

import msgspec

from ottla.console.changes.plans import Field, Form, Plan, service_needs
from ottla.console.clusters.connections import ShownCluster
from ottla.console.connect.client import ConnectClient, Connector
from ottla.console.connect.masking import HIDDEN, secrets_of, shown_settings, without_secrets
from ottla.console.logins.access import Role
from ottla.console.web.fields import Unclear, named, whole
from ottla.registry.rest import ServiceFailed

PARTS: Final = ("the connector", "the connector and all its tasks", "that which failed of both")
_CLASS: Final = "connector.class"
_MOST_FAULTS: Final = 20


def client_of(cluster: ShownCluster, name: str) -> ConnectClient:
    """Return the client of a cluster of Connect. Raises Unclear for an unknown name."""
    if (found := cluster.connects.get(name)) is None:
        raise Unclear(f"cluster {cluster.name} has no Connect cluster {name!r}: its profile names them")
    return found


async def _of(cluster: ShownCluster, form: Form) -> tuple[ConnectClient, str, Connector, tuple[Field, ...]]:
    client = client_of(cluster, form.get("connect", ""))
    name = named(form, "name", "the connector")
    fields = (
        Field("connect", "Connect cluster", client.name, "hidden"), Field("name", "Connector", name, "hidden")
    )  # fmt: skip
    return client, name, await client.connector(name), fields


def _states(found: Connector) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a preview: the connector and its tasks as they are now."""
    if found.status is None:
        return (("connector", "no worker has taken it", ""),)
    own = found.status.connector
    tasks = sorted(found.status.tasks, key=lambda task: task.id)
    return (
        ("connector", own.state, own.worker_id),
        *((f"task {task.id}", task.state, task.worker_id) for task in tasks),
    )


_COLUMNS: Final = ("Part", "Now", "Worker")


async def _simple(
    cluster: ShownCluster, form: Form, verb: str, summary: str, done: str,
    call: Callable[[ConnectClient, str], Awaitable[None]], *, is_typed: bool = False, back: str = "",
) -> Plan:  # fmt: skip
    client, name, found, fields = await _of(cluster, form)

    async def act() -> str:
        await call(client, name)
        return f"Connector {name} {done}."

    return Plan(
        f"{verb} connector {name}", verb, fields, f"Connector {name} {summary}.", _COLUMNS, _states(found),
        typed=name if is_typed else "", act=act, back=back or _back(client, name),
    )  # fmt: skip


@service_needs(Role.OPERATOR)
async def pause_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the pause of a connector."""
    summary = "and its tasks wait where they are, on their workers, until it is resumed"
    return await _simple(cluster, form, "Pause", summary, "pauses", ConnectClient.pause)


@service_needs(Role.OPERATOR)
async def resume_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the end of a connector's pause or stop."""
    return await _simple(cluster, form, "Resume", "goes on where it was", "goes on", ConnectClient.resume)


@service_needs(Role.OPERATOR)
async def stop_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the stop of a connector, which takes its tasks away."""
    summary = "ends its tasks and gives up their resources; its offsets and settings stay, for a resume"
    return await _simple(cluster, form, "Stop", summary, "stops", ConnectClient.stop)


@service_needs(Role.ADMINISTRATOR)
async def delete_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the deletion of a connector."""
    summary = (
        "ends, and its settings are gone: note down what you need of them, as the console hides secrets. "
        "Its offsets stay, for a connector of the same name"
    )
    return await _simple(
        cluster, form, "Delete", summary, "is deleted", ConnectClient.delete, is_typed=True, back="/connect"
    )


@service_needs(Role.OPERATOR)
async def restart_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the restart of a connector, of its tasks too, or of that which failed."""
    client, name, found, fields = await _of(cluster, form)
    parts = form.get("parts", "")
    failed = [row for row in _states(found) if row[1] == "FAILED"]
    fields = (*fields, Field("parts", "Restart", parts or PARTS[2 if failed else 0], "choice", PARTS))
    title = f"Restart connector {name}"
    if parts not in PARTS:
        return Plan(title, "Restart", fields, unclear="choose what is restarted")
    only_failed, tasks = parts == PARTS[2], parts != PARTS[0]
    rows = failed if only_failed else _states(found) if tasks else _states(found)[:1]
    if not rows:
        return Plan(title, "Restart", fields, unclear="nothing of it has failed")

    async def act() -> str:
        await client.restart(name, tasks=tasks, only_failed=only_failed)
        return f"Restarted {parts} of {name}."

    return Plan(
        title, "Restart", fields, "These end and begin again, from the offsets that were committed.",
        _COLUMNS, tuple(rows), act=act, back=_back(client, name),
    )  # fmt: skip


@service_needs(Role.OPERATOR)
async def restart_task(cluster: ShownCluster, form: Form) -> Plan:
    """Plan the restart of one task."""
    client, name, found, fields = await _of(cluster, form)
    task = whole(form.get("task", ""), "the task")
    rows = tuple(row for row in _states(found) if row[0] == f"task {task}")
    fields = (*fields, Field("task", "Task", str(task), "hidden"))
    if not rows:
        return Plan(f"Restart task {task} of {name}", "Restart", fields, unclear=f"{name} has no task {task}")

    async def act() -> str:
        await client.restart_task(name, task)
        return f"Task {task} of {name} is restarted."

    return Plan(
        f"Restart task {task} of {name}", "Restart", fields,
        "The task ends and begins again, from the offsets that were committed.", _COLUMNS, rows, act=act,
        back=_back(client, name),
    )  # fmt: skip


@service_needs(Role.ADMINISTRATOR, hides=("value",))
async def set_connector_setting(cluster: ShownCluster, form: Form) -> Plan:
    """Plan a change of one setting of a connector; an empty value takes it away."""
    client, name, found, fields = await _of(cluster, form)
    key, value = form.get("key", "").strip(), form.get("value", "").strip()
    fields = (
        *fields, Field("key", "Key", key), Field("value", "Value, empty to take it away", value)
    )  # fmt: skip
    title = f"Change a setting of {name}"
    if not key:
        return Plan(title, "Change", fields, unclear="name a key", is_data=True)
    config = {setting: str(text) for setting, text in (found.info.config if found.info else {}).items()}
    if value == HIDDEN:
        raise Unclear(f"{HIDDEN!r} stands for a secret here: type the value itself")
    if not value and key not in config:
        return Plan(title, "Change", fields, unclear=f"{name} has no setting {key!r}", is_data=True)
    changed = {**config, key: value} if value else {k: text for k, text in config.items() if k != key}
    passwords = await passwords_of(client, config)
    faults = await _faults(client, changed, passwords)
    if faults:
        return Plan(title, "Change", fields, unclear="; ".join(faults), is_data=True)
    now = {setting.name: setting.value for setting in shown_settings(config, passwords)}
    then = {setting.name: setting.value for setting in shown_settings(changed, passwords)}

    async def act() -> str:
        await _configure(client, name, changed, passwords)
        return f"{key} of {name} is {'changed' if value else 'taken away'}."

    return Plan(
        title, "Change", fields, f"{name} is configured again, and its tasks restart with the new settings.",
        ("Key", "Now", "Then"), ((key, now.get(key, ""), then.get(key, "")),), act=act,
        is_data=True, back=_back(client, name),
    )  # fmt: skip


@service_needs(Role.ADMINISTRATOR, hides=("config",))
async def create_connector(cluster: ShownCluster, form: Form) -> Plan:
    """Plan a connector, once its class has found its settings good."""
    client = client_of(cluster, form.get("connect", ""))
    name, text = form.get("name", "").strip(), form.get("config", "").strip()
    fields = (
        Field("connect", "Connect cluster", client.name, "hidden"), Field("name", "Name", name),
        Field("config", "Settings, as JSON or KEY=VALUE in lines", text, "lines"),
    )  # fmt: skip
    title = f"Create a connector in {client.name}"
    try:
        if not name:
            raise Unclear("name the connector")
        if name in await client.connectors():
            raise Unclear(f"there is a connector {name} already: change its settings")
        config = _config(text) | {"name": name}
        passwords = await passwords_of(client, config)
        faults = await _faults(client, config, passwords)
    except Unclear as error:
        return Plan(title, "Create", fields, unclear=str(error), is_data=True)
    if faults:
        return Plan(title, "Create", fields, unclear="; ".join(faults), is_data=True)

    async def act() -> str:
        await _configure(client, name, config, passwords)
        return f"Connector {name} is created."

    rows = tuple((setting.name, setting.value) for setting in shown_settings(config, passwords))
    return Plan(
        title, "Create", fields, f"Connector {name} begins with these settings.", ("Key", "Value"), rows,
        act=act, is_data=True, back=_back(client, name),
    )  # fmt: skip


def _config(text: str) -> dict[str, str]:
    from ottla.console.web.fields import settings

    if not text.startswith("{"):
        return settings(text)
    try:
        found = msgspec.json.decode(text, type=dict[str, str | int | float | bool | None])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unclear(f"the settings are no JSON object of texts: {error}") from None
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in found.items()
        if value is not None
    }


async def _faults(client: ConnectClient, config: dict[str, str], passwords: Collection[str]) -> list[str]:
    """Return the faults of settings, without the secrets that their words may repeat."""
    if not (class_ := config.get(_CLASS, "")):
        raise Unclear(f"{_CLASS} is missing")
    secrets = secrets_of(config, passwords)
    found = await client.faults(class_, config)
    faults = [f"{key}: {error}" for key, errors in found.items() for error in errors]
    return [without_secrets(fault, secrets) for fault in faults[:_MOST_FAULTS]]


async def _configure(
    client: ConnectClient, name: str, config: dict[str, str], passwords: Collection[str]
) -> None:
    """Set the settings of a connector. A refusal stands in the audit log, so its words lose the secrets."""
    try:
        await client.configure(name, config)
    except ServiceFailed as error:
        raise ServiceFailed(without_secrets(str(error), secrets_of(config, passwords))) from None


async def passwords_of(client: ConnectClient, config: dict[str, str]) -> frozenset[str]:
    """Return the settings that the connector's class says are passwords; none where the worker is too old."""
    try:
        return await client.passwords(str(config.get(_CLASS, "")).rpartition(".")[2] or "-")
    except ServiceFailed:
        return frozenset()


def _back(client: ConnectClient, name: str) -> str:
    return f"/connect/connector?{urlencode({'connect': client.name, 'name': name})}"
