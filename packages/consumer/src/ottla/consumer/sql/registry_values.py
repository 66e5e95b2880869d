"""Values in Avro by a schema registry, for the threads of DuckDB: ottla-registry reads them on a loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ottla.client.blocking import LoopThread
from ottla.client.errors import ClientError
from ottla.client.serialization import DeserializationContext, PreparationNeeded
from ottla.consumer.sql.columns import Decode
from ottla.consumer.sql.errors import QueryFailed

_CONTEXT: Final = DeserializationContext("", 0, 0, "value", ())
_BOUND_S: Final = 60.0
_ANSWER_S: Final = 5.0
"""Somebody waits at a terminal: a registry that is away is an error soon."""


@contextmanager
def registry_values(url: str) -> Iterator[Decode]:
    """Give a function that reads values by the schemas they name; schemas are asked for once.

    It raises ValueError for a value that names none or is damaged, and errors of the registry. Raises
    QueryFailed without ottla-registry.
    """
    try:
        import fastavro  # noqa: F401  imported with the first value, where nobody would catch its absence

        from ottla.registry import AvroDeserializer, SchemaRegistry
    except ImportError:
        raise QueryFailed("--registry needs pip install 'ottla-registry[avro]'") from None
    thread: LoopThread[Any] = LoopThread(
        lambda: SchemaRegistry(url, timeout_s=_ANSWER_S), name="the registry's client"
    )
    deserializer = AvroDeserializer(thread.start())

    def decode(value: bytes) -> object:
        try:
            try:
                return deserializer.deserialize(value, _CONTEXT)
            except PreparationNeeded as needed:
                prepare = needed.prepare

            async def prepared() -> object:
                return await prepare()

            thread.call(prepared, _BOUND_S)
            return deserializer.deserialize(value, _CONTEXT)
        except (ClientError, ValueError):
            raise
        except Exception as error:  # fastavro raises whatever damaged bytes lead to
            raise ValueError(f"the value is no Avro of its schema: {error}") from error

    try:
        yield decode
    finally:
        thread.close()
