"""Sending the parts of answers: what is joined, and what is left when the socket is full."""

from __future__ import annotations

import socket
from collections import deque
from itertools import chain

from ottla.broker.network._response_sending import send_parts
from ottla.broker.network.response_queue import Part

PART_BYTES = 16_384


def test_the_parts_of_a_long_answer_are_not_joined_into_one() -> None:
    # Joined one by one, the bytes of 400 parts are copied 200 times: 130 ms for the answer to a long Fetch.
    bodies = [bytes([number % 251]) * PART_BYTES for number in range(400)]
    parts: deque[Part] = deque(bodies)
    near, far = socket.socketpair()
    with near, far:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        sent = send_parts(parts, near.fileno(), 0)
        assert sent >= 0, "the socket took everything"
        assert max(len(part) for part in parts if isinstance(part, bytes)) <= 5 * PART_BYTES
        assert _received(near, far, parts, sent) == b"".join(bodies)


def test_short_parts_are_sent_together() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps what was sent together apart
    with near, far:
        parts: deque[Part] = deque([b"a" * 30, b"b" * 40, b"c" * 50])
        assert send_parts(parts, near.fileno(), 0) == -1
        assert len(far.recv(1_000)) == 120


def _received(near: socket.socket, far: socket.socket, parts: deque[Part], sent: int) -> bytes:
    """Return all bytes, sending what is left whenever the socket has room."""
    far.settimeout(30)
    received = [far.recv(1 << 20)]
    while sent >= 0:
        sent = send_parts(parts, near.fileno(), sent)
        received.append(far.recv(1 << 20))
    near.close()
    return b"".join(chain(received, iter(lambda: far.recv(1 << 20), b"")))
