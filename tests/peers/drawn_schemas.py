"""Schemas and values drawn at random, from a seed: Avro, Protobuf and JSON Schema."""

from __future__ import annotations

import json
import random
import string
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_LETTERS = string.ascii_letters + "äß€🛫 \t\"\\'0"
_AVRO_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


class Drawn:
    """Draws schemas and values; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _text(self) -> str:
        return "".join(self.random.choices(_LETTERS, k=self.random.randrange(12)))

    def _whole(self, bits: int) -> int:
        return self.random.randrange(-(1 << bits), 1 << bits) >> self.random.randrange(bits)

    def _float(self) -> float:
        return self.random.choice(
            [0.0, -0.0, 1e16, 1e-7, self.random.uniform(-1e9, 1e9), self.random.random()]
        )

    # --- Avro

    def avro(self) -> tuple[Any, Any]:
        """Return a schema, most often a record, and a value of it."""
        schema, value = self._avro_type(2) if self.random.random() < 0.15 else (None, None)
        if value is None or isinstance(value, Decimal):  # no serializer is given None, nor takes such bytes
            return self._avro_record(3)
        return schema, value

    def _avro_record(self, depth: int) -> tuple[Any, Any]:
        schema: dict[str, Any] = {"type": "record", "name": self._name("Record"), "fields": []}
        if self.random.random() < 0.5:
            schema["namespace"] = self.random.choice(["shop", "shop.orders", "x"])
        value = {}
        for _ in range(self.random.randrange(1, 6)):
            name = self._name("field")
            field_schema, value[name] = self._avro_type(depth - 1)
            schema["fields"].append({"name": name, "type": field_schema})
        return schema, value

    def _avro_type(self, depth: int) -> tuple[Any, Any]:
        kinds = ["primitive", "logical", "enum", "fixed"] + ["array", "map", "union", "record"] * (depth > 0)
        match self.random.choice(kinds):
            case "primitive":
                kind = self.random.choice(_AVRO_PRIMITIVES)
                return kind, self._avro_primitive(kind)
            case "logical":
                return self._avro_logical()
            case "enum":
                symbols = [self._name("S") for _ in range(self.random.randrange(1, 4))]
                enum = {"type": "enum", "name": self._name("Enum"), "symbols": symbols}
                return enum, self.random.choice(symbols)
            case "fixed":
                size = self.random.randrange(1, 9)
                return {"type": "fixed", "name": self._name("Fixed"), "size": size}, self.random.randbytes(
                    size
                )
            case "array":
                items, value = self._avro_type(depth - 1)
                return {"type": "array", "items": items}, [value] * self.random.randrange(4)
            case "map":
                values, value = self._avro_type(depth - 1)
                return {"type": "map", "values": values}, {self._text(): value for _ in range(2)}
            case "union":
                return self._avro_union(depth)
            case _:
                return self._avro_record(depth)

    def _avro_primitive(self, kind: str) -> Any:
        return {
            "null": None, "boolean": self.random.random() < 0.5, "int": self._whole(31),
            "long": self._whole(63), "float": float(self._whole(20)), "double": self._float(),
            "bytes": self.random.randbytes(self.random.randrange(9)), "string": self._text(),
        }[kind]  # fmt: skip

    def _avro_logical(self) -> tuple[Any, Any]:
        at = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=self._whole(40))
        day = date(2020, 1, 1) + timedelta(days=self._whole(12))
        unscaled = Decimal(self._whole(30)).scaleb(-3)
        return self.random.choice([
            ({"type": "long", "logicalType": "timestamp-millis"}, at),
            ({"type": "long", "logicalType": "timestamp-micros"}, at),
            ({"type": "int", "logicalType": "date"}, day),
            ({"type": "string", "logicalType": "uuid"}, UUID(bytes=self.random.randbytes(16))),
            ({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}, unscaled),
        ])  # fmt: skip

    def _avro_union(self, depth: int) -> tuple[Any, Any]:
        branches: list[Any] = ["null"]
        values = [None]
        for kind in self.random.sample(["string", "long", "boolean", "bytes"], self.random.randrange(1, 3)):
            branches.append(kind)
            values.append(self._avro_primitive(kind))
        if depth > 1:
            record, value = self._avro_record(1)
            branches.append(record)
            values.append(value)
        return branches, self.random.choice(values)

    # --- JSON Schema

    def json(self) -> tuple[dict[str, Any], Any]:
        """Return a schema of an object, and a value of it."""
        schema, value = self._json_object(3)
        draft = self.random.choice(["http://json-schema.org/draft-07/schema#", None])
        return schema | {"title": self._name("Object")} | ({"$schema": draft} if draft else {}), value

    def _json_object(self, depth: int) -> tuple[dict[str, Any], Any]:
        properties, value, required = {}, {}, []
        for _ in range(self.random.randrange(1, 5)):
            name = self._name("property")
            properties[name], content = self._json_type(depth - 1)
            if self.random.random() < 0.8:
                value[name] = content
                required += [name] if self.random.random() < 0.5 else []
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        schema |= {"required": required} if required else {}
        schema |= {"additionalProperties": False} if self.random.random() < 0.5 else {}
        return schema, value

    def _json_type(self, depth: int) -> tuple[dict[str, Any], Any]:
        kind = self.random.choice(_JSON_TYPES[: 5 if depth <= 0 else 7])
        match kind:
            case "array":
                items, value = self._json_type(depth - 1)
                return {"type": "array", "items": items, "maxItems": 5}, [value] * self.random.randrange(4)
            case "object":
                return self._json_object(depth)
            case "string":
                text = self._text()
                return self.random.choice([{"type": kind, "maxLength": 20}, {"enum": [text, "other"]}]), text
            case "integer":
                return {"type": kind, "minimum": -(1 << 62)}, self._whole(62)
            case "number":
                return {"type": [kind, "null"]}, self._float()
        return {"type": kind}, self.random.random() < 0.5 if kind == "boolean" else None

    # --- Protobuf

    def protobuf(self) -> Any:
        """Return a message of a class of its own."""
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{self._name('file')}_{self.random.getrandbits(40):x}.proto", syntax="proto3"
        )
        file.package = self.random.choice(["", "shop", "shop.orders"])
        for _ in range(self.random.randrange(1, 4)):
            self._message_type(file.message_type.add(), file, 2)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        described = pool.FindFileByName(file.name)
        chosen = self.random.choice(list(described.message_types_by_name.values()))
        while chosen.nested_types and self.random.random() < 0.5:
            nested = [inner for inner in chosen.nested_types if not inner.GetOptions().map_entry]
            if not nested:
                break
            chosen = self.random.choice(nested)
        message = message_factory.GetMessageClass(chosen)()
        self._fill(message, 3)
        return message

    def _message_type(self, message: Any, file: Any, depth: int) -> None:
        message.name = self._name("Message")
        for number in range(1, self.random.randrange(2, 7)):
            field = message.field.add(
                name=self._name("field"), number=number * self.random.choice([1, 1, 20])
            )
            field.number = 40 * number + self.random.randrange(40)
            field.label = self.random.choice([1, 1, 3])
            field.type = self.random.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 18])
        if depth > 0 and self.random.random() < 0.6:
            self._message_type(message.nested_type.add(), file, depth - 1)
            name = (
                f"{message.name}.{message.nested_type[0].name}" if depth == 2 else message.nested_type[0].name
            )
            message.field.add(name=self._name("inner"), number=7, label=1, type=11, type_name=name)

    def _fill(self, message: Any, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.25:
                continue
            if field.message_type is not None:
                if depth > 0:
                    self._fill(getattr(message, field.name), depth - 1)
                    getattr(message, field.name).SetInParent()
            elif _is_repeated(field):
                getattr(message, field.name).extend(self._scalar(field.type) for _ in range(3))
            else:
                setattr(message, field.name, self._scalar(field.type))

    def _scalar(self, kind: int) -> Any:
        if kind in (1, 2):
            return float(self._whole(20)) / 4
        if kind == 8:
            return self.random.random() < 0.5
        if kind == 9:
            return self._text()
        if kind == 12:
            return self.random.randbytes(self.random.randrange(8))
        bits = 31 if kind in (5, 7, 13, 15, 17) else 63
        return abs(self._whole(bits)) if kind in (4, 6, 7, 13) else self._whole(bits)


def schema_text(schema: Any) -> str:
    """Return a schema as text."""
    return schema if isinstance(schema, str) and schema not in _AVRO_PRIMITIVES else json.dumps(schema)


def _is_repeated(field: Any) -> bool:
    """Return whether a field is repeated; the runtime says so in another way before its version 6."""
    found: Any = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)
