"""The page of connected clients, beside the page of metrics."""

from __future__ import annotations

import json
import socket
import struct
import urllib.request
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ottla.broker.testing import BrokerThread
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlteredEntryData,
    EntityData,
    OpData,
)


def limit(broker: BrokerThread, client_id: str, bytes_per_s: float) -> None:
    entry = AlteredEntryData(
        entity=[EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[OpData(key="producer_byte_rate", value=bytes_per_s)],
    )
    header = RequestHeader(ApiKey.ALTER_CLIENT_QUOTAS, 1, 1, "test")
    frame = encode_request(header, AlterClientQuotasRequest(entries=[entry]))
    with (
        socket.create_connection((broker.host, broker.port), timeout=20) as wire,
        wire.makefile("rb") as received,
    ):
        wire.sendall(struct.pack(">i", len(frame)) + frame)
        received.read(struct.unpack(">i", received.read(4))[0])


def read(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        found: bytes = answer.read()
    return found


def clients_on(port: int) -> dict[str, list[dict[str, Any]]]:
    """Return the connections of the page by client id: those whose library is known."""
    page = json.loads(read(port, "/clients"))
    assert (page["broker"], page["left_out"]) == (1001, 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for client in page["clients"]:
        if client["software"]:
            found.setdefault(client["client_id"], []).append(client)
    return found


def test_the_page_names_the_library_and_the_quota_of_each_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with BrokerThread(tmp_path, {"metrics.port": str(port)}) as broker:
        servers = f"{broker.host}:{broker.port}"
        limit(broker, "limited", 5_000_000)
        producer = Producer({"bootstrap.servers": servers, "client.id": "limited"})
        producer.produce("t", b"x" * 1000)
        assert producer.flush(30) == 0
        admin = AdminClient({"bootstrap.servers": servers, "client.id": "free"})
        while not {"limited", "free"} <= (shown := clients_on(port)).keys():
            admin.list_topics(timeout=30)
        assert read(port, "/metrics").startswith(b"# HELP")

    for client in (shown["limited"][0], shown["free"][0]):
        assert client["software"] in ("librdkafka", "confluent-kafka-python")
        assert client["version"]
        assert (client["user"], client["listener"]) == ("User:ANONYMOUS", "PLAINTEXT")
        assert "127.0.0.1" in client["address"]
    usages = [client["produce"] for client in shown["limited"] if client["produce"]]
    assert {usage["quota"] for usage in usages} == {5_000_000.0}
    assert max(usage["rate"] for usage in usages) > 0
    assert shown["free"][0]["produce"] is None
