"""Avro: serializers and deserializers of keys and values, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from ottla.registry.client import Reference, RegisteredSchema
from ottla.registry.framing import Framed
from ottla.registry.registry import Schema, SchemaRegistry
from ottla.registry.schemas import SchemaText
from ottla.registry.serializing import (
    DeserializerOptions,
    Read,
    SchemaDeserializer,
    SchemaSerializer,
    SerializerOptions,
    references_of,
)

_ONLY: Final = "only"
References = Sequence[tuple[str, str]]


class AvroSerializer(SchemaSerializer):
    """Serializes dictionaries, and what else Avro has, by an Avro schema."""

    kind = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | Sequence[Any],
        *,
        references: Sequence[Reference | tuple[str, str, int]] = (),
        to_dict: Callable[[Any], Any] | None = None,
        strict: bool = False,
        **options: Any,
    ) -> None:
        """`to_dict` makes of a value what Avro can write.

        With `strict` a field that is not in the schema is an error.
        `options` are those of SerializerOptions.
        """
        super().__init__(registry, SerializerOptions(**options))
        self._schema = Schema(schema_text(schema), "AVRO", references_of(references))
        self._to_dict = to_dict
        self._strict = strict
        self._imported: References = ()
        if not references:
            self._write = self._writing(self._schema.text, ())
        self._name = _record_name(self._schema.text)

    def _record_name(self, variant: Hashable) -> str | None:
        return self._name

    async def _own_schema(self, variant: Hashable) -> Schema:
        if self._schema.references and not self._imported:
            imported = await self.registry.imported(self._schema)
            self._write = self._writing(self._schema.text, imported)
            self._imported = imported
        return self._schema

    def _write_own(self, variant: Hashable) -> Callable[[Any], bytes]:
        return self._write

    async def _write_by(self, found: RegisteredSchema, variant: Hashable) -> Callable[[Any], bytes]:
        assert found.id is not None
        text = await self.registry.schema(found.id)
        return self._writing(text.text, text.references)

    def _writing(self, text: str, references: References) -> Callable[[Any], bytes]:
        write = writer(text, references, strict=self._strict)
        to_dict = self._to_dict
        return write if to_dict is None else lambda value: write(to_dict(value))


class AvroDeserializer(SchemaDeserializer):
    """Deserializes values in Avro, with `schema` as the reader's schema."""

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
        return_record_name: bool = False,
        **options: Any,
    ) -> None:
        """Without a reader's schema values have that of their writer; `from_dict` converts them.

        With `return_record_name` a record within a union is a tuple of its name and itself.
        `options` are those of DeserializerOptions.
        """
        text = None if schema is None else schema_text(schema)
        name = None if text is None else _record_name(text)
        super().__init__(registry, DeserializerOptions(**options), record_name=name)
        self._schema = None if text is None else SchemaText("of the reader", "AVRO", text)
        self._from_dict = from_dict
        self._names = return_record_name

    def _read_by(self, writer: SchemaText, latest: SchemaText | None) -> Read:
        read = reader(writer, latest or self._schema, return_record_name=self._names)
        from_dict = self._from_dict
        if from_dict is None:
            return lambda framed: read(framed.payload)

        def read_as(framed: Framed) -> Any:
            return from_dict(read(framed.payload))

        return read_as


def schema_text(schema: str | Mapping[str, Any] | Sequence[Any]) -> str:
    """Return the text of a schema as Confluent's serializers register it: the name of a type in an object."""
    text = schema.strip() if isinstance(schema, str) else json.dumps(schema)
    return text if text.startswith(("{", "[")) else f'{{"type":{text}}}'


def writer(text: str, references: References, *, strict: bool = False) -> Callable[[Any], bytes]:
    """Return the function that writes values of a schema, without the id of the schema."""
    from fastavro import schemaless_writer

    if _is_bytes(text):
        return _plain
    schema, is_wrapped = _parsed(text, references)

    def write(value: Any) -> bytes:
        out = io.BytesIO()
        schemaless_writer(out, schema, {_ONLY: value} if is_wrapped else value, strict=strict)
        return out.getvalue()

    return write


def _plain(value: Any) -> bytes:
    """Return bytes as they are: Confluent's serializers write a schema of bytes alone without a length."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError(f"bytes are wanted, not {type(value).__name__}")
    return value


def reader(
    writer: SchemaText, read_as: SchemaText | None, *, return_record_name: bool = False
) -> Callable[[bytes], Any]:
    """Return the function that reads values of a writer's schema as those of a reader's."""
    from fastavro import schemaless_reader

    if _is_bytes(writer.text):
        return bytes
    # A record of one field has the bytes of that field; both schemas must be one, or none.
    wraps = not (_is_record(writer.text) and (read_as is None or _is_record(read_as.text)))
    written, _ = _parsed(writer.text, writer.references, wraps=wraps)
    wanted = None if read_as is None else _parsed(read_as.text, read_as.references, wraps=wraps)[0]

    def read(data: bytes) -> Any:
        found: Any = schemaless_reader(io.BytesIO(data), written, wanted, return_record_name)
        return found[_ONLY] if wraps else found

    return read


def _parsed(text: str, references: References, *, wraps: bool | None = None) -> tuple[Any, bool]:
    """Return a schema as fastavro takes it, and whether it is within a record of one field.

    Only a record keeps the names that it imports in its parsed form.
    """
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    for _, imported in references:
        parse_schema(json.loads(imported), named_schemas=named)
    wraps = not _is_record(text) if wraps is None else wraps
    schema = json.loads(text)
    if wraps:
        schema = {"type": "record", "name": "OttlaValue", "fields": [{"name": _ONLY, "type": schema}]}
    return parse_schema(schema, named_schemas=named), wraps


def _is_record(text: str) -> bool:
    schema = json.loads(text)
    return isinstance(schema, dict) and schema.get("type") == "record"


def _is_bytes(text: str) -> bool:
    schema = json.loads(text)
    return schema == "bytes" or (isinstance(schema, dict) and schema.get("type") == "bytes")


def _record_name(text: str) -> str | None:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        return None
    name = schema.get("name")
    if name is None:
        return schema["type"] if isinstance(schema.get("type"), str) else None
    return f"{schema['namespace']}.{name}" if schema.get("namespace") and "." not in name else str(name)
