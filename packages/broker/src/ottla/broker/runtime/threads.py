"""The threads of a broker, all of them beside the one event loop, which all other modules run on.

| pool | threads | work |
|---|---|---|
| `io` | `num.io.threads` | flushes, deletions, truncations, reads that miss the page cache, checkpoints |
| `records` | `RECORD_THREADS` | compressed or old batches of clients, opened and checked |
| `long-records` | one | batches of clients that take long to compress with their topic's codec and level |
| `logins` | `LOGIN_THREADS` | logins by Kerberos, and the passwords of delegation tokens |
| `tokens` | `TOKEN_THREADS` | tokens of OAUTHBEARER for this broker, and the keys that sign others |
| `names` | `NAME_THREADS` | host names that are looked up, each until the resolver answers |
| `log-cleaner` | `log.cleaner.threads`, at most `MOST_CLEANER_THREADS` | compaction |
| `log-recovery` | `num.recovery.threads.per.data.dir` of each directory | logs after a crash, at start |
| `log-closing` | the same number | snapshots and indexes of closed logs, at the end |

`io` is the loop's default executor. `log/hosting/registry.py` makes the last two, for the time of one call.
The metrics endpoint has threads of its own (`ottla.client.page_server`), and so has the embedded
coordinator (one, for its disk). A pool starts a thread when there is work for it. All have the priority of
the event loop: with a lower one a thread would keep the GIL while other programs have the processor, and
the loop would wait for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Final, ParamSpec, TypeVar

RECORD_THREADS: Final = 2
LOGIN_THREADS: Final = 2
MOST_LOGINS: Final = 1_000
"""Logins on the threads and in line: a few seconds of work, less than a client waits."""
TOKEN_THREADS: Final = 2
NAME_THREADS: Final = 4
MOST_CLEANER_THREADS: Final = 64

P = ParamSpec("P")
T = TypeVar("T")


class IoThreads:
    """The default executor of a running loop, of `num.io.threads` also after the key has changed."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(count, "io")
        self._count = count
        self._loop.set_default_executor(self._executor)

    def resize(self, count: int) -> None:
        """Give later work another number of threads; work that runs or waits ends on the threads it has."""
        if count == self._count:
            return
        before, self._executor, self._count = self._executor, ThreadPoolExecutor(count, "io"), count
        self._loop.set_default_executor(self._executor)
        before.shutdown(wait=False)


class RecordThreads:
    """The threads on which compressed or old batches of clients are opened: two, however many ask.

    A batch of a few kilobytes may become 32 MiB when it is opened, and as much again when it is written in
    another format. Two at a time bound that memory to 128 MiB, and leave the threads of cold reads to other
    requests. Compression at a high level may take a minute for 32 MiB, and 90 MiB for its own tables: such
    batches wait in line for a third thread, and no others wait for them.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(RECORD_THREADS, "records")
        self._long = ThreadPoolExecutor(1, "long-records")

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what `work` returns on one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*arguments, **named))

    async def run_long(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what `work` returns on the thread for what takes long."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._long, lambda: work(*arguments, **named))

    def close(self) -> None:
        """Take no more work; work that waits is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)


class TooManyLogins(Exception):
    """So many logins wait for a thread that another one would wait too long."""


class LoginThreads:
    """The threads of logins that may block: the Kerberos library reads keytabs and locks its replay cache.

    They are few, and no other work is on them: clients without a login reach them, and a flood of logins must
    not keep a disk's work waiting. Servers of tokens are asked on threads of their own: a server that hangs
    stops no login by another mechanism.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(LOGIN_THREADS, "logins")
        self._tokens = ThreadPoolExecutor(TOKEN_THREADS, "tokens")
        self._count = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what the `work` of a login returns on one of the threads. Raises `TooManyLogins`."""
        if self._count >= MOST_LOGINS:
            raise TooManyLogins(f"{MOST_LOGINS} other logins wait for a thread")
        self._count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._count -= 1

    async def fetch(self, work: Callable[[], T]) -> T:
        """Return what `work` gets from a server of tokens or keys. Each listener waits for one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._tokens, work)

    def close(self) -> None:
        """Take no more work; work that waits is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._tokens.shutdown(wait=False, cancel_futures=True)


_NAMES: Final = ThreadPoolExecutor(NAME_THREADS, "names")
"""Of the process: a resolver that hangs holds these threads, and not those of the disk."""


async def look_up(host: str) -> list[str]:
    """Return the addresses of a host, as the system's resolver has them. Raises OSError and ValueError.

    It may wait long, for the resolver and for a thread: the caller limits it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _NAMES, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    )
    return [str(address[0]) for *_, address in found]


class CleanerThreads:
    """The threads of the log cleaner."""

    def __init__(self) -> None:
        self.stopping = Event()
        """Set when the work should end soon."""
        self._executor = ThreadPoolExecutor(MOST_CLEANER_THREADS, "log-cleaner")

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns on a thread; a wait that is cancelled ends with the work."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stopping.set()  # the thread looks at it with each read
            while not running.done():  # cancelled again: the files that it works on must not be released yet
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise

    def close(self) -> None:
        """End the threads with their present work."""
        self.stopping.set()
        self._executor.shutdown(wait=False)
