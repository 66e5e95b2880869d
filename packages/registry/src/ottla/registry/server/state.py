"""The state of a registry: the records of its topic, applied in the order of their offsets. Pure.

Records are Confluent's: JSON keys with a `keytype`, so that either registry can go on where the other ended.
Nothing but `apply` changes the state.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec
from sortedcontainers import SortedList

from ottla.registry.client import Reference

DEFAULT_CONTEXT: Final = "."
Record = tuple[bytes, bytes | None]
"""The key and the value of a record of the topic."""


class SchemaValue(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """The value of a record of a schema, as it is in the topic."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False

    @property
    def context(self) -> str:
        """The context of its subject; each has ids of its own."""
        return context_of(self.subject)

    @property
    def content(self) -> bytes:
        """A digest of all but its place: schemas with the same have the same id."""
        return content_of(self.schema_type, self.schema, self.references, self.metadata, self.rule_set)

    @property
    def guid(self) -> str:
        """Its GUID, which depends on its content alone."""
        return str(uuid.UUID(bytes=self.content[:16]))


def content_of(
    kind: str,
    text: str,
    references: tuple[Reference, ...],
    metadata: Mapping[str, Any] | None,
    rule_set: Mapping[str, Any] | None,
) -> bytes:
    """Return the digest of a schema."""
    parts = (kind, text, references, metadata or None, rule_set or None)
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).digest()


def context_of(subject: str) -> str:
    """Return the context of a subject `:.NAME:REST`; without a name it is the default one."""
    if subject.startswith(":."):
        name, colon, _ = subject[1:].partition(":")
        if colon:
            return name
    return DEFAULT_CONTEXT


def qualified(context: str, subject: str) -> str:
    """Return the name of a subject that is named within a context."""
    if context == DEFAULT_CONTEXT or subject.startswith(":."):
        return subject
    return f":{context}:{subject}"


@dataclass(slots=True)
class Context:
    """The schemas of a context by their ids, and the ids by content."""

    places: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    ids: dict[bytes, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    last_id: int = 0


class RegistryState:
    """Subjects with their versions, settings, and where each schema is used."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, SchemaValue]] = {}
        self.contexts: dict[str, Context] = {DEFAULT_CONTEXT: Context()}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self.referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self.guids: dict[str, set[tuple[str, int]]] = {}
        self.letters = 0
        self.versions_count = 0
        self._texts: dict[bytes, str] = {}
        self._live: Counter[str] = Counter()
        """The versions of each subject that are not deleted."""
        self._names = SortedList()
        self._live_in: Counter[str] = Counter()
        """The versions of each context that are not deleted."""

    # --- questions

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaValue]:
        """Return the versions of a subject in order, with `deleted` also those that can come back."""
        found = self.subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def names(self, prefix: str = "", *, deleted: bool = False) -> Iterator[str]:
        """Yield the names of the subjects with versions that begin so, in order, until there is a change."""
        for name in self._names.irange(prefix):
            if not name.startswith(prefix):
                return
            if deleted or self._live[name]:
                yield name

    def page(self, after: str, count: int) -> list[str]:
        """Return the names of subjects behind a name, in order, deleted ones too: at most `count`."""
        return list(islice(self._names.irange(after, inclusive=(False, True)), count))

    def is_live(self, subject: str) -> bool:
        """Return whether a subject has a version that is not deleted."""
        return self._live[subject] > 0

    def live_contexts(self) -> list[str]:
        """Return the names of the contexts with versions that are not deleted, and of the default one."""
        return sorted({DEFAULT_CONTEXT, *(name for name, count in self._live_in.items() if count)})

    def by_id(self, context: str, schema_id: int) -> SchemaValue | None:
        """Return a schema by its id; deleted ones too, because records were written by them."""
        known = self.contexts.get(context)
        places = known.places.get(schema_id) if known is not None else None
        if not places:
            return None
        subject, version = min(places)
        return self.subjects[subject][version]

    def is_referred(self, subject: str, version: int) -> bool:
        """Return whether a schema that is not deleted imports a version."""
        return bool(self.referring(subject, version))

    def referring(self, subject: str, version: int) -> list[SchemaValue]:
        """Return the schemas that import a version, without deleted ones."""
        places = sorted(self.referrers.get((subject, version), ()))
        found = [self.subjects[name][number] for name, number in places]
        return [value for value in found if not value.deleted]

    def setting(self, settings: Mapping[str, Any], subject: str) -> Any:
        """Return the setting of a subject: its own, that of its context, or the one of all."""
        context = context_of(subject)
        names = (subject, *((f":{context}:",) if context != DEFAULT_CONTEXT else ()), "")
        return next((settings[name] for name in names if name in settings), None)

    # --- changes

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the topic. Raises ValueError for one that makes no sense; it changes nothing."""
        found = msgspec.json.decode(key, type=_Key)
        match found.keytype:
            case "SCHEMA" if found.subject is not None and found.version is not None:
                self._schema(found.subject, found.version, value)
            case "CONFIG":
                self._set(self.configs, found.subject, None if value is None else _decoded(value))
            case "MODE":
                mode = None if value is None else _decoded(value).get("mode")
                self._set(self.modes, found.subject, mode)
            case "DELETE_SUBJECT" | "CLEAR_SUBJECT" if value is not None:
                self._delete(_decoded(value))
            case "OTTLA_LAST_ID" if value is not None:
                self._keep_last_id(_decoded(value))
            case _:  # NOOP, CONTEXT, and those of later versions
                pass

    def _schema(self, subject: str, version: int, value: bytes | None) -> None:
        found = None if value is None else msgspec.json.decode(value, type=SchemaValue)
        if found is not None and (found.subject, found.version) != (subject, version):
            raise ValueError("the key of a schema names another place than its value")
        self._forget(subject, version)
        if found is not None:
            self._add(found)

    def _add(self, value: SchemaValue) -> None:
        content = value.content
        text = self._texts.setdefault(content, value.schema)
        value = msgspec.structs.replace(value, schema=text)  # one object for all places
        place = value.subject, value.version
        if value.subject not in self.subjects:
            self._names.add(value.subject)
        self.subjects.setdefault(value.subject, {})[value.version] = value
        self._count_live(value, not value.deleted)
        context = self.contexts.setdefault(value.context, Context())
        context.places.setdefault(value.id, set()).add(place)
        context.ids.setdefault(content, value.id)
        context.contents.setdefault(value.id, content)
        context.last_id = max(context.last_id, value.id)
        self.guids.setdefault(value.guid, set()).add((value.context, value.id))
        for reference in value.references:
            target = qualified(value.context, reference.subject), reference.version
            self.referrers.setdefault(target, set()).add(place)
        self.letters += len(text)
        self.versions_count += 1

    def _forget(self, subject: str, version: int) -> None:
        value = self.subjects.get(subject, {}).pop(version, None)
        if value is None:
            return
        self._count_live(value, -(not value.deleted))
        if not self.subjects[subject]:
            del self.subjects[subject], self._live[subject]
            self._names.remove(subject)
        place, context = (subject, version), self.contexts[value.context]
        for reference in value.references:
            target = qualified(value.context, reference.subject), reference.version
            self.referrers.get(target, set()).discard(place)
        context.places[value.id].discard(place)
        if not context.places[value.id]:
            del context.places[value.id]
            content = context.contents.pop(value.id)
            if context.ids.get(content) == value.id:
                del context.ids[content]
                # Schemas that were imported may have had several ids.
                for other in (other for other, found in context.contents.items() if found == content):
                    context.ids.setdefault(content, other)
            self.guids[value.guid].discard((value.context, value.id))
            self._texts.pop(content, None)
        self.letters -= len(value.schema)
        self.versions_count -= 1

    def _keep_last_id(self, value: dict[str, Any]) -> None:
        name, last_id = value.get("context"), value.get("id")
        if not isinstance(name, str) or not isinstance(last_id, int):
            raise ValueError("a last id names no context and id")
        context = self.contexts.setdefault(name, Context())
        context.last_id = max(context.last_id, last_id)

    def _set(self, settings: dict[str, Any], subject: str | None, found: Any) -> None:
        if found is None:
            settings.pop(subject or "", None)
        else:
            settings[subject or ""] = found

    def _delete(self, value: dict[str, Any]) -> None:
        subject, last = value.get("subject"), value.get("version")
        if not isinstance(subject, str) or not isinstance(last, int):
            raise ValueError("a deletion names no subject and version")
        versions = self.subjects.get(subject, {})
        for number, found in versions.items():
            if number <= last and not found.deleted:
                versions[number] = msgspec.structs.replace(found, deleted=True)
                self._count_live(found, -1)

    def _count_live(self, value: SchemaValue, change: int) -> None:
        self._live[value.subject] += change
        self._live_in[value.context] += change


class _Key(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None


def _decoded(value: bytes) -> dict[str, Any]:
    return msgspec.json.decode(value, type=dict[str, Any])


# --- records


def schema_record(value: SchemaValue) -> Record:
    """Return the record of a schema."""
    key = {"keytype": "SCHEMA", "subject": value.subject, "version": value.version, "magic": 1}
    # Confluent's registry wants `deleted`, and no type for Avro.
    content = {**msgspec.to_builtins(value), "deleted": value.deleted}
    return msgspec.json.encode(key), msgspec.json.encode(content)


def schema_tombstone(subject: str, version: int) -> Record:
    """Return the record that removes a schema for good."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    return msgspec.json.encode(key), None


def last_id_record(context: str, last_id: int) -> Record:
    """Return the record that keeps the last id of a context, for schemas that are removed for good.

    It is not Confluent's, whose registry passes over types that it does not know.
    """
    key = {"keytype": "OTTLA_LAST_ID", "context": context, "magic": 0}
    return msgspec.json.encode(key), msgspec.json.encode({"context": context, "id": last_id})


def config_record(subject: str, config: Mapping[str, Any] | None) -> Record:
    """Return the record of compatibility settings; None removes them."""
    return _setting("CONFIG", subject, config)


def mode_record(subject: str, mode: str | None) -> Record:
    """Return the record of a mode; None removes it."""
    return _setting("MODE", subject, None if mode is None else {"mode": mode})


def _setting(keytype: str, subject: str, value: Mapping[str, Any] | None) -> Record:
    key = {"keytype": keytype, "subject": subject or None, "magic": 0}
    return msgspec.json.encode(key), None if value is None else msgspec.json.encode(value)


def deletion_record(subject: str, version: int | None) -> Record:
    """Return the record that deletes all versions of a subject up to one; None removes the record."""
    key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    value = {"subject": subject, "version": version}
    return msgspec.json.encode(key), None if version is None else msgspec.json.encode(value)
