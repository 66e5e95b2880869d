"""Read a topic's log with an independent client in its own process.

python tests/system/chaos_log.py SERVERS TOPIC PARTITIONS [FILE]     prints the log as JSON

FILE has a login, as `Access.options` writes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.client_access import OPEN, Access, read_access

# Offset to (writer, number), for each partition.
Log = Mapping[int, Mapping[int, tuple[str, int]]]


def read_back(
    servers: str, topic: str, partitions: int, prefix: Sequence[str] = (), access: Access = OPEN
) -> Log:
    """Read a whole topic with confluent-kafka; `prefix` are words before the command, as `Host` has them."""
    command = [*prefix, sys.executable, str(Path(__file__).resolve()), servers, topic, str(partitions)]
    with tempfile.TemporaryDirectory(prefix="ottla-access-") as folder:
        command += access.options(Path(folder) / "access")[1:]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    if done.returncode:
        raise RuntimeError(f"the log could not be read back: {done.stderr[-2000:]}")
    parsed: dict[str, list[list[object]]] = json.loads(done.stdout.splitlines()[-1])
    return {
        int(partition): {
            int(str(offset)): (str(writer), int(str(number))) for offset, writer, number in found
        }
        for partition, found in parsed.items()
    }


def _print_log(servers: str, topic: str, partitions: int, access: Access) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "fetch.wait.max.ms": 50,
        }
        | access.librdkafka()
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
    log: dict[int, list[tuple[int, str, int]]] = {index: [] for index in range(partitions)}
    ended: set[int] = set()
    while len(ended) < partitions:
        for message in consumer.consume(10_000, timeout=1):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif error is not None:
                raise SystemExit(f"reading back failed: {error}")
            else:
                writer, number, _ = message.value().split(b" ", 2)
                log[message.partition()].append((message.offset(), writer.decode(), int(number)))
    consumer.close()
    print(json.dumps(log))


if __name__ == "__main__":
    _print_log(sys.argv[1], sys.argv[2], int(sys.argv[3]), read_access("".join(sys.argv[4:])))
