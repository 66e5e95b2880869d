"""Schemas of values with those that they import: asked once and kept, refusals for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.errors import ClientError
from ottla.registry.client import MOST_LETTERS, Reference, RegistryClient
from ottla.registry.rest import ServiceRefused

MOST_KEPT: Final = 500
MOST_KEPT_LETTERS: Final = 16 << 20
MOST_REFERENCES: Final = 200
REFUSED_S: Final = 30.0
"""How long a registry is believed that it has no such schema."""
SILENT_S: Final = 5.0
"""How long a registry that gave no answer is not asked for the same schema again."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema with those that it imports, each behind those that it imports itself; `key` names it here."""

    key: str
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    rule_set: Any = None


class NoSchema(ClientError):
    """The schema of a value cannot be had; the message says why."""


class SchemaUnavailable(NoSchema):
    """The registry gives no schema now; it may later."""

    retriable = True


class Schemas:
    """The schemas of one registry by id or GUID."""

    def __init__(
        self,
        client: RegistryClient,
        now_s: Callable[[], float],
        *,
        silent_s: float = SILENT_S,
        serialized: bool = False,
    ) -> None:
        """With `serialized`, files of Protobuf are asked for as descriptors; not every registry has them."""
        self._client = client
        self._silent_s = silent_s
        self._serialized = serialized
        self._now_s = now_s
        self._kept: OrderedDict[int | str, SchemaText] = OrderedDict()
        self._letters = 0
        self._failed: OrderedDict[int | str, tuple[float, str]] = OrderedDict()
        self._asking: dict[int | str, asyncio.Lock] = {}

    async def get(self, schema: int | str) -> SchemaText:
        """Return a schema with all that it imports. Raises NoSchema."""
        lock = self._asking.setdefault(schema, asyncio.Lock())
        try:
            async with lock:
                return self._known(schema) or await self._fetched(schema)
        finally:
            if not lock.locked():
                self._asking.pop(schema, None)

    def _known(self, schema: int | str) -> SchemaText | None:
        if (found := self._kept.get(schema)) is not None:
            self._kept.move_to_end(schema)
            return found
        until_s, why = self._failed.get(schema, (0.0, ""))
        if self._now_s() < until_s:
            raise NoSchema(why)
        return None

    async def _fetched(self, schema: int | str) -> SchemaText:
        try:
            found = await self._client.schema(schema, serialized=self._serialized)
            imported = await self.imported(found.references or (), len(found.schema))
        except ClientError as error:
            is_refused = isinstance(error, ServiceRefused | NoSchema)
            is_refused = is_refused and not error.retriable
            self._fail(schema, str(error), REFUSED_S if is_refused else self._silent_s)
            raise (SchemaUnavailable if error.retriable else NoSchema)(str(error)) from None
        text = SchemaText(str(schema), found.schema_type, found.schema, imported, found.rule_set)
        self._keep(schema, text)
        return text

    def _fail(self, schema: int | str, why: str, for_s: float) -> None:
        self._failed[schema] = (self._now_s() + for_s, why)
        self._failed.move_to_end(schema)
        if len(self._failed) > MOST_KEPT:
            self._failed.popitem(last=False)

    def _keep(self, schema: int | str, text: SchemaText) -> None:
        if (other := self._kept.pop(schema, None)) is not None:
            self._letters -= _letters(other)
        self._kept[schema] = text
        self._letters += _letters(text)
        while len(self._kept) > MOST_KEPT or self._letters > MOST_KEPT_LETTERS:
            _, dropped = self._kept.popitem(last=False)
            self._letters -= _letters(dropped)

    async def imported(
        self, references: Sequence[Reference], letters: int = 0
    ) -> tuple[tuple[str, str], ...]:
        """Return the names and texts of imported schemas, each once and behind those that it imports.

        Raises NoSchema.
        """
        found: dict[str, str] = {}
        begun, room = set[str](), MOST_LETTERS - letters
        # An entry is a reference to follow, or the text of one that was followed with all that it imports.
        stack: list[Reference | tuple[str, str]] = [*reversed(references)]
        while stack:
            entry = stack.pop()
            if isinstance(entry, tuple):
                found[entry[0]] = entry[1]
            elif entry.name not in begun:
                begun.add(entry.name)
                if len(begun) > MOST_REFERENCES:
                    raise NoSchema(f"the schema imports more than {MOST_REFERENCES} others")
                imported = await self._client.version(
                    entry.subject, entry.version, deleted=True, serialized=self._serialized
                )
                if (room := room - len(imported.schema)) < 0:
                    raise NoSchema(f"the schema has, with its imports, more than {MOST_LETTERS} letters")
                stack.append((entry.name, imported.schema))
                stack += reversed(imported.references or [])
        return tuple(found.items())


def _letters(text: SchemaText) -> int:
    return len(text.text) + sum(len(imported) for _, imported in text.references)
