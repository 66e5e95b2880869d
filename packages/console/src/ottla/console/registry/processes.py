"""Decode values in a process with limits on its memory and its time.

Schemas and values are by anybody: a schema of a few bytes can ask for 2⁶² items that take no bytes, or call
itself without an end, and decoders in C notice neither. The process has no secrets in its environment, and a
limit on its memory; the side here waits a bounded time for each value, ends the process if that is over or if
it ended itself, and goes on with the next value in another one.

`python -m ottla.console.registry.processes` is that process, by `ottla.registry.limited_process`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from ottla.console.registry.decoding import Decode, Decoded, Undecodable, decode, decoder
from ottla.registry import limited_process
from ottla.registry.limited_process import LimitedProcess, ProcessEnded
from ottla.registry.schemas import SchemaText

VALUE_S: Final = 2.0
SCHEMA_S: Final = 10.0
CALL_S: Final = 10.0
"""How long the values of one call may take together; those behind are not decoded."""
MOST_VALUE_BYTES: Final = 8 << 20
MOST_SCHEMAS: Final = 100
"""Schemas that the process keeps; with one more it is replaced."""
MOST_ENDS: Final = 3
"""How often the process may end during one call; values behind are not decoded then."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value, its schema, and for Protobuf the place of its message; at most `most` letters are wanted."""

    schema: SchemaText
    data: bytes
    place: tuple[int, ...] = (0,)
    most: int = 2 << 20


class DecodingProcess:
    """Decodes values in a process of its own, which starts with the first of them. Use `async with`."""

    def __init__(
        self, *, value_s: float = VALUE_S, schema_s: float = SCHEMA_S, call_s: float = CALL_S
    ) -> None:
        self._value_s = value_s
        self._schema_s = schema_s
        self._call_s = call_s
        self._known = set[str]()
        self._process = LimitedProcess(__name__, "decoding", self._known.clear)
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.end()

    async def decode(self, values: Sequence[Encoded]) -> list[Decoded | Undecodable]:
        """Return the text of each value, or the reason why there is none."""
        found: list[Decoded | Undecodable] = []
        ends = 0
        now_s = asyncio.get_running_loop().time
        async with self._turn:
            until_s = now_s() + self._call_s
            for value in values:
                if ends >= MOST_ENDS or (found and now_s() >= until_s):
                    found.append(Undecodable("other values took too long or too much memory: open it alone"))
                    continue
                try:
                    found.append(await self._decoded(value))
                except Undecodable as error:
                    found.append(error)
                except ProcessEnded as error:
                    ends += 1
                    found.append(Undecodable(str(error)))
        return found

    async def _decoded(self, value: Encoded) -> Decoded:
        if len(value.data) > MOST_VALUE_BYTES:
            raise Undecodable(f"it has more than {MOST_VALUE_BYTES >> 20} MiB")
        schema = value.schema
        if schema.key not in self._known:
            if len(self._known) >= MOST_SCHEMAS:
                await self._process.end()
            asked = ("schema", schema.key, schema.kind, schema.text, schema.references)
            await self._process.ask(asked, self._schema_s, "its schema")
            self._known.add(schema.key)
        request = ("value", schema.key, value.data, value.place, value.most)
        is_good, text, note = await self._process.ask(request, self._value_s, "it")
        if not is_good:
            raise Undecodable(text)
        return Decoded(text, note)


# --- the process


def serve() -> None:
    """Answer requests until there are no more."""
    schemas: dict[str, Decode | Undecodable] = {}
    # Not behind a schema: the value that it was sent for is asked of this process, which alone knows it.
    limited_process.serve(
        lambda request: _answer(schemas, request), lambda request: bool(request[0] == "value")
    )


def _answer(schemas: dict[str, Decode | Undecodable], request: Sequence[Any]) -> tuple[bool, str, str]:
    try:
        if request[0] == "schema":
            _, key, kind, text, references = request
            try:
                schemas[key] = decoder(kind, text, references)
            except Undecodable as error:  # kept: each value of it gets this reason without another look
                schemas[key] = error
            return True, "", ""
        _, key, data, place, most = request
        by = schemas[key]
        if isinstance(by, Undecodable):
            raise by
        found = decode(by, data, place)
        return True, found.text[:most], _cut_note(found, most)
    except Undecodable as error:
        return False, str(error), ""


def _cut_note(found: Decoded, most: int) -> str:
    left = len(found.text) - most
    return found.note if left <= 0 else "; ".join(filter(None, (found.note, f"{left} letters are not shown")))


if __name__ == "__main__":
    serve()
