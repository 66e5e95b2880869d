"""A client for the REST interface of Kafka Connect: workers, connectors, tasks, changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ottla.registry.rest import RestClient, ServiceRefused

PASSWORD: Final = "PASSWORD"


class WorkerInfo(msgspec.Struct, frozen=True):
    """The worker that answered: its version, and the Kafka cluster that it works for."""

    version: str
    commit: str = ""
    kafka_cluster_id: str | None = None


class Instance(msgspec.Struct, frozen=True):
    """The state of a connector itself."""

    state: str
    worker_id: str = ""
    trace: str | None = None


class Task(msgspec.Struct, frozen=True):
    """The state of a task."""

    id: int
    state: str
    worker_id: str = ""
    trace: str | None = None


class Status(msgspec.Struct, frozen=True):
    """The state of a connector and of its tasks."""

    connector: Instance
    tasks: list[Task] = []


class Info(msgspec.Struct, frozen=True):
    """The settings of a connector."""

    config: dict[str, Any] = {}
    type: str | None = None


class Connector(msgspec.Struct, frozen=True):
    """A connector with its state and its settings; the state is None until a worker has taken it."""

    status: Status | None = None
    info: Info | None = None


class Plugin(msgspec.Struct, frozen=True):
    """A class of connectors that a worker has."""

    class_: str = msgspec.field(name="class")
    type: str | None = None
    version: str | None = None


class _Key(msgspec.Struct):
    name: str
    type: str = ""


class _CheckedValue(msgspec.Struct):
    name: str
    errors: list[str] = []


class _Checked(msgspec.Struct):
    value: _CheckedValue | None = None


class _Validation(msgspec.Struct):
    configs: list[_Checked] = []


class _Topics(msgspec.Struct):
    topics: list[str] = []


class _Offset(msgspec.Struct):
    partition: Any
    offset: Any


class _Offsets(msgspec.Struct):
    offsets: list[_Offset] = []


class ConnectClient:
    """Asks a cluster of Connect. All calls raise ServiceFailed."""

    def __init__(self, name: str, rest: RestClient) -> None:
        self.name = name
        self.urls = rest.urls
        self._rest = rest

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    async def worker(self) -> WorkerInfo:
        """Return the worker that answers."""
        return await self._rest.get("", WorkerInfo)

    async def connectors(self) -> dict[str, Connector]:
        """Return all connectors by name, with state and settings."""
        # One parameter twice cannot be given by name: it stands in the path.
        return await self._rest.get("connectors?expand=status&expand=info", dict[str, Connector])

    async def connector(self, name: str) -> Connector:
        """Return one connector, with state and settings."""
        info = await self._rest.get(f"connectors/{_part(name)}", Info)
        try:
            return Connector(await self._rest.get(f"connectors/{_part(name)}/status", Status), info)
        except ServiceRefused as error:
            if error.status != 404:
                raise
            return Connector(None, info)  # no worker has taken it yet

    async def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used."""
        found = await self._rest.get(f"connectors/{_part(name)}/topics", dict[str, _Topics])
        return sorted(found[name].topics) if name in found else []

    async def offsets(self, name: str) -> list[tuple[Any, Any]]:
        """Return where a connector is: pairs of its source's partition and offset."""
        found = await self._rest.get(f"connectors/{_part(name)}/offsets", _Offsets)
        return [(entry.partition, entry.offset) for entry in found.offsets]

    async def plugins(self) -> list[Plugin]:
        """Return the classes of connectors that there are."""
        return await self._rest.get("connector-plugins", list[Plugin])

    async def passwords(self, class_: str) -> frozenset[str]:
        """Return the settings of a class of connectors that are passwords."""
        keys = await self._rest.get(f"connector-plugins/{_part(class_)}/config", list[_Key])
        return frozenset(key.name for key in keys if key.type == PASSWORD)

    async def faults(self, class_: str, config: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the faults of settings by key, as the class of the connector judges them."""
        path = f"connector-plugins/{_part(class_)}/config/validate"
        found = await self._rest.send("PUT", path, _Validation, dict(config))
        values = [checked.value for checked in found.configs if checked.value is not None]
        return {value.name: value.errors for value in values if value.errors}

    async def configure(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector, or change its settings."""
        await self._rest.send("PUT", f"connectors/{_part(name)}/config", type(None), dict(config))

    async def delete(self, name: str) -> None:
        """Delete a connector."""
        await self._rest.send("DELETE", f"connectors/{_part(name)}", type(None))

    async def pause(self, name: str) -> None:
        """Pause a connector and its tasks, which stay where they are."""
        await self._rest.send("PUT", f"connectors/{_part(name)}/pause", type(None))

    async def resume(self, name: str) -> None:
        """Resume a connector that was paused or stopped."""
        await self._rest.send("PUT", f"connectors/{_part(name)}/resume", type(None))

    async def stop(self, name: str) -> None:
        """Stop a connector: its tasks are taken away from the workers."""
        await self._rest.send("PUT", f"connectors/{_part(name)}/stop", type(None))

    async def restart(self, name: str, *, tasks: bool, only_failed: bool) -> None:
        """Restart a connector, and its tasks if asked; with `only_failed` those of both that failed."""
        await self._rest.send(
            "POST",
            f"connectors/{_part(name)}/restart",
            type(None),
            includeTasks=tasks,
            onlyFailed=only_failed,
        )

    async def restart_task(self, name: str, task: int) -> None:
        """Restart one task."""
        await self._rest.send("POST", f"connectors/{_part(name)}/tasks/{task}/restart", type(None))


def _part(name: str) -> str:
    return quote(name, safe="")
