"""Distinguish the versions of brokers on the wire, in a process of its own within their network.

python tests/system/broker_versions.py served HOST:PORT...       prints the APIs of each, as JSON
python tests/system/broker_versions.py transact SERVERS TOPIC    commits a transaction, aborts another
python tests/system/broker_versions.py committed SERVERS TOPIC   prints the committed values, as JSON
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Served = Mapping[str, Sequence[int]]
"""The first and last version of each API, whose key is text, as JSON has it."""
COMMITTED: Final = [f"committed {number}" for number in range(20)]
"""The records of the transaction that `transact` commits."""
_BOUND_S: Final = 120.0


def of_this_tree() -> Served:
    """The versions that a broker of this tree tells its clients."""
    from ottla.broker.api.routes import ROUTES

    return {str(int(one.api_key)): [one.min_version, one.max_version] for one in ROUTES}


def served(prefix: Sequence[str], addresses: Sequence[str]) -> dict[str, Served]:
    """Ask brokers for their APIs. `prefix` are words before the command. Raises RuntimeError."""
    found: dict[str, Served] = _run(prefix, "served", *addresses)
    return found


def transact(prefix: Sequence[str], servers: str, topic: str) -> list[str]:
    """Commit a transaction and abort another, and return what is read of them. Raises RuntimeError."""
    _run(prefix, "transact", servers, topic)
    return committed(prefix, servers, topic)


def committed(prefix: Sequence[str], servers: str, topic: str) -> list[str]:
    """Read a topic as far as it is stable, all of its partitions. Raises RuntimeError."""
    found: list[str] = _run(prefix, "committed", servers, topic)
    return found


def _run(prefix: Sequence[str], *words: str) -> Any:
    command = [*prefix, sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


async def _served(addresses: Sequence[str]) -> dict[str, Served]:
    from ottla.client.config import Address
    from ottla.client.connection import Connection

    found: dict[str, Served] = {}
    for each in addresses:
        host, _, port = each.rpartition(":")
        async with Connection(Address(host, int(port))) as connection:
            found[each] = {str(int(key)): list(versions) for key, versions in connection.versions.items()}
    return found


def _transact(servers: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "transactional.id": "clerk", "log_level": 0})
    producer.init_transactions(60)
    for values, end in ((COMMITTED, producer.commit_transaction), (["aborted"], producer.abort_transaction)):
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 3)
        producer.flush(30)  # or librdkafka would not send what it is to abort
        end(60)


def _committed(servers: str, topic: str) -> list[str]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {
        "bootstrap.servers": servers, "group.id": "judge", "isolation.level": "read_committed",
        "enable.partition.eof": True, "enable.auto.commit": False, "log_level": 0,
    }  # fmt: skip
    consumer = Consumer(settings)
    partitions = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
    values: list[str] = []
    until_s = time.monotonic() + _BOUND_S / 2
    while partitions:
        if time.monotonic() > until_s:
            raise SystemExit(f"partitions {partitions} of {topic} are not read to their end; read: {values}")
        for message in consumer.consume(1_000, timeout=1):
            error = message.error()
            if error is None:
                values.append(message.value().decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions.discard(message.partition())
            else:
                raise SystemExit(f"reading {topic} failed: {error}")
    consumer.close()
    return values


ACTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "served": lambda *addresses: asyncio.run(_served(addresses)),
    "transact": _transact,
    "committed": _committed,
}

if __name__ == "__main__":
    action, *words = sys.argv[1:]
    print(json.dumps(ACTIONS[action](*words)))
