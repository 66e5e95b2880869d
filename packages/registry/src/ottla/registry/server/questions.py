"""Questions to the registry, answered by its state alone: schemas, versions, compatibility, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, Final

import msgspec

from ottla.registry.client import Reference
from ottla.registry.compatibility.bounds import BadSchema
from ottla.registry.compatibility.levels import Version, messages
from ottla.registry.server import errors
from ottla.registry.server.errors import Refused, no_schema, no_subject, no_version
from ottla.registry.server.parsing import COMPARE, MOST_LETTERS, Parsed, SchemaParser, in_thread
from ottla.registry.server.state import RegistryState, SchemaValue, context_of, qualified

MOST_REFERENCES: Final = 100
_LATEST: Final = -1
MOST_COMPARED: Final = 500
"""Versions of a subject that a transitive level compares with; a subject with more needs another level."""


@dataclass(frozen=True, slots=True)
class GivenSchema:
    """A schema as a request has it."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    id: int | None = None
    version: int | None = None


class RegistryQuestions:
    """The questions to a registry that change nothing. All calls raise Refused."""

    def __init__(self, state: RegistryState, parser: SchemaParser) -> None:
        self.state = state
        self._parser = parser

    async def lookup(
        self, subject: str, given: GivenSchema, *, normalize: bool, deleted: bool
    ) -> SchemaValue:
        """Return the version of a subject with a schema."""
        if not self.state.versions(subject, deleted=deleted):
            raise no_subject(subject)
        given = self._numbered(subject, given)
        found = self._known(subject, given, await self._parse(subject, given), normalize, deleted=deleted)
        if found is None:
            raise no_schema()
        return found

    async def check(
        self, subject: str, given: GivenSchema, version: int | str | None, *, normalize: bool
    ) -> list[str]:
        """Return why a schema may not follow the versions of a subject, or one of them."""
        level, _ = self.level(subject, default_to_global=True)
        versions = self.state.versions(subject)
        if version is not None and not versions:
            raise no_subject(subject)
        if version is not None:
            versions = [self.version(subject, version)]
            level = level.removesuffix("_TRANSITIVE")
        try:
            parsed = await self._parse(subject, given)
        except Refused as error:
            if error.code != errors.INVALID_SCHEMA:
                raise
            return [str(error)]
        return await self._incompatibilities(level, subject, given, parsed, versions)

    def version(self, subject: str, version: int | str, *, deleted: bool = False) -> SchemaValue:
        """Return a version of a subject by its number, or the latest."""
        found = self.state.versions(subject, deleted=True)
        live = found if deleted else [value for value in found if not value.deleted]
        if not live:
            raise no_subject(subject)
        if version == "latest":
            return live[-1]
        value = next((value for value in live if value.version == version), None)
        if value is None:
            raise no_version(version)
        return value

    def by_id(self, schema_id: int, subject: str = "") -> SchemaValue:
        """Return a schema by its id, of the context of a subject."""
        found = self.state.by_id(context_of(subject), schema_id)
        if found is None:
            raise no_schema()
        return found

    async def serialized(self, value: SchemaValue) -> str:
        """Return a schema of Protobuf as its descriptor in base 64."""
        given = GivenSchema(value.schema_type, value.schema, value.references)
        return (await self._parse(value.subject, given)).descriptor or value.schema

    def level(self, subject: str, *, default_to_global: bool) -> tuple[str, dict[str, Any]]:
        """Return the compatibility level of a subject, and its other settings."""
        config = (
            self._config(subject) if default_to_global or not subject else self.state.configs.get(subject)
        )
        if config is None and subject and not default_to_global:
            text = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise Refused(errors.NO_SUBJECT_LEVEL, text)
        found = config or {}
        return str(found.get("compatibilityLevel") or "BACKWARD"), found

    def resolved(self, subject: str) -> str:
        """Return the subject that a name stands for: that of its alias, or itself."""
        return (self.state.configs.get(subject) or {}).get("alias") or subject

    def mode(self, subject: str, *, default_to_global: bool) -> str:
        """Return the mode of a subject, or of all others."""
        found = self.state.modes.get(subject)
        if found is None and subject and not default_to_global:
            text = f"Subject '{subject}' does not have subject-level mode configured"
            raise Refused(errors.NO_SUBJECT_MODE, text)
        return found or self._mode(subject)

    def _known(
        self, subject: str, given: GivenSchema, parsed: Parsed, normalize: bool, *, deleted: bool = False
    ) -> SchemaValue | None:
        """Return the version with a schema: with the same metadata, or any where the request has none."""
        texts = {parsed.text, parsed.normalized} if normalize else {parsed.text}
        for value in reversed(self.state.versions(subject, deleted=deleted)):
            if (
                value.schema_type == given.kind
                and value.schema in texts
                and value.references == given.references
                and given.metadata in (None, value.metadata)
                and given.rule_set in (None, value.rule_set)
            ):
                return value
        return None

    async def _incompatibilities(
        self, level: str, subject: str, given: GivenSchema, parsed: Parsed, values: Sequence[SchemaValue]
    ) -> list[str]:
        values = self._grouped(subject, given, values)
        if level == "NONE" or not values:
            return []
        if not level.endswith("_TRANSITIVE"):
            values = values[-1:]
        if len(values) > MOST_COMPARED:
            raise Refused(
                errors.INVALID_SCHEMA, f"'{subject}' has more than {MOST_COMPARED} versions to compare"
            )
        versions = []
        for value in values:
            other = GivenSchema(value.schema_type, value.schema, value.references)
            model = (await self._parse(subject, other)).model if value.schema_type == given.kind else None
            versions.append(Version(value.version, value.schema_type, model))
        compare = COMPARE[given.kind]
        try:
            found: list[str] = await in_thread(
                lambda: messages(level, given.kind, parsed.model, versions, compare)
            )
        except BadSchema as error:
            raise Refused(errors.INVALID_SCHEMA, str(error)) from None
        return found

    def _grouped(
        self, subject: str, given: GivenSchema, values: Sequence[SchemaValue]
    ) -> Sequence[SchemaValue]:
        """Return the versions of the same compatibility group, where a subject has such."""
        group = (self._config(subject) or {}).get("compatibilityGroup")
        if not group:
            return values
        own = property_of(given.metadata, group)
        return [value for value in values if property_of(value.metadata, group) == own]

    async def _parse(self, subject: str, given: GivenSchema) -> Parsed:
        try:
            return await self._parser.parse(given.kind, given.text, self._imported(subject, given.references))
        except BadSchema as error:
            raise Refused(errors.INVALID_SCHEMA, f"Invalid schema: {error}") from None

    def _imported(self, subject: str, references: Sequence[Reference]) -> list[tuple[str, str]]:
        """Return the names and texts of imported schemas, each once and behind those that it imports."""
        context, found = context_of(subject), dict[str, str]()
        begun, letters = set[str](), 0
        stack: list[Reference | tuple[str, str]] = [*reversed(references)]
        while stack:
            entry = stack.pop()
            if isinstance(entry, tuple):
                found[entry[0]] = entry[1]
            elif entry.name not in begun:
                begun.add(entry.name)
                value = self._referred(qualified(context, entry.subject), entry)
                letters += len(value.schema)
                if len(begun) > MOST_REFERENCES or letters > MOST_LETTERS:
                    text = f"it imports more than {MOST_REFERENCES} schemas or {MOST_LETTERS} letters"
                    raise Refused(errors.INVALID_SCHEMA, f"Invalid schema: {text}")
                stack += [(entry.name, value.schema), *reversed(value.references)]
        return list(found.items())

    def _numbered(self, subject: str, given: GivenSchema) -> GivenSchema:
        """Return a schema that imports versions by their numbers: -1 stands for the latest."""
        if all(reference.version != _LATEST for reference in given.references):
            return given
        context = context_of(subject)
        numbered = []
        for reference in given.references:
            versions = self.state.versions(qualified(context, reference.subject))
            if reference.version == _LATEST and versions:
                found = msgspec.structs.replace(reference, version=versions[-1].version)
                numbered.append(found)
            else:
                numbered.append(reference)
        return changed(given, references=tuple(numbered))

    def _referred(self, subject: str, reference: Reference) -> SchemaValue:
        versions = self.state.subjects.get(subject, {})
        number = reference.version
        if number == _LATEST:  # of a record that another registry wrote
            number = max(versions, default=_LATEST)
        if number not in versions:
            text = f"it imports version {reference.version} of '{subject}', which is not there"
            raise Refused(errors.INVALID_SCHEMA, f"Invalid schema: {text}")
        return versions[number]

    def _mode(self, subject: str) -> str:
        return self.state.setting(self.state.modes, subject) or "READWRITE"

    def _config(self, subject: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.state.setting(self.state.configs, subject)
        return found


def property_of(metadata: Mapping[str, Any] | None, name: str) -> Any:
    """Return a property of metadata."""
    properties = (metadata or {}).get("properties")
    return properties.get(name) if isinstance(properties, dict) else None
