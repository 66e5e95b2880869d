"""Schemas as the registry reads them: checked, in the text that all equal ones have, and comparable.

Avro and JSON Schema are read by the pure modules of `ottla.registry.compatibility`, on threads. Files of
Protobuf are read by Google's compiler, which is written in C++: that runs in a process with limits.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ottla.registry.compatibility import avro, json_schema, protobuf
from ottla.registry.compatibility.bounds import BadSchema
from ottla.registry.compatibility.levels import Compare
from ottla.registry.limited_process import LimitedProcess, ProcessEnded

COMPILE_S: Final = 10.0
MOST_LETTERS: Final = 1 << 20
"""The longest schema that is taken."""
MOST_KEPT: Final = 2_000
MOST_KEPT_LETTERS: Final = 8 << 20
References = Sequence[tuple[str, str]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A schema that was read: the text that is kept, the text for `normalize`, and a model to compare."""

    kind: str
    text: str
    normalized: str
    model: Any
    descriptor: str = ""
    """For Protobuf: the descriptor of the file in base 64."""


COMPARE: Final[dict[str, Compare]] = {
    "AVRO": avro.incompatibilities,
    "JSON": json_schema.incompatibilities,
    "PROTOBUF": protobuf.incompatibilities,
}  # fmt: skip


class SchemaParser:
    """Reads schemas, and keeps what it read of the latest ones. Use `async with`."""

    def __init__(self, *, compile_s: float = COMPILE_S) -> None:
        self._compile_s = compile_s
        self._process = LimitedProcess("ottla.registry.server.protobuf_process", "compiling")
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[bytes, Parsed] = OrderedDict()
        self._letters = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.end()

    async def parse(self, kind: str, text: str, references: References) -> Parsed:
        """Read a schema with the names and texts of all that it imports. Raises BadSchema."""
        if len(text) + sum(len(imported) for _, imported in references) > MOST_LETTERS:
            raise BadSchema(f"the schema has, with its imports, more than {MOST_LETTERS} letters")
        key = _digest(kind, text, references)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        parsed = await self._parsed(kind, text, references)
        self._keep(key, parsed)
        return parsed

    async def _parsed(self, kind: str, text: str, references: References) -> Parsed:
        if kind == "PROTOBUF":
            return await self._compiled(text, references)
        read = {"AVRO": _avro, "JSON": _json}.get(kind)
        if read is None:
            raise BadSchema(f"schemas of type {kind[:50]!r} are not known here: AVRO, PROTOBUF or JSON")
        return await in_thread(lambda: read(text, references))

    async def _compiled(self, text: str, references: References) -> Parsed:
        async with self._turn:
            try:
                answer = await self._process.ask((text, list(references)), self._compile_s, "the schema")
            except ProcessEnded as error:
                raise BadSchema(str(error)) from None
        if "error" in answer:
            raise BadSchema(answer["error"])
        model = await in_thread(lambda: _protobuf_model(answer["descriptor"]))
        descriptor = base64.b64encode(answer["descriptor"]).decode()
        return Parsed("PROTOBUF", answer["text"], answer["text"], model, descriptor)

    def _keep(self, key: bytes, parsed: Parsed) -> None:
        if (other := self._kept.pop(key, None)) is not None:  # of a request at the same time
            self._letters -= len(other.text)
        self._kept[key] = parsed
        self._letters += len(parsed.text)
        while len(self._kept) > MOST_KEPT or self._letters > MOST_KEPT_LETTERS:
            _, dropped = self._kept.popitem(last=False)
            self._letters -= len(dropped.text)


async def in_thread(read: Callable[[], T]) -> T:
    """Return what `read` does on a thread; errors of depth become BadSchema."""
    try:
        return await asyncio.to_thread(read)
    except RecursionError:
        raise BadSchema("the schema is too deep") from None


def _avro(text: str, references: References) -> Parsed:
    found = avro.parse_avro(text, references)
    return Parsed("AVRO", found.text, found.normalized, found)


def _json(text: str, references: References) -> Parsed:
    found = json_schema.parse_json_schema(text, references)
    return Parsed("JSON", found.text, found.normalized, found)


def _protobuf_model(content: bytes) -> protobuf.ProtobufSchema:
    from google.protobuf import descriptor_pb2

    return protobuf.schema_of(descriptor_pb2.FileDescriptorProto.FromString(content))


def _digest(kind: str, text: str, references: References) -> bytes:
    digest = hashlib.sha256()
    for part in (kind, text, *(part for reference in references for part in reference)):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()
