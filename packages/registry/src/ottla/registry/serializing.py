"""The part of serializers and deserializers that does not depend on the kind of schema.

`serialize` and `deserialize` never wait. A schema that is not known here yet raises PreparationNeeded: the
client awaits the questions to the registry, and calls again. From then on a record costs one look into a
dictionary.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.serialization import DeserializationContext, PreparationNeeded, SerializationContext
from ottla.registry.client import Reference, RegisteredSchema
from ottla.registry.contracts import check_rules
from ottla.registry.framing import (
    KEY_HEADER,
    VALUE_HEADER,
    Framed,
    NotFramed,
    framed,
    guid_header,
    prefix,
)
from ottla.registry.registry import Schema, SchemaRegistry
from ottla.registry.schemas import SchemaText
from ottla.registry.subjects import Field, StrategyName, SubjectNameStrategy, subject_strategy

log = logging.getLogger(__name__)

MOST_KNOWN: Final = 1_000
"""Topics, or schemas, that a serializer keeps; with one more it drops the one that it has had longest."""
STALE_S: Final = 30.0
"""How long a latest version is used on when the registry cannot be asked for a later one."""
_HEADERS: Final = {"key": KEY_HEADER, "value": VALUE_HEADER}
_NOT_FRAMED: Final = (
    "no schema id stands in front of the {} or in a header beside it: it is not by a registry's serializer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializerOptions:
    """How a serializer finds the schema in the registry, and how it names it beside the value."""

    subject_name_strategy: StrategyName | SubjectNameStrategy = "topic"
    auto_register_schemas: bool = True
    """Register the schema with the first record; otherwise it must be there."""
    use_latest_version: bool = False
    """Write with the latest version of the subject; nothing is registered then."""
    use_latest_with_metadata: Mapping[str, str] | None = None
    """Write with the latest version that has these properties."""
    use_schema_id: int | None = None
    """Write with the schema of this id."""
    normalize_schemas: bool = False
    """Ask the registry to compare schemas without regard to the order of their properties."""
    schema_id_in: Literal["prefix", "header"] = "prefix"
    """Name the schema by its id in front of the value, or by its GUID in a header beside it."""

    def __post_init__(self) -> None:
        subject_strategy(self.subject_name_strategy)
        if self.schema_id_in not in ("prefix", "header"):
            raise ValueError(f"schema_id_in is 'prefix' or 'header', not {self.schema_id_in!r}")

    @property
    def is_latest(self) -> bool:
        """Whether a later version may take the place of the schema in use."""
        return self.use_latest_version or self.use_latest_with_metadata is not None


class Writer(NamedTuple):
    """How values of a topic are written: that which names the schema, and a function of the value."""

    prefix: bytes
    header: bytes | None
    write: Callable[[Any], bytes]
    until_s: float


class SchemaSerializer(ABC):
    """Serializes keys or values by a schema of a registry: a Serializer of `ottla.client.serialization`."""

    kind: Literal["AVRO", "PROTOBUF", "JSON"]

    def __init__(self, registry: SchemaRegistry, options: SerializerOptions) -> None:
        self.registry = registry
        self.options = options
        self._strategy = subject_strategy(options.subject_name_strategy)
        self._writers: dict[tuple[str, str, Hashable], Writer] = {}
        self._turn = asyncio.Lock()

    def serialize(self, value: Any, context: SerializationContext) -> bytes | None:
        """Return the bytes of a value. Raises PreparationNeeded before the schema is known."""
        variant = self._variant(value)
        writer = self._writers.get((context.topic, context.field, variant))
        if writer is None or (writer.until_s != math.inf and writer.until_s <= self.registry.now_s()):
            raise PreparationNeeded(lambda: self._prepare(context.topic, context.field, variant))
        payload = writer.write(value)
        if writer.header is None:
            return writer.prefix + payload
        name = _HEADERS[context.field]
        if any(
            header[0] == name for header in context.headers
        ):  # of a record that was read and is sent again
            context.headers[:] = [header for header in context.headers if header[0] != name]
        context.headers.append((name, writer.header))
        return payload

    async def prepare(self, topic: str, field: Field = "value", value: Any = None) -> None:
        """Find the schema for a topic now: a record can be sent by `send_nowait` then.

        A serializer of several types of Protobuf needs a `value` of the type.
        """
        await self._prepare(topic, field, self._variant(value))

    async def _prepare(self, topic: str, field: Field, variant: Hashable) -> None:
        key = topic, field, variant
        async with self._turn:
            known = self._writers.get(key)
            if known is not None and known.until_s > self.registry.now_s():
                return
            subject = self._strategy(topic, field, self._record_name(variant))
            try:
                found = await self._found(subject, variant)
            except ClientError as error:
                if known is None or not _may_pass(error):
                    raise
                log.warning("latest schema kept in use", extra={"subject": subject, "reason": str(error)})
                keep(self._writers, key, known._replace(until_s=self.registry.now_s() + STALE_S))
                return
            keep(self._writers, key, await self._writer(found, variant))

    async def _found(self, subject: str, variant: Hashable) -> RegisteredSchema:
        options, registry = self.options, self.registry
        if options.use_schema_id is not None:
            schema_id = options.use_schema_id
            found = await registry.ask(f"schema {schema_id}", lambda: registry.client.schema(schema_id))
            return RegisteredSchema(
                found.schema,
                found.schema_type,
                found.references,
                schema_id,
                found.guid,
                rule_set=found.rule_set,
            )
        if options.use_latest_with_metadata is not None:
            return await registry.latest(subject, metadata=options.use_latest_with_metadata)
        if options.use_latest_version:
            return await registry.latest(subject)
        schema = await self._own_schema(variant)
        if options.auto_register_schemas:
            return await self._registered(subject, schema)
        return await registry.lookup(subject, schema, normalize=options.normalize_schemas)

    async def _registered(self, subject: str, schema: Schema) -> RegisteredSchema:
        normalize = self.options.normalize_schemas
        found = await self.registry.register(subject, schema, normalize=normalize)
        if found.guid is None and self.options.schema_id_in == "header":
            return await self.registry.lookup(subject, schema, normalize=normalize)
        return found

    async def _writer(self, found: RegisteredSchema, variant: Hashable) -> Writer:
        check_rules(str(found.id or found.guid), found.rule_set, "write")
        place = self._place(variant)
        options = self.options
        is_own = not options.is_latest and options.use_schema_id is None
        write = self._write_own(variant) if is_own else await self._write_by(found, variant)
        until_s = self.registry.now_s() + self.registry.config.latest_ttl_s if options.is_latest else math.inf
        if options.schema_id_in == "prefix":
            if found.id is None:
                raise NotFramed("the registry names no id of the schema")
            return Writer(prefix(found.id) + place, None, write, until_s)
        if found.guid is None:
            raise NotFramed("the registry has no GUIDs: use schema_id_in='prefix'")
        return Writer(b"", guid_header(found.guid) + place, write, until_s)

    def _variant(self, value: Any) -> Hashable:
        return None

    def _place(self, variant: Hashable) -> bytes:
        return b""

    @abstractmethod
    def _record_name(self, variant: Hashable) -> str | None: ...

    @abstractmethod
    async def _own_schema(self, variant: Hashable) -> Schema: ...

    @abstractmethod
    def _write_own(self, variant: Hashable) -> Callable[[Any], bytes]: ...

    @abstractmethod
    async def _write_by(self, found: RegisteredSchema, variant: Hashable) -> Callable[[Any], bytes]: ...


Read = Callable[[Framed], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeserializerOptions:
    """The schema that a deserializer reads values as, where it is none of its own."""

    use_latest_version: bool = False
    """Read values as those of the latest version of the subject."""
    use_latest_with_metadata: Mapping[str, str] | None = None
    """Read values as those of the latest version that has these properties."""
    subject_name_strategy: StrategyName | SubjectNameStrategy = "topic"

    def __post_init__(self) -> None:
        subject_strategy(self.subject_name_strategy)

    @property
    def is_latest(self) -> bool:
        """Whether values are read as those of a version of the subject."""
        return self.use_latest_version or self.use_latest_with_metadata is not None


class SchemaDeserializer(ABC):
    """Deserializes by the schemas that values name: a Deserializer of `ottla.client.serialization`."""

    def __init__(
        self, registry: SchemaRegistry, options: DeserializerOptions, *, record_name: str | None
    ) -> None:
        self.registry = registry
        self.options = options
        self._strategy = subject_strategy(options.subject_name_strategy)
        self._record_name = record_name
        self._readers: dict[tuple[int | str, str | None], tuple[float, Read]] = {}
        self._turn = asyncio.Lock()

    def deserialize(self, data: bytes, context: DeserializationContext) -> Any:
        """Return the value of bytes. Raises PreparationNeeded before its schema is known, and NotFramed."""
        field = context.field
        found = framed(data, field, context.headers)
        if found is None:
            raise NotFramed(_NOT_FRAMED.format(field))
        topic = context.topic if self.options.is_latest else None
        known = self._readers.get((found.schema, topic))
        if known is None or (known[0] != math.inf and known[0] <= self.registry.now_s()):
            raise PreparationNeeded(lambda: self._prepare(found.schema, topic, field))
        return known[1](found)

    async def _prepare(self, schema: int | str, topic: str | None, field: Field) -> None:
        key = schema, topic
        async with self._turn:
            known = self._readers.get(key)
            if known is not None and known[0] > self.registry.now_s():
                return
            try:
                reader, until_s = await self._reader_schema(topic, field), math.inf
                if reader is not None:
                    until_s = self.registry.now_s() + self.registry.config.latest_ttl_s
                read = await self._reader(await self._written(schema), reader)
            except ClientError as error:
                if known is None or not _may_pass(error):
                    raise
                log.warning("latest schema kept in use", extra={"topic": topic, "reason": str(error)})
                read, until_s = known[1], self.registry.now_s() + STALE_S
            keep(self._readers, key, (until_s, read))

    async def _written(self, schema: int | str) -> SchemaText:
        return await self.registry.schema(schema)

    async def _reader_schema(self, topic: str | None, field: Field) -> SchemaText | None:
        if topic is None:
            return None
        subject = self._strategy(topic, field, self._record_name)
        found = await self.registry.latest(subject, metadata=self.options.use_latest_with_metadata)
        assert found.id is not None
        return await self.registry.schema(found.id)

    async def _reader(self, writer: SchemaText, latest: SchemaText | None) -> Read:
        reads = latest or writer
        evolves = latest is not None and latest.text != writer.text
        check_rules(reads.key, reads.rule_set, "read", evolves=evolves)
        if evolves:
            check_rules(writer.key, writer.rule_set, "read", evolves=True)
        return self._read_by(writer, latest)

    @abstractmethod
    def _read_by(self, writer: SchemaText, latest: SchemaText | None) -> Read: ...


def keep(known: dict[Any, Any], key: Any, found: Any) -> None:
    """Keep something; drop that which was kept first where there is too much."""
    known[key] = found
    if len(known) > MOST_KNOWN:
        del known[next(iter(known))]


def references_of(names: Sequence[Reference | tuple[str, str, int]]) -> tuple[Reference, ...]:
    """Return references, given as such or as tuples of name, subject and version."""
    return tuple(name if isinstance(name, Reference) else Reference(*name) for name in names)


def _may_pass(error: ClientError) -> bool:
    """Return whether a registry may answer later: a call ends with its deadline after such errors only."""
    return error.retriable or isinstance(error, DeadlineExceeded)
