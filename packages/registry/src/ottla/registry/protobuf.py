"""Protobuf: serializers and deserializers of messages, by Google's runtime."""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, cast

from ottla.registry.client import Reference, RegisteredSchema
from ottla.registry.framing import Framed, NotFramed, place_bytes
from ottla.registry.registry import Schema, SchemaRegistry
from ottla.registry.schemas import SchemaText
from ottla.registry.serializing import (
    DeserializerOptions,
    Read,
    SchemaDeserializer,
    SchemaSerializer,
    SerializerOptions,
)

BUILT_IN: Final = ("confluent/", "google/protobuf/", "google/type/")
"""The beginnings of the names of files that every registry has by itself."""


class ProtobufSerializer(SchemaSerializer):
    """Serializes messages of Protobuf. Their schema is the file that their class was made of."""

    kind = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry,
        message_type: Any = None,
        *,
        reference_subject: Callable[[str], str] = str,
        skip_known_types: bool = True,
        **options: Any,
    ) -> None:
        """`message_type` is the class of the messages; without one, messages of any class are taken.

        Files that the message's file imports are registered in the subject of their name, or in that which
        `reference_subject` makes of the name. `options` are those of SerializerOptions.
        """
        super().__init__(registry, SerializerOptions(**options))
        self._message_type = message_type
        self._reference_subject = reference_subject
        self._skips = skip_known_types

    def _variant(self, value: Any) -> Hashable:
        if self._message_type is not None:
            if value is not None and not isinstance(value, self._message_type):
                raise TypeError(f"a {self._message_type.__name__} is wanted, not {type(value).__name__}")
            return cast("Hashable", self._message_type.DESCRIPTOR)
        descriptor = getattr(value, "DESCRIPTOR", None)
        if descriptor is None:
            raise TypeError(f"a message of Protobuf is wanted, not {type(value).__name__}")
        return cast("Hashable", descriptor)

    def _place(self, variant: Hashable) -> bytes:
        return place_bytes(place_of(variant))

    def _record_name(self, variant: Any) -> str | None:
        name: str = variant.full_name
        return name

    async def _own_schema(self, variant: Any) -> Schema:
        return await self._schema_of(variant.file)

    async def _schema_of(self, file: Any) -> Schema:
        references = []
        for imported in file.dependencies:
            if self._skips and imported.name.startswith(BUILT_IN):
                continue
            references.append(await self._reference(imported))
        return Schema(base64.b64encode(file.serialized_pb).decode(), "PROTOBUF", tuple(references))

    async def _reference(self, file: Any) -> Reference:
        schema, subject = await self._schema_of(file), self._reference_subject(file.name)
        normalize = self.options.normalize_schemas
        if self.options.auto_register_schemas:
            await self.registry.register(subject, schema, normalize=normalize)
        found = await self.registry.lookup(subject, schema, normalize=normalize)
        if found.version is None:
            raise NotFramed(f"the registry names no version of {subject}")
        return Reference(file.name, subject, found.version)

    def _write_own(self, variant: Hashable) -> Callable[[Any], bytes]:
        return _serialized

    async def _write_by(self, found: RegisteredSchema, variant: Hashable) -> Callable[[Any], bytes]:
        return _serialized  # the bytes of a message depend on its class alone


class ProtobufDeserializer(SchemaDeserializer):
    """Deserializes messages of one class, or without one of the classes that their schemas have."""

    def __init__(
        self,
        registry: SchemaRegistry,
        message_type: Any = None,
        **options: Any,
    ) -> None:
        """`options` are those of DeserializerOptions."""
        name = None if message_type is None else message_type.DESCRIPTOR.full_name
        super().__init__(registry, DeserializerOptions(**options), record_name=name)
        self._message_type = message_type

    async def _written(self, schema: int | str) -> SchemaText:
        if self._message_type is not None:
            return await self.registry.schema(schema)
        return await self.registry.serialized(schema)

    def _read_by(self, writer: SchemaText, latest: SchemaText | None) -> Read:
        fixed = self._message_type
        if fixed is not None:

            def read(framed: Framed) -> Any:
                _, data = framed.message()
                return fixed.FromString(data)

            return read
        return _reader_of_any(writer)


def place_of(descriptor: Any) -> list[int]:
    """Return where a message stands in its file: its index, behind those of the messages around it."""
    place: list[int] = []
    while descriptor.containing_type is not None:
        around = descriptor.containing_type
        place.insert(0, [nested.name for nested in around.nested_types].index(descriptor.name))
        descriptor = around
    place.insert(0, list(descriptor.file.message_types_by_name).index(descriptor.name))
    return place


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _reader_of_any(writer: SchemaText) -> Read:
    from google.protobuf import descriptor_pool, message_factory

    from ottla.registry.protobuf_files import MAIN, descriptors, message_name

    pool = descriptor_pool.DescriptorPool()
    files = descriptors(writer.text, writer.references)
    for file in files:
        pool.Add(file)
    main = next(file for file in files if file.name == MAIN)
    classes: dict[Sequence[int], Any] = {}

    def read(framed: Framed) -> Any:
        place, data = framed.message()
        if place not in classes:
            descriptor = pool.FindMessageTypeByName(message_name(main, place))
            classes[place] = message_factory.GetMessageClass(descriptor)
        return classes[place].FromString(data)

    return read
