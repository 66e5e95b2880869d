"""The answers of the registry: questions by the state, changes as records that the topic takes.

A change is decided by the state alone, and written by `SchemasTopic`; a registry that was fenced meanwhile
decides once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.client.environment import chance
from ottla.client.retry import Backoff
from ottla.registry.client import LEVELS
from ottla.registry.server import errors
from ottla.registry.server.errors import Refused, no_subject
from ottla.registry.server.parsing import SchemaParser
from ottla.registry.server.questions import GivenSchema, RegistryQuestions
from ottla.registry.server.state import (
    Record,
    RegistryState,
    SchemaValue,
    config_record,
    content_of,
    context_of,
    deletion_record,
    last_id_record,
    mode_record,
    schema_record,
    schema_tombstone,
)
from ottla.registry.server.topic import NotWritten

log = logging.getLogger(__name__)

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
MOST_VERSIONS: Final = 100_000
MOST_TOTAL_LETTERS: Final = 256 << 20
PAGE_NAMES: Final = 4_000
"""Subjects that are looked at in one go, which takes two milliseconds."""
_MOST_ATTEMPTS: Final = 10
_MOST_NAME: Final = 512
_SETTINGS: Final = {"alias", "normalize", "compatibilityGroup"}
"""Settings beside the compatibility level; null removes one."""


class Decision(NamedTuple):
    """The records of a change, and the answer once they are written."""

    records: Sequence[Record]
    answer: Any


class RecordStore(Protocol):
    """Keeps the records of a registry: `SchemasTopic`, or a list in a test."""

    name: str

    async def catch_up(self) -> None:
        """Return once all that was written before is in the state. Raises Refused."""

    async def lead(self) -> None:
        """Become the registry that writes, with all that others wrote in the state. Raises Refused."""

    async def append(self, records: Sequence[Record]) -> None:
        """Write records, and return once they are in the state. Raises NotWritten and Refused."""

    def was_written(self, token: str) -> bool:
        """Return whether the records of a NotWritten were written nevertheless."""


class RegistryService(RegistryQuestions):
    """The registry behind its interface. All calls raise Refused."""

    def __init__(self, state: RegistryState, topic: RecordStore, parser: SchemaParser) -> None:
        super().__init__(state, parser)
        self._topic = topic
        self._writing = asyncio.Lock()
        self._backoff = Backoff(20, 500)

    @property
    def topic_name(self) -> str:
        """The name of the topic."""
        return self._topic.name

    async def catch_up(self) -> None:
        """Return once all that any registry wrote before is known here."""
        await self._topic.catch_up()

    # --- schemas

    async def register(self, subject: str, given: GivenSchema, *, normalize: bool) -> SchemaValue:
        """Return the version of a subject with a schema, registered if it is not there."""
        check_subject(subject)
        normalize = normalize or bool((self._config(subject) or {}).get("normalize"))
        # Most are there: such a question is answered without a write, by any registry.
        numbered = self._numbered(subject, given)
        parsed = await self._parse(subject, numbered)
        if given.id is None and (known := self._known(subject, numbered, parsed, normalize)) is not None:
            return known
        found: SchemaValue = await self._write(lambda: self._registration(subject, given, normalize))
        return found

    # --- deletions

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete a subject; `permanent` is possible after a deletion without it."""
        check_subject(subject)
        found: list[int] = await self._write(lambda: self._subject_deletion(subject, permanent))
        return found

    async def delete_version(self, subject: str, version: int | str, *, permanent: bool) -> int:
        """Delete a version of a subject; `permanent` is possible after a deletion without it."""
        check_subject(subject)
        found: int = await self._write(lambda: self._version_deletion(subject, version, permanent))
        return found

    async def _subject_deletion(self, subject: str, permanent: bool) -> Decision:
        self._check_writable(subject)
        versions = self.state.versions(subject, deleted=True)
        live = [value for value in versions if not value.deleted]
        if not versions:
            raise no_subject(subject)
        self._check_unreferred(versions)
        if permanent:
            if live:
                raise Refused(errors.SUBJECT_NOT_SOFT_DELETED, f"Subject '{subject}' was not deleted first")
            numbers = [value.version for value in versions]
            records = [*self._removal(versions), deletion_record(subject, None)]
            return Decision(records, numbers)
        if not live:
            raise Refused(errors.SUBJECT_SOFT_DELETED, f"Subject '{subject}' was deleted already")
        records = [deletion_record(subject, versions[-1].version)]
        records += [config_record(subject, None)] if subject in self.state.configs else []
        records += [mode_record(subject, None)] if subject in self.state.modes else []
        return Decision(records, [value.version for value in live])

    async def _version_deletion(self, subject: str, version: int | str, permanent: bool) -> Decision:
        self._check_writable(subject)
        value = self.version(subject, version, deleted=True)
        if version == "latest" and not permanent:
            value = self.version(subject, version)
        self._check_unreferred([value])
        if permanent:
            if not value.deleted:
                text = f"Subject '{subject}' Version {value.version} was not deleted first"
                raise Refused(errors.VERSION_NOT_SOFT_DELETED, text)
            return Decision(self._removal([value]), value.version)
        if value.deleted:
            text = f"Subject '{subject}' Version {value.version} was deleted already"
            raise Refused(errors.VERSION_SOFT_DELETED, text)
        return Decision([schema_record(_replaced(value, deleted=True))], value.version)

    def _removal(self, values: Sequence[SchemaValue]) -> list[Record]:
        """Return the records that remove versions, and keep the last id where it would be forgotten."""
        records = [schema_tombstone(value.subject, value.version) for value in values]
        context = self.state.contexts[values[0].context]
        if any(value.id == context.last_id for value in values):
            records.append(last_id_record(values[0].context, context.last_id))
        return records

    def _check_unreferred(self, values: Sequence[SchemaValue]) -> None:
        for value in values:
            referring = self.state.referring(value.subject, value.version)
            if referring:
                first = referring[0]
                raise Refused(
                    errors.REFERENCE_EXISTS,
                    f"version {value.version} of '{value.subject}' is imported by version {first.version} of "
                    f"'{first.subject}'",
                )

    # --- settings

    async def set_level(self, subject: str, body: Mapping[str, Any]) -> None:
        """Set the compatibility settings of a subject, or of all others."""
        _check_setting(subject)
        level = body.get("compatibility")
        if level is not None and level not in LEVELS:
            names = ", ".join(LEVELS)
            raise Refused(errors.INVALID_LEVEL, f"compatibility is one of {names}, not {str(level)[:50]!r}")
        if (alias := body.get("alias")) is not None:
            check_subject(str(alias))
        if unknown := body.keys() - {"compatibility", *_SETTINGS}:
            named = ", ".join(sorted(map(str, unknown)))[:200]
            if any(body[name] is not None for name in unknown):
                raise Refused(errors.INVALID_LEVEL, f"settings that are not known here: {named}")

        async def decide() -> Decision:
            self._check_writable(subject)
            config = dict(self.state.configs.get(subject) or {})
            config |= {"compatibilityLevel": level} if level is not None else {}
            for name in body.keys() & _SETTINGS:
                config[name] = body[name]
                if body[name] is None:
                    del config[name]
            return Decision([config_record(subject, config)], None)

        await self._write(decide)

    async def delete_level(self, subject: str) -> str:
        """Remove the compatibility settings of a subject, or of all others; return the level they had."""

        async def decide() -> Decision:
            self._check_writable(subject)
            config = self.state.configs.get(subject)
            if config is None and subject:
                raise no_subject(subject)
            return Decision(
                [config_record(subject, None)], (config or {}).get("compatibilityLevel", "BACKWARD")
            )

        found: str = await self._write(decide)
        return found

    async def set_mode(self, subject: str, mode: object, *, force: bool) -> None:
        """Set the mode of a subject, or of all others."""
        _check_setting(subject)
        if mode not in MODES:
            raise Refused(errors.INVALID_MODE, f"mode is one of {', '.join(MODES)}, not {str(mode)[:50]!r}")
        name = str(mode)

        async def decide() -> Decision:
            has_schemas = self._has_schemas(subject)
            if (
                name == "IMPORT"
                and has_schemas
                and not force
                and self.mode(subject, default_to_global=True) != name
            ):
                text = "mode IMPORT needs a subject without schemas, or force=true"
                raise Refused(errors.NOT_PERMITTED, text)
            return Decision([mode_record(subject, name)], None)

        await self._write(decide)

    async def delete_mode(self, subject: str) -> str:
        """Remove the mode of a subject; return it."""

        async def decide() -> Decision:
            mode = self.state.modes.get(subject)
            if mode is None:
                raise no_subject(subject)
            return Decision([mode_record(subject, None)], mode)

        found: str = await self._write(decide)
        return found

    # --- the parts of a registration

    async def _registration(self, subject: str, given: GivenSchema, normalize: bool) -> Decision:
        mode = self._check_writable(subject)
        given = self._with_previous(subject, self._numbered(subject, given), mode)
        parsed = await self._parse(subject, given)
        if given.id is None and (known := self._known(subject, given, parsed, normalize)) is not None:
            return Decision((), known)
        self._check_room(given)
        value = self._next(subject, given, parsed.normalized if normalize else parsed.text, mode)
        if mode != "IMPORT":
            level, _ = self.level(subject, default_to_global=True)
            versions = self.state.versions(subject)
            if found := await self._incompatibilities(level, subject, given, parsed, versions):
                reasons = "; ".join(found)[:2_000]
                text = (
                    f"Schema being registered is incompatible with an earlier schema for subject '{subject}'"
                )
                raise Refused(errors.INCOMPATIBLE, f"{text}: {reasons}")
        return Decision([schema_record(value)], value)

    def _with_previous(self, subject: str, given: GivenSchema, mode: str) -> GivenSchema:
        """Return a schema with the metadata and the rules of the version before, where it has none itself."""
        versions = self.state.versions(subject)
        if mode == "IMPORT" or not versions:
            return given
        latest = versions[-1]
        metadata = given.metadata if given.metadata is not None else latest.metadata
        rules = given.rule_set if given.rule_set is not None else latest.rule_set
        return _given(given, metadata, rules)

    def _next(self, subject: str, given: GivenSchema, text: str, mode: str) -> SchemaValue:
        context = self.state.contexts.get(context_of(subject))
        numbers = [value.version for value in self.state.versions(subject, deleted=True)]
        version = given.version if mode == "IMPORT" and given.version else max(numbers, default=0) + 1
        content = content_of(given.kind, text, given.references, given.metadata, given.rule_set)
        if given.id is not None:
            if mode != "IMPORT":
                raise Refused(
                    errors.NOT_PERMITTED, f"Subject '{subject}' is not in import mode: an id cannot be set"
                )
            other = None if context is None else context.contents.get(given.id)
            if other is not None and other != content:
                raise Refused(errors.NOT_PERMITTED, f"another schema has the id {given.id}")
        known = context.ids.get(content) if context is not None else None
        schema_id = given.id or known or (0 if context is None else context.last_id) + 1
        return SchemaValue(
            subject, version, schema_id, text, given.kind, given.references, given.metadata, given.rule_set
        )

    def _check_room(self, given: GivenSchema) -> None:
        state = self.state
        if state.versions_count >= MOST_VERSIONS or state.letters + len(given.text) > MOST_TOTAL_LETTERS:
            text = f"the registry is full: {MOST_VERSIONS} versions, or {MOST_TOTAL_LETTERS >> 20} Mi letters"
            raise Refused(errors.NOT_PERMITTED, text)

    # --- the rest

    def _check_writable(self, subject: str) -> str:
        """Return the mode of a subject. Raises Refused where nothing may be written."""
        overall = self.state.modes.get("", "READWRITE")
        mode = overall if overall == "READONLY_OVERRIDE" else self._mode(subject)
        if mode.startswith("READONLY"):
            where = f"Subject '{subject}'" if subject else "The registry"
            raise Refused(errors.NOT_PERMITTED, f"{where} is in {mode} mode")
        return mode

    def _has_schemas(self, subject: str) -> bool:
        """Return whether a subject, a context, or without a name the registry has schemas."""
        is_whole = not subject or subject == f":{context_of(subject)}:"
        return any(self.state.names(subject)) if is_whole else self.state.is_live(subject)

    async def pages(self, prefix: str = "") -> AsyncIterator[list[str]]:
        """Yield the names of subjects that begin so, in order, with deleted ones; others run in between."""
        if prefix in self.state.subjects:
            yield [prefix]
        last = prefix
        while names := self.state.page(last, PAGE_NAMES):
            if not names[-1].startswith(prefix):
                yield [name for name in names if name.startswith(prefix)]
                return
            yield names
            last = names[-1]
            await asyncio.sleep(0)

    async def _write(self, decide: Callable[[], Awaitable[Decision]]) -> Any:
        """Write the records of a decision, again where another registry wrote meanwhile. Raises Refused."""
        pending: tuple[str, Any] | None = None
        async with self._writing:
            for attempt in range(_MOST_ATTEMPTS):
                await self._topic.lead()
                if pending is not None and self._topic.was_written(pending[0]):
                    return pending[1]
                decision = await decide()
                if not decision.records:
                    return decision.answer
                try:
                    await self._topic.append(decision.records)
                except NotWritten as error:
                    log.info(
                        "registry was fenced", extra={"topic": self._topic.name, "reason": str(error)[:200]}
                    )
                    pending = error.token, decision.answer
                    await asyncio.sleep(self._backoff.delay_ms(attempt, chance()) / 1_000)
                else:
                    return decision.answer
        raise Refused(errors.STORE_FAILED, "other registries wrote all the time: try again")


def check_subject(subject: str) -> None:
    """Raise Refused for text that is no name of a subject."""
    if not subject or len(subject) > _MOST_NAME or not subject.isprintable() or subject == "__GLOBAL":
        raise Refused(
            errors.INVALID_SUBJECT, f"The specified subject '{subject[:60]!a}' is not a valid subject"
        )


def _check_setting(subject: str) -> None:
    if subject:
        check_subject(subject)


def _given(given: GivenSchema, metadata: dict[str, Any] | None, rules: dict[str, Any] | None) -> GivenSchema:
    return GivenSchema(given.kind, given.text, given.references, metadata, rules, given.id, given.version)


def _replaced(value: SchemaValue, *, deleted: bool) -> SchemaValue:
    import msgspec

    return msgspec.structs.replace(value, deleted=deleted)
