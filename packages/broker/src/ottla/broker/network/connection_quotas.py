"""Limits on the number of connections: `max.connections` and `max.connections.per.ip`."""

from __future__ import annotations

import socket
from collections.abc import Mapping


class ConnectionQuotas:
    """Counts connections against the limits, in all and from one address."""

    def __init__(self, in_all: int, per_address: int, overrides: Mapping[str, int]) -> None:
        self.in_all = in_all
        self.per_address = per_address
        self.overrides = overrides
        self._counts: dict[str, int] = {}
        self._total = 0

    def take(self, host: str) -> str | None:
        """Count a connection and return None, or return which limit refuses it."""
        count = self._counts.get(host, 0)
        most = self.overrides.get(host, self.per_address)
        if count >= most:
            return f"max.connections.per.ip of {most} is reached"
        if self._total >= self.in_all:
            return f"max.connections of {self.in_all} is reached"
        self._counts[host] = count + 1
        self._total += 1
        return None

    def give_back(self, host: str) -> None:
        """Take a counted connection off, because it is closed."""
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `host:limit,…`. Host names are resolved, because connections are counted by address."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, limit = item.rpartition(":")
        for address in _addresses(host.strip("[]")):
            limits[address] = int(limit)
    return limits


def _addresses(host: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return [host]
