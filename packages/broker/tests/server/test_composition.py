"""Settings that a part gets from the composition."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.kazoo_session import KazooSession


async def test_the_connections_of_a_broker_have_the_limits_of_its_settings(tmp_path: Path) -> None:
    async with EmbeddedCoordinator() as coordinator:
        settings = {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "zookeeper.connect": coordinator.connect_string,
            "zookeeper.max.in.flight.requests": "7",
            "replica.socket.receive.buffer.bytes": "30000",
        }
        async with Broker(broker_config_from(settings)) as broker:
            session = broker.services.zookeeper
            leader = broker.parts.followers._connect(2)

            assert isinstance(session, KazooSession)
            assert 0 <= session._in_flight._value <= 7  # its own watches read meanwhile
            assert leader._receive_buffer_bytes == 30_000  # type: ignore[attr-defined]
