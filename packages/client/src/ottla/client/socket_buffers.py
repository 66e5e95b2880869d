"""Sockets with the buffer sizes of `send_buffer_bytes` and `receive_buffer_bytes`."""

from __future__ import annotations

import asyncio
import socket

from ottla.client.config import Address, ClientConfig


def has_buffer_sizes(config: ClientConfig) -> bool:
    """Return whether a size is set: most programs leave both to the system."""
    return config.send_buffer_bytes >= 0 or config.receive_buffer_bytes >= 0


async def connect_with_buffers(address: Address, config: ClientConfig) -> socket.socket:
    """Connect to the first address of a host that accepts. Raises the OSError of the last one.

    The sizes are set before: TCP agrees on the scale of its window as it connects.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{address.host} has no address")
    for family, kind, protocol, _, target in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        opened = _socket_with_buffers(family, kind, protocol, config)
        try:
            await loop.sock_connect(opened, target)
        except OSError as error:
            opened.close()
            failure = error
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise failure


def _socket_with_buffers(family: int, kind: int, protocol: int, config: ClientConfig) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    sizes = ((socket.SO_SNDBUF, config.send_buffer_bytes), (socket.SO_RCVBUF, config.receive_buffer_bytes))
    for option, size_bytes in sizes:
        if size_bytes >= 0:
            opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
    return opened
