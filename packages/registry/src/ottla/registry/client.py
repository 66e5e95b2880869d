"""A client for a Confluent-compatible schema registry: subjects, versions, compatibility, changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ottla.registry.rest import RestClient, ServiceFailed, ServiceRefused

LEVELS: Final = (
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE",
)  # fmt: skip
KINDS: Final = ("AVRO", "PROTOBUF", "JSON")


MOST_LETTERS: Final = 2 << 20
"""The longest schema that is read: samples of pages keep them."""


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one imports under a name."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True, rename="camel"):
    """A schema of a registry; the subject and the version are there where it was asked for by these."""

    schema: str
    schema_type: str = "AVRO"
    references: list[Reference] | None = None
    id: int | None = None
    guid: str | None = None
    subject: str | None = None
    version: int | None = None
    metadata: Any = None
    rule_set: Any = None


class SubjectVersion(msgspec.Struct, frozen=True):
    """A place where a schema is registered."""

    subject: str
    version: int


class Verdict(msgspec.Struct, frozen=True):
    """Whether a schema may follow those of a subject, and why not.

    Confluent's registry has messages, others one reason.
    """

    is_compatible: bool
    messages: list[str] = []
    reason: str | None = None

    @property
    def reasons(self) -> list[str]:
        """The reasons of a schema that is not compatible, in the words of the registry."""
        return self.messages or ([self.reason] if self.reason else [])


class _Level(msgspec.Struct):
    compatibility_level: str | None = msgspec.field(name="compatibilityLevel", default=None)
    compatibility: str | None = None

    @property
    def name(self) -> str:
        return self.compatibility_level or self.compatibility or "unknown"


class _Id(msgspec.Struct, rename="camel"):
    id: int
    guid: str | None = None
    version: int | None = None
    rule_set: Any = None


class _Mode(msgspec.Struct):
    mode: str


class RegistryClient:
    """Asks a schema registry. All calls raise ServiceFailed."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return the names of all subjects, with `deleted` also of deleted ones that can come back."""
        query = {"deleted": True} if deleted else {}
        return sorted(await self._rest.get("subjects", list[str], **query))

    async def versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions."""
        return sorted(await self._rest.get(f"subjects/{_part(subject)}/versions", list[int]))

    async def version(
        self, subject: str, version: int | str = "latest", *, deleted: bool = False, serialized: bool = False
    ) -> RegisteredSchema:
        """Return a version of a subject, with `deleted` also one that was deleted and can come back.

        With `serialized` a file of Protobuf is its descriptor in base 64, where the registry can make one.
        """
        query: dict[str, object] = {"deleted": True} if deleted else {}
        query |= {"format": "serialized"} if serialized else {}
        path = f"subjects/{_part(subject)}/versions/{version}"
        return _bounded(await self._rest.get(path, RegisteredSchema, **query))

    async def schema(self, schema: int | str, *, serialized: bool = False) -> RegisteredSchema:
        """Return a schema by its id, or by its GUID; `serialized` as for `version`."""
        query = {"format": "serialized"} if serialized else {}
        path = f"schemas/ids/{schema}" if isinstance(schema, int) else f"schemas/guids/{_part(schema)}"
        return _bounded(await self._rest.get(path, RegisteredSchema, **query))

    async def places(self, schema_id: int) -> list[SubjectVersion]:
        """Return the subjects and versions where a schema is registered."""
        return await self._rest.get(f"schemas/ids/{schema_id}/versions", list[SubjectVersion])

    async def referrers(self, subject: str, version: int) -> list[int]:
        """Return the ids of the schemas that import a version of a subject."""
        path = f"subjects/{_part(subject)}/versions/{version}/referencedby"
        return await self._rest.get(path, list[int])

    async def level(self, subject: str = "") -> tuple[str, bool]:
        """Return the compatibility level of a subject, and whether it is its own; without one the default."""
        if subject:
            try:
                return (await self._rest.get(f"config/{_part(subject)}", _Level)).name, True
            except ServiceRefused as error:
                if error.status != 404:
                    raise
        return (await self._rest.get("config", _Level)).name, False

    async def check(self, subject: str, schema: Mapping[str, object]) -> Verdict:
        """Return whether a schema may become the next version of a subject, by the subject's level."""
        path = f"compatibility/subjects/{_part(subject)}/versions"
        # A level that is transitive is about all versions, any other about the latest.
        name, _ = await self.level(subject)
        at = path if name.endswith("_TRANSITIVE") else f"{path}/latest"
        return await self._rest.send("POST", at, Verdict, schema, verbose=True)

    async def lookup(
        self, subject: str, schema: Mapping[str, object], *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        """Return a schema of a subject by its text, with its id and version."""
        path = f"subjects/{_part(subject)}"
        query = {name: True for name, is_set in (("normalize", normalize), ("deleted", deleted)) if is_set}
        return _bounded(await self._rest.send("POST", path, RegisteredSchema, schema, **query))

    async def latest_with_metadata(self, subject: str, properties: Mapping[str, str]) -> RegisteredSchema:
        """Return the latest version of a subject whose metadata have these properties."""
        pairs: dict[str, object] = {"key": list(properties), "value": list(properties.values())}
        return _bounded(
            await self._rest.get(f"subjects/{_part(subject)}/metadata", RegisteredSchema, **pairs)
        )

    async def register(self, subject: str, schema: Mapping[str, object]) -> int:
        """Register a schema as the next version of a subject; return its id."""
        found = await self._rest.send("POST", f"subjects/{_part(subject)}/versions", _Id, schema)
        return found.id

    async def registered(
        self, subject: str, schema: Mapping[str, object], *, normalize: bool = False
    ) -> RegisteredSchema:
        """Register a schema in a subject, or find it there; return what the registry says of it.

        Old registries say the id alone.
        """
        query = {"normalize": True} if normalize else {}
        found = await self._rest.send("POST", f"subjects/{_part(subject)}/versions", _Id, schema, **query)
        return RegisteredSchema(
            str(schema["schema"]), str(schema.get("schemaType", "AVRO")), id=found.id, guid=found.guid,
            subject=subject, version=found.version, rule_set=found.rule_set,
        )  # fmt: skip

    async def set_mode(self, subject: str, mode: str, *, force: bool = False) -> None:
        """Set the mode of a subject, or without a name that of all others."""
        path = f"mode/{_part(subject)}" if subject else "mode"
        await self._rest.send("PUT", path, type(None), {"mode": mode}, **({"force": True} if force else {}))

    async def mode(self, subject: str = "") -> str:
        """Return the mode of a subject, or without a name that of all others."""
        path = f"mode/{_part(subject)}" if subject else "mode"
        query = {"defaultToGlobal": True} if subject else {}
        return (await self._rest.get(path, _Mode, **query)).mode

    async def set_level(self, subject: str, level: str) -> None:
        """Set the compatibility level of a subject, or without a name that of all others."""
        path = f"config/{_part(subject)}" if subject else "config"
        await self._rest.send("PUT", path, type(None), {"compatibility": level})

    async def delete(self, subject: str, version: int | None = None, *, permanent: bool = False) -> None:
        """Delete a subject or one of its versions; `permanent` is possible after a deletion without it."""
        path = f"subjects/{_part(subject)}" + ("" if version is None else f"/versions/{version}")
        await self._rest.send("DELETE", path, type(None), **({"permanent": True} if permanent else {}))


def schema_body(kind: str, text: str, references: list[Reference]) -> dict[str, object]:
    """Return the body of a request about a schema; kinds of old registries have no name for Avro."""
    body: dict[str, object] = {"schema": text}
    if kind != "AVRO":
        body["schemaType"] = kind
    if references:
        body["references"] = references
    return body


def _bounded(found: RegisteredSchema) -> RegisteredSchema:
    if len(found.schema) > MOST_LETTERS:
        raise ServiceFailed(f"a schema has {len(found.schema)} letters, which is more than {MOST_LETTERS}")
    return found


def _part(name: str) -> str:
    return quote(name, safe="")
