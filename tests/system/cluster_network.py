"""The network of a test cluster: a namespace for each process where the machine allows, else loopback.

In namespaces every process has an address of its own on one bridge, and the way from one to another can be
cut, in one direction or both. A cut is silent, as a broken switch is: the sender's neighbour table gets a
hardware address that nobody has, so packets leave and never arrive, and no connect is refused.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NOBODY = "02:00:00:00:00:01"


@dataclass(frozen=True)
class Host:
    """Where a process runs: its address, and the words before its command."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


class Loopback:
    """All processes on 127.0.0.1; nothing can be cut."""

    can_cut = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def host(self, name: str) -> Host:
        return Host(name, "127.0.0.1")

    def cut(self, source: Host, target: Host) -> None:
        raise NotImplementedError("the way between two processes on one loopback interface cannot be cut")

    def heal(self) -> None:
        pass


class Namespaces:
    """A bridge with one network namespace for each host. Needs root; everything is removed at the end."""

    can_cut = True

    def __init__(self) -> None:
        mark = secrets.token_hex(2)
        self._bridge = f"ot{mark}"
        self._subnet = f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
        self._numbers = itertools.count(1)
        self._cuts: set[tuple[Host, Host]] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _ip("link", "add", self._bridge, "type", "bridge")
        self._stack.callback(_ip, "link", "del", self._bridge)
        _ip("addr", "add", f"{self._subnet}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def host(self, name: str) -> Host:
        """Return a new host on the bridge."""
        number = next(self._numbers)
        space, link = f"{self._bridge}-{name}", f"{self._bridge}v{number}"
        address = f"{self._subnet}.{number}"
        _ip("netns", "add", space)
        self._stack.callback(_ip, "netns", "del", space)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        return Host(name, address, ("ip", "netns", "exec", space))

    def cut(self, source: Host, target: Host) -> None:
        """Drop every packet from `source` to `target`; the other direction stays."""
        self._neighbour(source, "replace", target.address, "lladdr", _NOBODY, "nud", "permanent")
        self._cuts.add((source, target))

    def heal(self) -> None:
        """Undo every cut."""
        for source, target in self._cuts:
            self._neighbour(source, "del", target.address)
        self._cuts.clear()

    def _neighbour(self, host: Host, verb: str, *words: str) -> None:
        _ip("-n", f"{self._bridge}-{host.name}", "neigh", verb, *words, "dev", "eth0")


Network = Loopback | Namespaces


def network() -> Network:
    """Return namespaces if this machine allows them, else the loopback interface."""
    probe = f"ot-probe-{secrets.token_hex(2)}"
    if os.geteuid() or subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return Loopback()
    _ip("netns", "del", probe)
    return Namespaces()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def both_ways(network: Network, one: Host, others: Iterable[Host]) -> None:
    """Cut a host off from others, in both directions."""
    for other in others:
        network.cut(one, other)
        network.cut(other, one)
