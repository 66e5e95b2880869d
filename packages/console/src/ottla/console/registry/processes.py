"""Decode values in a process with limits on its memory and its time.

Schemas and values are by anybody: a schema of a few bytes can ask for 2⁶² items that take no bytes, or call
itself without an end, and decoders in C notice neither. The process has no secrets in its environment, and a
limit on its memory; the side here waits a bounded time for each value, ends the process if that is over or if
it ended itself, and goes on with the next value in another one.

`python -m ottla.console.registry.processes` is that process: it reads requests from its standard input, and
writes an answer to each to its standard output. Both are msgpack behind their length in four bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgpack

from ottla.console.registry.decoding import Decode, Decoded, Undecodable, decode, decoder
from ottla.registry.schemas import SchemaText

VALUE_S: Final = 2.0
SCHEMA_S: Final = 10.0
END_S: Final = 5.0
MEMORY_BYTES: Final = 512 << 20
MOST_VALUE_BYTES: Final = 8 << 20
MOST_SCHEMAS: Final = 100
"""Schemas that the process keeps; with one more it is replaced."""
MOST_ENDS: Final = 3
"""How often the process may end during one call; values behind are not decoded then."""
_RETIRES_AT_BYTES: Final = 200 << 20
_LENGTH: Final = struct.Struct(">I")
_KEPT_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "TMPDIR", "SYSTEMROOT")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value, its schema, and for Protobuf the place of its message; at most `most` letters are wanted."""

    schema: SchemaText
    data: bytes
    place: tuple[int, ...] = (0,)
    most: int = 2 << 20


class _Ended(Exception):
    """The process ended, or gave no answer in time; the message says which."""


class DecodingProcess:
    """Decodes values in a process of its own, which starts with the first of them. Use `async with`."""

    def __init__(self, *, value_s: float = VALUE_S, schema_s: float = SCHEMA_S) -> None:
        self._value_s = value_s
        self._schema_s = schema_s
        self._process: Process | None = None
        self._known = set[str]()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def decode(self, values: Sequence[Encoded]) -> list[Decoded | Undecodable]:
        """Return the text of each value, or the reason why there is none."""
        found: list[Decoded | Undecodable] = []
        ends = 0
        async with self._turn:
            for value in values:
                if ends >= MOST_ENDS:
                    found.append(Undecodable("other values took too long or too much memory: open it alone"))
                    continue
                try:
                    found.append(await self._decoded(value))
                except Undecodable as error:
                    found.append(error)
                except _Ended as error:
                    ends += 1
                    found.append(Undecodable(str(error)))
                except BaseException:  # cancelled within an exchange: the next one must not read its answer
                    await asyncio.shield(self._end())
                    raise
        return found

    async def _decoded(self, value: Encoded) -> Decoded:
        if len(value.data) > MOST_VALUE_BYTES:
            raise Undecodable(f"it has more than {MOST_VALUE_BYTES >> 20} MiB")
        schema = value.schema
        if schema.key not in self._known:
            if len(self._known) >= MOST_SCHEMAS:
                await self._end()
            asked = ("schema", schema.key, schema.kind, schema.text, schema.references)
            await self._ask(asked, self._schema_s, "its schema")
            self._known.add(schema.key)
        text, note = await self._ask(("value", schema.key, value.data, value.place, value.most),
                                     self._value_s, "it")  # fmt: skip
        return Decoded(text, note)

    async def _ask(self, request: Sequence[Any], answer_s: float, subject: str) -> tuple[str, str]:
        try:
            async with asyncio.timeout(END_S + answer_s):
                process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            content = msgpack.packb(request)
            async with asyncio.timeout(answer_s):
                process.stdin.write(_LENGTH.pack(len(content)) + content)
                await process.stdin.drain()
                (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
                is_good, text, note, retires = msgpack.unpackb(await process.stdout.readexactly(length))
        except TimeoutError:
            await self._end()
            raise _Ended(f"decoding {subject} takes more than {answer_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            await self._end()
            raise _Ended(f"decoding {subject} takes too much memory or depth") from None
        if retires:
            await self._end()
        if not is_good:
            raise Undecodable(text)
        return text, note

    async def _running(self) -> Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", __name__, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
            )  # fmt: skip
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._known.clear()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                # Without reading on, a full pipe would keep `wait` from returning.
                await process.communicate()


# --- the process


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    schemas: dict[str, Decode | Undecodable] = {}
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        request = msgpack.unpackb(requests.read(*_LENGTH.unpack(head)))
        is_good, text, note = _answer(schemas, request)
        # Not behind a schema: the value that it was sent for is asked of this process, which alone knows it.
        retires = request[0] == "value" and _largest_bytes() > _RETIRES_AT_BYTES
        content = msgpack.packb((is_good, text, note, retires))
        answers.write(_LENGTH.pack(len(content)) + content)
        answers.flush()
        if retires:
            return


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


def _largest_bytes() -> int:
    # On Linux the size by getrusage begins with that of the process that started this one.
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:")), 0)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    factor = 1 if sys.platform == "darwin" else 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor


def _limit() -> None:
    """Limit memory, files and dumps of this process, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, 64 << 20), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 128),
    ):  # fmt: skip
        with contextlib.suppress(OSError, ValueError):  # macOS refuses a limit on memory
            resource.setrlimit(limit, (most, most))


if __name__ == "__main__":
    _limit()
    serve(sys.stdin.buffer, sys.stdout.buffer)
