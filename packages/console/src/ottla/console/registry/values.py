"""A registry as pages use it: its client, its schemas, and values of records as text by these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.errors import ClientError
from ottla.console.registry.decoding import Undecodable
from ottla.console.registry.processes import DecodingProcess, Encoded
from ottla.registry.client import RegistryClient
from ottla.registry.framing import Framed, NotFramed
from ottla.registry.rest import RestClient
from ottla.registry.schemas import Schemas, SchemaText

SCHEMAS_S: Final = 6.0
"""How long a page of records waits for schemas that are not known yet."""
FORMS: Final = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json schema"}


@dataclass(frozen=True, slots=True)
class RegistryValue:
    """A value by its schema. Without a text, the note says why there is none."""

    schema: int | str
    form: str = ""
    text: str | None = None
    note: str = ""


class Registry:
    """One schema registry. Values are decoded in a process that all registries share."""

    def __init__(self, rest: RestClient, decoding: DecodingProcess, now_s: Callable[[], float]) -> None:
        self.urls = rest.urls
        self.client = RegistryClient(rest)
        self._rest = rest
        self._decoding = decoding
        self._schemas = Schemas(self.client, now_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    async def schema(self, schema: int | str) -> SchemaText:
        """Return a schema by its id or GUID, with all that it imports. Raises NoSchema."""
        return await self._schemas.get(schema)

    async def decode(self, values: Sequence[Framed | None], most: int) -> list[RegistryValue | None]:
        """Return each value by its schema, cut behind `most` letters; None for one that names no schema."""
        schemas = await self._all({value.schema for value in values if value is not None})
        found: list[RegistryValue | None] = [None] * len(values)
        encoded: list[tuple[int, Encoded]] = []
        for index, value in enumerate(values):
            if value is None:
                continue
            schema = schemas[value.schema]
            if isinstance(schema, str):
                found[index] = RegistryValue(value.schema, note=schema)
                continue
            try:
                place, data = value.message() if schema.kind == "PROTOBUF" else ((0,), value.payload)
                encoded.append((index, Encoded(schema, data, place, most)))
            except NotFramed as error:
                found[index] = RegistryValue(value.schema, note=f"by schema {value.schema}: {error}")
        results = await self._decoding.decode([value for _, value in encoded])
        for (index, value_), result in zip(encoded, results, strict=True):
            form = FORMS.get(value_.schema.kind, value_.schema.kind.lower())
            key = value_.schema.key
            if isinstance(result, Undecodable):
                found[index] = RegistryValue(key, form, note=f"by schema {key}: {result}")
            else:
                found[index] = RegistryValue(key, form, result.text, result.note)
        return found

    async def _all(self, wanted: Iterable[int | str]) -> dict[int | str, SchemaText | str]:
        """Return the schemas, and in place of those that cannot be had the reason."""
        found: dict[int | str, SchemaText | str] = {
            schema: f"schema {schema} was not there within {SCHEMAS_S:g} s" for schema in wanted
        }

        async def fetch(schema: int | str) -> None:
            try:
                found[schema] = await self._schemas.get(schema)
            except ClientError as error:
                found[schema] = f"schema {schema}: {error}"

        try:
            async with asyncio.timeout(SCHEMAS_S), asyncio.TaskGroup() as tasks:
                for schema in found:
                    tasks.create_task(fetch(schema))
        except TimeoutError:
            pass  # the others say so
        return found
