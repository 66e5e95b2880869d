"""Members of one group that a test starts and stops by name, each in a thread of one program.

The program takes SERVERS GROUP TOPIC. On standard input it reads `start NAME PROTOCOL` and `stop NAME`; at
its end all members leave. It prints a line for each event, which begins with the time of the machine's clock
in nanoseconds and the member's name:

    owns PARTITION…             the member has other partitions than before
    read PARTITION OFFSET       a record was given to the member
    committed PARTITION OFFSET  the coordinator has acknowledged a commit
    left                        the member has left the group
    failed ERROR                the member ended by itself

Members commit without being asked to by a timer: after every `BATCH` records, before they give up partitions,
and before they leave.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable

BATCH = 25
POLL_S = 0.05
HEARTBEAT_MS = 300
_printing = threading.Lock()


class Member:
    """The positions of a member, and what it prints."""

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol
        self.positions: dict[int, int] = {}
        """The next offset of each partition that has records after the last commit."""
        self.until = threading.Event()
        self._owned: list[int] = []
        self._taken = 0

    @property
    def is_due(self) -> bool:
        """Whether the positions shall be committed now."""
        return self._taken >= BATCH

    def took(self, partition: int, offset: int) -> None:
        """A record was given to the member."""
        self.positions[partition] = offset + 1
        self._taken += 1
        self._say("read", partition, offset)

    def committed(self, offsets: dict[int, int]) -> None:
        """A commit of these offsets was acknowledged."""
        for partition, offset in offsets.items():
            if self.positions.get(partition) == offset:
                del self.positions[partition]
            self._say("committed", partition, offset)
        self._taken = 0

    def owns(self, partitions: Iterable[int]) -> None:
        """The member has these partitions."""
        owned = sorted(partitions)
        if owned != self._owned:
            self._owned = owned
            self._say("owns", *owned)

    def lost(self, partitions: Iterable[int]) -> None:
        """Others may have these partitions now."""
        lost = set(partitions)
        for partition in lost:
            self.positions.pop(partition, None)
        self.owns(set(self._owned) - lost)

    def run(self, work: Callable[[str, str, str, Member], None]) -> None:
        """Do the member's work, and say how it ended."""
        servers, group, topic = sys.argv[1:]
        try:
            work(servers, group, topic, self)
        except BaseException as error:
            self._say("failed", repr(error))
            raise
        self._say("left")

    def _say(self, *words: object) -> None:
        with _printing:
            print(time.monotonic_ns(), self.name, *words, flush=True)


def in_a_loop(work: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Do a member's work in an event loop of its thread."""

    async def run() -> None:
        await work(*arguments)

    asyncio.run(run())


def host(work: Callable[[str, str, str, Member], None]) -> None:
    """Start and stop members, as standard input asks, until it ends."""
    members: dict[str, Member] = {}
    threads = []
    for line in sys.stdin:
        command, name, *rest = line.split()
        if command == "start":
            members[name] = Member(name, *rest)
            threads.append(threading.Thread(target=members[name].run, args=(work,)))
            threads[-1].start()
        else:
            members[name].until.set()
    for member in members.values():
        member.until.set()
    for thread in threads:
        thread.join()
