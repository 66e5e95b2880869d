"""Sockets with the sizes of `send_buffer_bytes` and `receive_buffer_bytes`, or with a source address."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any, Final

from ottla.client.config import Address, ClientConfig

_LEADS_ELSEWHERE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH}
)
"""Errors of a source address. Any other is the other side's, and would meet each source."""


def has_buffer_sizes(config: ClientConfig) -> bool:
    """Return whether a size is set: most programs leave both to the system."""
    return config.send_buffer_bytes >= 0 or config.receive_buffer_bytes >= 0


async def connect_socket(
    address: Address, config: ClientConfig, source_host: str | None = None
) -> socket.socket:
    """Connect to the first address of a host that accepts. Raises the OSError of the last one.

    The sizes are set before: TCP agrees on the scale of its window as it connects. The connection comes from
    an address of `source_host`, where this machine has such a one and it leads there; from the system's
    choice otherwise.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{address.host} has no address")
    sources = await _addresses_of(source_host)
    for family, kind, protocol, _, target in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        for source in _sources_for(target[0], sources):
            opened = _socket_with_buffers(family, kind, protocol, config)
            try:
                if source is not None:
                    opened.bind((source, 0))
                await loop.sock_connect(opened, target)
            except OSError as error:
                opened.close()
                failure = error
                if error.errno not in _LEADS_ELSEWHERE:
                    break
            except BaseException:
                opened.close()
                raise
            else:
                return opened
    raise failure


async def _addresses_of(host: str | None) -> Sequence[str]:
    if host is None:
        return ()
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return [str(address[0]) for *_, address in entries]


def _sources_for(target: Any, sources: Sequence[str]) -> Iterator[str | None]:
    """Yield the sources that may lead to an address, then None, the system's choice.

    A loopback address leads nowhere else, and Debian resolves a machine's own name to one.
    """
    wanted = ip_address(target)
    for source in map(ip_address, sources):
        if source.version == wanted.version and source.is_loopback == wanted.is_loopback:
            yield str(source)
    yield None


def _socket_with_buffers(family: int, kind: int, protocol: int, config: ClientConfig) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    sizes = ((socket.SO_SNDBUF, config.send_buffer_bytes), (socket.SO_RCVBUF, config.receive_buffer_bytes))
    for option, size_bytes in sizes:
        if size_bytes >= 0:
            opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
    return opened
