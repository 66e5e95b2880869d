"""JSON Schema: serializers and deserializers of keys and values, checked by jsonschema, written by orjson."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

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

References = Sequence[tuple[str, str]]
_MOST_WORDS = 300


class NotValid(ValueError):
    """A value does not fit its JSON Schema; the message says where and why."""


class JsonSchemaSerializer(SchemaSerializer):
    """Serializes values as JSON, once they fit their JSON Schema."""

    kind = "JSON"

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any],
        *,
        references: Sequence[Reference | tuple[str, str, int]] = (),
        to_dict: Callable[[Any], Any] | None = None,
        validate: bool = True,
        **options: Any,
    ) -> None:
        """`to_dict` makes JSON's types of a value. Without `validate` values are not checked.

        `options` are those of SerializerOptions.
        """
        super().__init__(registry, SerializerOptions(**options))
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self._schema = Schema(text, "JSON", references_of(references))
        self._to_dict = to_dict
        self._validate = validate
        self._imported: References | None = None if references else ()
        self._title = _title(text)

    def _record_name(self, variant: Hashable) -> str | None:
        return self._title

    async def _own_schema(self, variant: Hashable) -> Schema:
        if self._imported is None:
            self._imported = await self.registry.imported(self._schema)
        return self._schema

    def _write_own(self, variant: Hashable) -> Callable[[Any], bytes]:
        return self._writing(self._schema.text, self._imported or ())

    async def _write_by(self, found: RegisteredSchema, variant: Hashable) -> Callable[[Any], bytes]:
        assert found.id is not None
        text = await self.registry.schema(found.id)
        return self._writing(text.text, text.references)

    def _writing(self, text: str, references: References) -> Callable[[Any], bytes]:
        import orjson

        to_dict = self._to_dict
        check = validator(text, references) if self._validate else None

        def write(value: Any) -> bytes:
            value = value if to_dict is None else to_dict(value)
            if check is not None:
                check(value)
            written: bytes = orjson.dumps(value)
            return written

        return write


class JsonSchemaDeserializer(SchemaDeserializer):
    """Deserializes JSON, and checks it by the reader's schema, or else by that which it names."""

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | None = None,
        *,
        from_dict: Callable[[Any], Any] | None = None,
        validate: bool = True,
        **options: Any,
    ) -> None:
        """`from_dict` makes something else of JSON's types. Without `validate` values are not checked.

        `options` are those of DeserializerOptions.
        """
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        name = None if text is None else _title(text)
        super().__init__(registry, DeserializerOptions(**options), record_name=name)
        self._schema = None if text is None else SchemaText("of the reader", "JSON", text)
        self._from_dict = from_dict
        self._validate = validate

    def _read_by(self, writer: SchemaText, latest: SchemaText | None) -> Read:
        import orjson

        read_as = latest or self._schema or writer
        check = validator(read_as.text, read_as.references) if self._validate else None
        from_dict = self._from_dict

        def read(framed: Framed) -> Any:
            value = orjson.loads(framed.payload)
            if check is not None:
                check(value)
            return value if from_dict is None else from_dict(value)

        return read


def validator(text: str, references: References) -> Callable[[Any], None]:
    """Return the function that checks values by a schema, and raises NotValid."""
    found = validator_of(text, references)

    def check(value: Any) -> None:
        for error in found.iter_errors(value):
            path = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path
            )
            raise NotValid(f"${path}: {' '.join(str(error.message).split())}"[:_MOST_WORDS])

    return check


def validator_of(text: str, references: References) -> Any:
    """Return the validator of a schema. Nothing is ever loaded from an address: a registry has no way to.

    Raises ValueError, and errors of jsonschema.
    """
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(text)
    resources = [
        (name, Resource.from_contents(json.loads(imported), default_specification=DRAFT7))
        for name, imported in references
    ]
    found = validator_for(schema, default=Draft7Validator)
    return found(schema, registry=Registry().with_resources(resources))


def _title(text: str) -> str | None:
    schema = json.loads(text)
    title = schema.get("title") if isinstance(schema, dict) else None
    return title if isinstance(title, str) else None
