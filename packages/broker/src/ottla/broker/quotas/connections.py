"""Limits on the number of connections: `max.connections` and `max.connections.per.ip`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

CONNECTION_RATE: Final = "connection_creation_rate"
"""The quota of an address in Kafka's znodes: connections per second."""


class ConnectionQuotas:
    """Counts connections against the limits, in all and from one address."""

    def __init__(self, in_all: int, per_address: int, overrides: Mapping[str, int]) -> None:
        self.in_all = in_all
        self.per_address = per_address
        self.overrides = overrides
        self._counts: dict[str, int] = {}
        self._total = 0

    @property
    def is_full(self) -> bool:
        """Whether `max.connections` is reached."""
        return self._total >= self.in_all

    def take(self, host: str) -> str | None:
        """Count a connection and return None, or return which limit refuses it."""
        refusal = self._refusal(host)
        if refusal is None:
            self.count(host)
        return refusal

    def count(self, host: str) -> None:
        """Count a connection that no limit concerns."""
        self._counts[host] = self._counts.get(host, 0) + 1
        self._total += 1

    def _refusal(self, host: str) -> str | None:
        most = self.overrides.get(host, self.per_address)
        if self._counts.get(host, 0) >= most:
            return f"max.connections.per.ip of {most} is reached"
        return f"max.connections of {self.in_all} is reached" if self.is_full else None

    def give_back(self, host: str) -> None:
        """Take a counted connection off, because it is closed."""
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def has_names(text: str) -> bool:
    """Whether `parse_overrides` would have to resolve host names, which may block for seconds."""
    return any(
        not is_address(item.rpartition(":")[0].strip(" []")) for item in text.split(",") if item.strip()
    )


def is_address(host: str) -> bool:
    """Whether a host is given by an address, and not by a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `host:limit,…`. Host names are resolved, because connections are counted by address. Blocks."""
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
