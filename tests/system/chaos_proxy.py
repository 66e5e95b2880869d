"""A TCP proxy that injects faults on command, in its own process.

Commands are lines of JSON on standard input, each answered by a line when the fault is active. Random choices
use the seed in the command.

python tests/system/chaos_proxy.py LISTEN_PORT TARGET_PORT
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
TO_BROKER, TO_CLIENT = 0, 1
_LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass
class NetworkConditions:
    """The condition of each direction: delay, chunk size, and whether bytes pass at all."""

    delay_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    piece_bytes: int = 65536
    flowing: list[asyncio.Event] = field(default_factory=lambda: [asyncio.Event(), asyncio.Event()])
    deaf: bool = False


class Link:
    """A client's connection and its counterpart to the broker."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._broker: asyncio.StreamWriter | None = None
        self.swallows = [False, False]
        # The link is reset after this many further bytes; None: never.
        self.left: list[int | None] = [None, None]

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Forward bytes until one side ends."""
        if self._proxy.conditions.deaf:
            # Half-open for as long as the client keeps it: no answer and no close.
            while await reader.read(65536):
                pass
            return
        from_broker, self._broker = await asyncio.open_connection(HOST, self._proxy.target_port)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._carry(reader, self._broker, TO_BROKER))
            tasks.create_task(self._carry(from_broker, self._client, TO_CLIENT))

    def end(self, *, reset: bool) -> None:
        """Close both sides, normally or with a reset."""
        for writer in (self._client, self._broker):
            if writer is None:
                continue
            link = writer.get_extra_info("socket")
            if reset and link is not None and link.fileno() >= 0:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            writer.transport.abort() if reset else writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        conditions = self._proxy.conditions
        while data := await reader.read(conditions.piece_bytes):
            await conditions.flowing[way].wait()
            if conditions.delay_s[way]:
                await asyncio.sleep(conditions.delay_s[way])
            if self.swallows[way]:
                continue
            if not await self._pass_on(data, writer, way):
                return
        self.end(reset=False)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, way: int) -> bool:
        left = self.left[way]
        if left is None:
            writer.write(data)
            await writer.drain()
            return True
        writer.write(data[:left])
        self.left[way] = max(0, left - len(data))
        if len(data) < left:
            return True
        await asyncio.sleep(0.005)  # a reset drops bytes that the system has not sent yet
        self.end(reset=True)
        return False


class Proxy:
    """Listens, connects, and executes commands."""

    def __init__(self, port: int, target_port: int) -> None:
        self.target_port = target_port
        self.conditions = NetworkConditions()
        self._port = port
        self._links: dict[asyncio.Task[None], Link] = {}
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        """Execute commands until the input ends."""
        await self._listen()
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command = json.loads(line)
            rng = random.Random(command.pop("seed", 0))
            await getattr(self, command.pop("do"))(rng, **command)
            print("done", flush=True)
        for task, link in list(self._links.items()):
            link.end(reset=True)
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self._port, backlog=1000)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, writer)
        task = asyncio.get_running_loop().create_task(self._join(link, reader))
        self._links[task] = link
        task.add_done_callback(self._links.pop)

    async def _join(self, link: Link, reader: asyncio.StreamReader) -> None:
        try:
            await link.run(reader)
        except (OSError, ExceptionGroup):
            link.end(reset=True)
        finally:
            link.end(reset=False)

    # --- commands

    async def cut(self, rng: random.Random, share: float) -> None:
        """Close some links normally."""
        for link in self._some(rng, share):
            link.end(reset=False)

    async def reset(self, rng: random.Random, share: float) -> None:
        """Reset some links."""
        for link in self._some(rng, share):
            link.end(reset=True)

    async def swallow(self, rng: random.Random, share: float, way: int) -> None:
        """Drop all bytes in one direction of some links, for their lifetime."""
        for link in self._some(rng, share):
            link.swallows[way] = True

    async def truncate(self, rng: random.Random, share: float, way: int, within_bytes: int) -> None:
        """Reset some links after a number of further bytes, in the middle of a frame."""
        for link in self._some(rng, share):
            link.left[way] = rng.randrange(1, within_bytes)

    async def delay(self, rng: random.Random, way: int, seconds: float) -> None:
        """Delay all bytes in one direction."""
        self.conditions.delay_s[way] = seconds

    async def dribble(self, rng: random.Random, piece_bytes: int) -> None:
        """Forward only this many bytes at a time."""
        self.conditions.piece_bytes = piece_bytes

    async def stall(self, rng: random.Random, way: int) -> None:
        """Hold back all bytes in one direction."""
        self.conditions.flowing[way].clear()

    async def deafen(self, rng: random.Random) -> None:
        """Accept connections and never answer them."""
        self.conditions.deaf = True

    async def refuse(self, rng: random.Random, share: float) -> None:
        """Stop listening, and reset some links."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.reset(rng, share)

    async def heal(self, rng: random.Random) -> None:
        """Forward new links without faults. Links that drop bytes continue: clients have to notice."""
        self.conditions.delay_s = [0.0, 0.0]
        for flowing in self.conditions.flowing:
            flowing.set()
        self.conditions.piece_bytes = 65536
        self.conditions.deaf = False
        for link in self._links.values():
            link.left = [None, None]
        await self._listen()

    def _some(self, rng: random.Random, share: float) -> list[Link]:
        return [link for link in self._links.values() if rng.random() < share]


class ProxyProcess:
    """The proxy process, controlled by a test."""

    def __init__(self, port: int, target_port: int) -> None:
        self.port = port
        self._command = [sys.executable, str(Path(__file__).resolve()), str(port), str(target_port)]

    def tell(self, do: str, **how: Any) -> None:
        """Send a command, and return when it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **how}) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError(f"the proxy did not survive {do}")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.tell("heal")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._process.stdout.close()


if __name__ == "__main__":
    asyncio.run(Proxy(int(sys.argv[1]), int(sys.argv[2])).serve())
