"""Keys and values by their schemas in the process of a search, which has no login of the registry.

It asks the console for each schema once: by a frame, whose answer comes by its input. A value that cannot be
read by its schema stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal

from ottla.console.records.reading import ShownRecord
from ottla.console.registry.decoding import Decode, Undecodable, decode, decoder
from ottla.registry.framing import Framed, NotFramed, framed

MOST_SCHEMAS: Final = 500
"""Schemas that one search asks for; values of others are not read."""
MOST_VALUE_BYTES: Final = 8 << 20

SentSchema = tuple[str, str, tuple[tuple[str, str], ...]]
"""The kind of a schema, its text, and names and texts of those that it imports."""
AskSchema = Callable[[int | str], SentSchema | None]
Headers = Sequence[tuple[str, bytes | None]]


class BySchema:
    """Reads keys and values by the schemas that they name, on any thread."""

    def __init__(self, ask: AskSchema) -> None:
        self._ask = ask
        self._known: dict[int | str, Decode | Literal["JSON"] | None] = {}
        self._kinds: dict[int | str, str] = {}
        self._turn = threading.Lock()  # compiling one takes the error output of the process

    def text(self, data: bytes | None, of: Literal["key", "value"], headers: Headers) -> bytes | None:
        """Return a key or a value as JSON; None for one that names no schema, or does not fit it."""
        named = framed(data, of, headers)
        if named is None or named.schema == 0 or len(named.payload) > MOST_VALUE_BYTES:
            return None
        with self._turn:
            try:
                return self._decoded(named)
            except (Undecodable, NotFramed):
                return None

    def readable(self, record: ShownRecord) -> ShownRecord:
        """Return a record with its key and its value as JSON, where they can be read."""
        key = self.text(record.key, "key", record.headers)
        value = self.text(record.value, "value", record.headers)
        return replace(
            record,
            key=record.key if key is None else key,
            value=record.value if value is None else value,
        )

    def _decoded(self, named: Framed) -> bytes | None:
        if named.schema not in self._known:
            if len(self._known) >= MOST_SCHEMAS:
                return None
            self._learn(named.schema)
        by = self._known[named.schema]
        if by is None or by == "JSON":
            return None if by is None else named.payload
        is_protobuf = self._kinds[named.schema] == "PROTOBUF"
        place, payload = named.message() if is_protobuf else ((0,), named.payload)
        return decode(by, payload, place).text.encode("utf-8", "surrogatepass")

    def _learn(self, schema: int | str) -> None:
        self._known[schema] = None
        if (found := self._ask(schema)) is None:
            return
        kind, text, references = found
        self._kinds[schema] = kind
        self._known[schema] = "JSON" if kind == "JSON" else decoder(kind, text, references)
