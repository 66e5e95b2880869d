"""Three real ZooKeeper servers, of which tests take away as many as they like."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.zookeeper.apache_server import RealZooKeeper, free_port

MAJORITY = (1, 2)


class ZooKeeperEnsemble:
    """Servers 1, 2 and 3, with a quorum when entered; sessions last at least twice `tick_ms`."""

    def __init__(self, folder: Path, *, tick_ms: int = 500) -> None:
        addresses = {number: f"127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2, 3)}
        self.servers = {
            number: RealZooKeeper(
                folder / str(number), free_port(), tick_ms=tick_ms, members=addresses, my_id=number
            )
            for number in addresses
        }

    @property
    def connect_string(self) -> str:
        """The addresses of all servers."""
        return ",".join(each.connect_string for each in self.servers.values())

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(each.start() for each in self.servers.values()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(each.stop() for each in self.servers.values()))

    async def lose_quorum(self) -> None:
        """Kill two servers at once."""
        await asyncio.gather(*(self.servers[number].kill() for number in MAJORITY))

    async def regain_quorum(self) -> None:
        """Start them again."""
        await asyncio.gather(*(self.servers[number].start() for number in MAJORITY))
