"""Values that name their schema in a schema registry: their columns, and their decoding by these schemas.

The driver asks for columns. Tasks decode each value by the schema that it names, and match fields by name: a
field that the schema of a value lacks is null. A value that names no schema, or does not fit its own, is
malformed; a registry that is away fails the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.client.blocking import LoopThread
from ottla.client.errors import ClientError
from ottla.client.profiles import read_profile
from ottla.client.serialization import DeserializationContext, PreparationNeeded
from ottla.client.settings import SettingError
from ottla.pipeline.errors import OptionError, PipelineError, one_line
from ottla.pipeline.json_values import Decoded, decode_each, fit_json
from ottla.pipeline.lazy import pa
from ottla.pipeline.schema_columns import (
    SchemaUnfit,
    avro_fields,
    ddl,
    json_fields,
    plain_avro,
    protobuf_fields,
    protobuf_row,
)
from ottla.pipeline.spark_workers import ProcessCache

if TYPE_CHECKING:
    from ottla.registry import SchemaRegistry
    from ottla.registry.schemas import SchemaText

T = TypeVar("T")

_SERVICE: Final = "schema_registry_"
_MISSING: Final = "values of a schema registry need it: pip install 'ottla-pipeline[registry]'"
_FIRST: Final = (0,)
"""The place of a subject's message in its file of Protobuf."""


class RegistryFailed(PipelineError):
    """A schema registry gave no usable answer."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"schema registry {url}: {one_line(error)}")


class NotRegistered(ValueError):
    """A value names a schema that the registry does not have."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A schema registry and the login there."""

    url: str
    login: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, url: str, profile: str | None = None) -> RegistrySettings:
        """Return the settings of a registry. Raises OptionError.

        A profile's login is sent to the address that the profile names, and to no other.
        """
        try:
            found = {} if profile is None else read_profile(profile).services()
        except SettingError as error:
            raise OptionError(f"the login of the schema registry: {error}") from None
        own = {name.removeprefix(_SERVICE): text for name, text in found.items() if name.startswith(_SERVICE)}
        address = own.pop("url", own.pop("urls", None))
        return cls(url, tuple(sorted(own.items())) if url == address else ())

    def open(self) -> SchemaRegistry:
        """Return a client. Raises OptionError."""
        try:
            from ottla.registry import RegistryConfig, SchemaRegistry
        except ImportError:
            raise OptionError(_MISSING) from None
        try:
            return SchemaRegistry(config=RegistryConfig(url=self.url, **dict[str, Any](self.login)))
        except SettingError as error:
            raise OptionError(f"the schema registry: {error}") from None


def registry_of_profile(profile: str) -> str | None:
    """Return the address of the registry that a profile names, if it does. Raises SettingError."""
    found = read_profile(profile).settings
    address = found.get(f"{_SERVICE}url", found.get(f"{_SERVICE}urls"))
    return None if address is None else str(address)


# --- columns, on the driver


@dataclass(frozen=True, slots=True)
class SchemaColumns:
    """The fields of a schema as columns with their types in Spark's DDL."""

    schema: str
    """The schema, for people: `version 2 of orders-value`."""
    kind: str
    fields: Mapping[str, str]

    @property
    def ddl(self) -> str:
        """All columns."""
        return ddl(self.fields)


def columns_of_subject(settings: RegistrySettings, subject: str) -> SchemaColumns:
    """Return the columns of a subject's latest version. Raises RegistryFailed, SchemaUnfit, OptionError."""

    async def ask(registry: SchemaRegistry) -> SchemaColumns:
        found = await registry.latest(subject)
        if found.id is None:
            raise SchemaUnfit(f"the registry names no id of the latest version of {subject}")
        return await _columns(registry, found.id, _FIRST, f"version {found.version} of {subject}")

    return _asked(settings, ask)


def columns_of_value(settings: RegistrySettings, value: bytes, headers: Headers) -> SchemaColumns | None:
    """Return the columns of the schema that a value names; None if it names none.

    Raises RegistryFailed, SchemaUnfit, OptionError.
    """
    from ottla.registry.framing import framed

    found = framed(value, "value", headers)
    if found is None:
        return None

    async def ask(registry: SchemaRegistry) -> SchemaColumns:
        return await _columns(registry, found.schema, None, f"schema {found.schema}", found.message)

    return _asked(settings, ask)


def _asked(
    settings: RegistrySettings, ask: Callable[[SchemaRegistry], Coroutine[Any, Any, SchemaColumns]]
) -> SchemaColumns:
    async def asking() -> SchemaColumns:
        async with settings.open() as registry:
            return await ask(registry)

    try:
        return asyncio.run(asking())
    except (ClientError, TimeoutError) as error:
        raise RegistryFailed(settings.url, error) from error


async def _columns(
    registry: SchemaRegistry,
    schema: int | str,
    place: Sequence[int] | None,
    name: str,
    message: Callable[[], tuple[tuple[int, ...], bytes]] | None = None,
) -> SchemaColumns:
    text = await registry.schema(schema)
    try:
        match text.kind:
            case "AVRO":
                fields = avro_fields(text.text, text.references)
            case "JSON":
                fields = json_fields(text.text)
            case _:
                at = place if message is None else message()[0]
                fields = protobuf_fields(_descriptor(await registry.serialized(schema), at or _FIRST))
    except SchemaUnfit as error:
        raise SchemaUnfit(f"{name}: {error}") from None
    return SchemaColumns(name, text.kind, fields)


def _descriptor(text: SchemaText, place: Sequence[int]) -> Any:
    try:
        from google.protobuf import descriptor_pool
    except ImportError:
        raise OptionError(_MISSING) from None
    from ottla.registry.protobuf_files import MAIN, BadSchema, descriptors, message_name

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptors(text.text, text.references)
        for file in files:
            pool.Add(file)
        main = next(file for file in files if file.name == MAIN)
        return pool.FindMessageTypeByName(message_name(main, place))
    except BadSchema as error:
        raise SchemaUnfit(str(error)) from None


# --- values, in tasks

Headers = Sequence[tuple[str, bytes | None]]


class RegistryReader:
    """Reads values of one registry; each schema is asked for once."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._thread: LoopThread[SchemaRegistry] = LoopThread(settings.open, name="the registry's client")
        self._kinds: dict[int | str, str] = {}
        self._deserializers: dict[str, Any] = {}

    def close(self, timeout_s: float | None = None) -> None:
        """Close the client."""
        self._thread.close(timeout_s)

    def read(self, value: bytes, headers: Headers, wanted: pa.StructType) -> Any:
        """Return a value as a row.

        Raises RegistryFailed, and for a value that cannot be read ValueError or errors of its decoder.
        """
        from ottla.registry.framing import framed

        found = framed(value, "value", headers)
        if found is None:
            raise ValueError("it names no schema: no registry's serializer wrote it")
        kind = self._kinds.get(found.schema)
        if kind is None:
            kind = self._kinds[found.schema] = self._kind_of(found.schema)
        if kind == "JSON":
            return fit_json(found.payload, wanted)
        try:
            row = self._deserialized(kind, value, headers)
        except PipelineError:
            raise
        except Exception as error:  # libraries raise whatever damaged bytes lead to
            reason = one_line(error)
            raise ValueError(f"it is no {kind} of schema {found.schema}: {reason}") from error
        return protobuf_row(row) if kind == "PROTOBUF" else row

    def _kind_of(self, schema: int | str) -> str:
        registry = self._thread.start()
        try:
            return self._call(lambda: registry.schema(schema)).kind
        except NotRegistered as error:
            raise NotRegistered(f"it names schema {schema}: {error}") from None

    def _deserialized(self, kind: str, value: bytes, headers: Headers) -> Any:
        if kind not in self._deserializers:
            self._deserializers[kind] = _deserializer(kind, self._thread.start())
        context = DeserializationContext("", 0, 0, "value", tuple(headers))
        try:
            return self._deserializers[kind].deserialize(value, context)
        except PreparationNeeded as needed:
            prepare = needed.prepare

        async def prepared() -> None:
            await prepare()

        self._call(prepared)
        return self._deserializers[kind].deserialize(value, context)

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        from ottla.registry import NoSchema

        try:
            return self._thread.call(make)  # the client's own timeouts bound it
        except NoSchema as error:
            if error.retriable:
                raise RegistryFailed(self._settings.url, error) from error
            raise NotRegistered(one_line(error)) from None
        except (ClientError, TimeoutError) as error:
            raise RegistryFailed(self._settings.url, error) from error


def _deserializer(kind: str, registry: SchemaRegistry) -> Any:
    from ottla.registry import AvroDeserializer, ProtobufDeserializer

    class PlainAvro(AvroDeserializer):
        """Leaves out logical types that Spark does not have."""

        async def _written(self, schema: int | str) -> SchemaText:
            found = await super()._written(schema)
            imported = tuple((name, plain_avro(text)) for name, text in found.references)
            return replace(found, text=plain_avro(found.text), references=imported)

    return PlainAvro(registry) if kind == "AVRO" else ProtobufDeserializer(registry)


_readers: ProcessCache[RegistryReader] = ProcessCache("a client of a schema registry", 4)


def decode_registered(
    settings: RegistrySettings, values: pa.Array, headers: pa.Array | None, wanted: pa.StructType
) -> Decoded:
    """Decode a column of values by the schemas that they name, in front of them or in their headers.

    Raises RegistryFailed.
    """
    reader = _readers.get(settings, lambda: RegistryReader(settings))
    # A null value stays null, and has no headers to look at.
    columns = [values] if headers is None else [values, headers]
    records = pa.StructArray.from_arrays(columns, ["value", "headers"][: len(columns)], mask=values.is_null())

    def read(record: Mapping[str, Any]) -> Any:
        pairs = [(header["key"], header["value"]) for header in record.get("headers") or ()]
        return reader.read(record["value"], pairs, wanted)

    return decode_each(read, records, wanted)
