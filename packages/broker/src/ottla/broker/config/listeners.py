"""Parse the addresses of `listeners`, `advertised.listeners` and `inter.broker.networks`."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from ottla.client.config_definition import ConfigError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_]+)://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>-?\d+)\Z"
)


class Listener(NamedTuple):
    """A named address; `host` is empty for all interfaces."""

    name: str
    host: str
    port: int
    security_protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def advertised_host(listener: Listener) -> str:
    """Return the host under which other machines find a listener: its own, or this machine's name."""
    return listener.host or socket.gethostname()


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Parse a comma-separated list of networks and addresses; raise ValueError naming the invalid one."""
    return tuple(ip_network(item.strip()) for item in text.split(",") if item.strip())


def parse_listeners(key_name: str, text: str, protocol_map: str) -> tuple[Listener, ...]:
    """Parse a comma-separated list of listeners; raise `ConfigError` naming the invalid one."""
    protocols = _parse_protocol_map(protocol_map)
    listeners = tuple(_parse(key_name, item.strip(), protocols) for item in text.split(",") if item.strip())
    if not listeners:
        raise ConfigError(key_name, "must name at least one listener, like PLAINTEXT://127.0.0.1:9092")
    is_own = key_name == "listeners"
    by_name, by_port = _grouped(listeners)
    if any(not _is_pair(alike) or (is_own and not _share_port(alike)) for alike in by_name):
        raise ConfigError(key_name, f"must have different names, not {text!r}")
    if is_own and any(not _is_pair(alike) for alike in by_port):
        raise ConfigError(
            key_name, f"must have different ports, or one IPv4 and one IPv6 address on a port, not {text!r}"
        )
    return listeners


def _grouped(listeners: Iterable[Listener]) -> tuple[list[list[Listener]], list[list[Listener]]]:
    """Return the listeners that have a name in common, and those that have a port in common."""
    by_name, by_port = defaultdict[str, list[Listener]](list), defaultdict[int, list[Listener]](list)
    for listener in listeners:
        by_name[listener.name].append(listener)
        if listener.port:
            by_port[listener.port].append(listener)
    return (
        [alike for alike in by_name.values() if len(alike) > 1],
        [alike for alike in by_port.values() if len(alike) > 1],
    )


def _share_port(listeners: Iterable[Listener]) -> bool:
    return len({listener.port for listener in listeners}) == 1


def _is_pair(listeners: Iterable[Listener]) -> bool:
    """Return whether these are one IPv4 and one IPv6 address, which may share a port and a name (KIP-797)."""
    return sorted(_ip_version(listener.host) for listener in listeners) == [4, 6]


def _ip_version(host: str) -> int:
    try:
        return ip_address(host.partition("%")[0]).version
    except ValueError:
        return 0  # a name, or every interface


def _parse(key_name: str, item: str, protocols: dict[str, str]) -> Listener:
    match = _LISTENER.match(item)
    if match is None:
        raise ConfigError(key_name, f"must look like PLAINTEXT://host:port, not {item!r}")
    if not 0 <= int(match["port"]) <= 65_535:
        raise ConfigError(key_name, f"must have ports from 0 to 65535, not {match['port']}")
    name = match["name"].upper()
    if name not in protocols:
        raise ConfigError(
            "listener.security.protocol.map", f"must say which protocol the listener {name} speaks"
        )
    host = match["v6"] if match["v6"] is not None else match["host"]
    return Listener(name, host, int(match["port"]), protocols[name])


def _parse_protocol_map(text: str) -> dict[str, str]:
    protocols: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.partition(":")
        if not colon or protocol.strip().upper() not in SECURITY_PROTOCOLS:
            raise ConfigError(
                "listener.security.protocol.map", f"must be a list of NAME:PROTOCOL, not {item!r}"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols
