"""A process with limits for work on what strangers wrote: it is asked, and ended when it takes too long.

It has no secrets in its environment, and a limit on its memory. The side here waits a bounded time for each
answer; a process that is late, or that ended itself, is replaced by another one with the next question.

A module that is such a process calls `serve` in its `__main__`: it reads requests from its standard input,
and writes an answer to each to its standard output. Both are msgpack behind their length in four bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Final

import msgpack

from ottla.client.errors import ClientError

END_S: Final = 5.0
MEMORY_BYTES: Final = 512 << 20
_RETIRES_AT_BYTES: Final = 200 << 20
_LENGTH: Final = struct.Struct(">I")
_KEPT_VARIABLES: Final = ("PATH", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "TMPDIR", "SYSTEMROOT")


class ProcessEnded(ClientError):
    """The process ended, or gave no answer in time; the message says which."""


class LimitedProcess:
    """One process, which starts with the first question. Questions must not overlap; `end` it at last."""

    def __init__(self, module: str, doing: str, ended: Callable[[], None] = lambda: None) -> None:
        """`doing` is the work in messages; `ended` is called when the process was ended."""
        self._module = module
        self._doing = doing
        self._ended = ended
        self._process: Process | None = None

    async def ask(self, request: Sequence[Any], answer_s: float, subject: str) -> Any:
        """Return the answer to a request. Raises ProcessEnded."""
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
                answer, retires = msgpack.unpackb(await process.stdout.readexactly(length))
        except TimeoutError:
            await self.end()
            raise ProcessEnded(f"{self._doing} {subject} takes more than {answer_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            await self.end()
            raise ProcessEnded(f"{self._doing} {subject} takes too much memory or depth") from None
        except BaseException:  # cancelled within an exchange: the next one must not read its answer
            await asyncio.shield(self.end())
            raise
        if retires:
            await self.end()
        return answer

    async def _running(self) -> Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self._module, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/",
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
            )  # fmt: skip
        return self._process

    async def end(self) -> None:
        """End the process; the next question starts another one."""
        process, self._process = self._process, None
        self._ended()
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                # Without reading on, a full pipe would keep `wait` from returning.
                await process.communicate()


# --- the process


def serve(answer: Callable[[Any], Any], may_retire: Callable[[Any], bool] = lambda request: True) -> None:
    """Answer requests until there are no more, or the process is large after one that it may retire by."""
    _limit()
    answer_all(answer, sys.stdin.buffer, sys.stdout.buffer, may_retire)


def answer_all(
    answer: Callable[[Any], Any],
    requests: BinaryIO,
    answers: BinaryIO,
    may_retire: Callable[[Any], bool] = lambda request: True,
) -> None:
    """Answer requests until there are no more, without limits on the process."""
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        request = msgpack.unpackb(requests.read(*_LENGTH.unpack(head)))
        found = answer(request)
        retires = may_retire(request) and _largest_bytes() > _RETIRES_AT_BYTES
        content = msgpack.packb((found, retires))
        answers.write(_LENGTH.pack(len(content)) + content)
        answers.flush()
        if retires:
            return


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
