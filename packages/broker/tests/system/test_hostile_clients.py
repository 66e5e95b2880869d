"""A broker process and clients that send what no client should."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey

TIMEOUT_S = 30.0
MEBI = 1 << 20
API_VERSIONS = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)


@contextmanager
def client(broker: BrokerProcess) -> Iterator[socket.socket]:
    with socket.create_connection((broker.host, broker.port), TIMEOUT_S) as plug:
        plug.settimeout(TIMEOUT_S)
        yield plug


def answers(broker: BrokerProcess) -> bool:
    with client(broker) as plug:
        plug.sendall(API_VERSIONS)
        return len(plug.recv(4)) == 4


def test_half_sent_requests_hold_a_bounded_memory(tmp_path: Path) -> None:
    settings = {"queued.max.request.bytes": str(64 * MEBI), "socket.request.max.bytes": str(64 * MEBI)}
    with BrokerProcess(tmp_path / "data", settings) as broker, contextlib.ExitStack() as open_clients:
        process = psutil.Process(broker.pid)
        before, most = process.memory_info().rss, 0
        for _ in range(20):
            plug = open_clients.enter_context(client(broker))
            with contextlib.suppress(ConnectionError):
                plug.sendall(struct.pack(">ihhih", 60 * MEBI, ApiKey.PRODUCE, 3, 1, -1) + bytes(24 * MEBI))
            assert answers(broker)
            most = max(most, process.memory_info().rss)

    assert most - before < 200 * MEBI


def test_a_large_request_that_is_not_a_produce_closes_its_connection(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, client(broker) as plug:
        plug.sendall(struct.pack(">ihhih", 9 * MEBI, ApiKey.METADATA, 0, 1, -1))

        assert plug.recv(1) == b""
