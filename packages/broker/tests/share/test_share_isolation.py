"""A share group with a setting of its own: it begins at the start of the log, and reads committed records."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ottla.broker.testing import BrokerThread

BOUND_S = 60.0


def test_a_group_that_reads_committed_records_gets_none_of_an_aborted_transaction(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, {"group.share.heartbeat.interval.ms": "500"}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(servers)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        _produce_transactions(servers)
        settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        group = ConfigResource(ResourceType.GROUP, "g", incremental_configs=entries)
        admin.incremental_alter_configs([group])[group].result(60)
        values: list[str] = []
        consumer = ShareConsumer({**servers, "group.id": "g"})
        consumer.subscribe(["t"])
        deadline = time.monotonic() + BOUND_S
        while "last" not in values and time.monotonic() < deadline:
            values += [message.value().decode() for message in consumer.poll(0.5)]
        consumer.close()

    assert values == [*(f"committed-{number}" for number in range(5)), "last"]


def _produce_transactions(servers: dict[str, str]) -> None:
    producer = Producer({**servers, "transactional.id": "id"})
    producer.init_transactions(60)
    for outcome in ("aborted", "committed"):
        producer.begin_transaction()
        for number in range(5):
            producer.produce("t", value=f"{outcome}-{number}")
        producer.flush(60)
        if outcome == "aborted":
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    plain = Producer(servers)
    plain.produce("t", value="last")
    plain.flush(60)
