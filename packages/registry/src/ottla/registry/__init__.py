"""Schemas of records: a client for Confluent-compatible registries, serializers, and a small registry."""

from ottla.registry.avro import AvroDeserializer, AvroSerializer
from ottla.registry.client import Reference, RegisteredSchema, RegistryClient
from ottla.registry.contracts import RulesNotSupported
from ottla.registry.framing import NotFramed
from ottla.registry.json_schema import JsonSchemaDeserializer, JsonSchemaSerializer, NotValid
from ottla.registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from ottla.registry.registry import RegistryConfig, Schema, SchemaRegistry
from ottla.registry.rest import ServiceFailed, ServiceRefused
from ottla.registry.schemas import NoSchema
from ottla.registry.serializing import DeserializerOptions, SerializerOptions

__version__ = "0.1.0"

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "DeserializerOptions",
    "JsonSchemaDeserializer",
    "JsonSchemaSerializer",
    "NoSchema",
    "NotFramed",
    "NotValid",
    "ProtobufDeserializer",
    "ProtobufSerializer",
    "Reference",
    "RegisteredSchema",
    "RegistryClient",
    "RegistryConfig",
    "RulesNotSupported",
    "Schema",
    "SchemaRegistry",
    "SerializerOptions",
    "ServiceFailed",
    "ServiceRefused",
]
