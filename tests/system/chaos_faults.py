"""Faults of the network and the broker in a chaos round: planned from a seed, then executed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos_proxy import TO_BROKER, TO_CLIENT, ProxyProcess

LOAD_S = 2.5


@dataclass(frozen=True)
class Fault:
    """A fault at a time of the round."""

    at_s: float
    kind: str
    how: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        how = ", ".join(f"{name}={value}" for name, value in self.how.items())
        return f"{self.at_s:.2f} s {self.kind}({how})"


def plan(rng: random.Random) -> list[Fault]:
    """Choose the faults of a round; most lasting faults are followed by a quiet time."""
    faults: list[Fault] = []
    at_s = rng.uniform(0.1, 0.6)
    while at_s < LOAD_S:
        kind = rng.choice(sorted(_HOW))
        faults.append(Fault(at_s, kind, _HOW[kind](rng)))
        at_s += rng.uniform(0.05, 0.8)
        if rng.random() < 0.5:
            faults.append(Fault(at_s, "heal"))
            at_s += rng.uniform(0.0, 0.4)
    return faults


def _some(rng: random.Random) -> dict[str, Any]:
    return {"share": rng.choice((0.3, 0.6, 1.0)), "seed": rng.randrange(1 << 30)}


def _way(rng: random.Random) -> dict[str, Any]:
    return {"way": rng.choice((TO_BROKER, TO_CLIENT))}


_HOW: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "cut": _some,
    "reset": _some,
    "swallow": lambda rng: _some(rng) | _way(rng),
    "truncate": lambda rng: _some(rng) | _way(rng) | {"within_bytes": rng.choice((8, 200, 20_000))},
    "delay": lambda rng: _way(rng) | {"seconds": rng.choice((0.005, 0.05, 0.4))},
    "dribble": lambda rng: {"piece_bytes": rng.choice((7, 50, 400))},
    "stall": _way,
    "deafen": lambda rng: {},
    "refuse": _some,
    "kill": lambda rng: {"down_s": rng.choice((0.0, 0.1, 0.6))},
    "pause": lambda rng: {"seconds": rng.choice((0.1, 0.5, 2.0))},
    "join": lambda rng: {},
    "leave": lambda rng: {},
    "quit": lambda rng: {},
}


class Victim(Protocol):
    """A broker that can be paused, killed and started again."""

    port: int

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> object: ...


@dataclass
class PausedOnly:
    """A broker that starts slowly: it is paused instead of killed."""

    port: int
    pid: int

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    kill = pause
    start = resume


class Faults:
    """Executes the plan on the proxy and the broker."""

    def __init__(self, proxy: ProxyProcess, broker: Victim) -> None:
        self._proxy = proxy
        self._broker = broker

    async def do(self, fault: Fault) -> None:
        """Execute one fault; return when it is active, or over for the broker."""
        match fault.kind:
            case "kill":
                await self._kill(fault.how["down_s"])
            case "pause":
                await self._pause(fault.how["seconds"])
            case "deafen":
                self._proxy.tell("deafen")
                self._proxy.tell("reset", share=1.0)
            case kind:
                self._proxy.tell(kind, **fault.how)

    def heal(self) -> None:
        """End all lasting faults."""
        self._proxy.tell("heal")

    async def _kill(self, down_s: float) -> None:
        self._broker.kill()
        await asyncio.sleep(down_s)
        # Not cancellable: the broker has to run at the end.
        await asyncio.shield(asyncio.to_thread(self._broker.start))

    async def _pause(self, seconds: float) -> None:
        self._broker.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._broker.resume()
