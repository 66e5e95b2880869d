"""SIGKILL under load, round after round: every acknowledged record exists, in order, once.

A confluent-kafka producer with idempotence writes numbered records continuously while the broker is killed
and started again. Each partition gets 0, 1, 2, … from this only writer, so at the end the record at offset n
must be n: a gap is a loss, a shift is a duplicate.

python tests/system/kill_rounds.py --rounds 200
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerProcess

TOPIC = "killed"
PARTITIONS = 4
PADDING = b"x" * 100


@dataclass
class Load:
    """A producer on its own thread that numbers its records in each partition."""

    servers: str
    acknowledged: list[int] = field(default_factory=lambda: [-1] * PARTITIONS)
    wrong: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    acked_total: int = 0

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 5_000,
                "error_cb": self._failed,
                "log_level": 0,
            }
        )
        number = 0
        while not self.stopping.is_set():
            for partition in range(PARTITIONS):
                self._send(producer, partition, number)
            number += 1
            producer.poll(0)
        if producer.flush(60):
            self.wrong.append("records were still unacknowledged a minute after the last round")

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self.wrong.append(f"fatal: {error}")

    def _send(self, producer: Any, partition: int, number: int) -> None:
        while True:
            try:
                producer.produce(
                    TOPIC, b"%d %s" % (number, PADDING), partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                producer.poll(0.01)
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.wrong.append(f"not delivered: {error}")
            return
        number = int(message.value().split(b" ", 1)[0])
        if message.offset() != number:
            self.wrong.append(f"record {number} was acknowledged at offset {message.offset()}")
        self.acked_total += 1
        self.acknowledged[message.partition()] = max(self.acknowledged[message.partition()], number)


def verify(servers: str, acknowledged: list[int]) -> list[str]:
    """Read everything and compare; return the errors."""
    wrong: list[str] = []
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "verify", "check.crcs": True})
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    expected = [0] * PARTITIONS
    deadline = time.monotonic() + 300
    while any(expected[p] <= acknowledged[p] for p in range(PARTITIONS)) and time.monotonic() < deadline:
        for message in consumer.consume(10_000, timeout=1):
            if message.error() is not None:
                wrong.append(str(message.error()))
                continue
            partition, number = message.partition(), int(message.value().split(b" ", 1)[0])
            if number != expected[partition] or message.offset() != number:
                wrong.append(f"partition {partition}: {number} stands at {message.offset()}")
            expected[partition] = number + 1
    consumer.close()
    wrong += [
        f"partition {p}: acknowledged up to {acknowledged[p]}, found up to {expected[p] - 1}"
        for p in range(PARTITIONS)
        if expected[p] <= acknowledged[p]
    ]
    return wrong


def kill_rounds(folder: Path, rounds: int, seed: int) -> list[str]:
    """Run the rounds, print the figures, return the errors."""
    rng = random.Random(seed)
    recovery_ms: list[float] = []
    settings = {"log.segment.bytes": "4000000"}
    with BrokerProcess(folder, settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
        load = Load(broker.bootstrap_servers)
        thread = threading.Thread(target=load.run)
        thread.start()
        for done in range(1, rounds + 1):
            wait_for_progress(load, rng.uniform(0.05, 0.5))
            broker.kill()
            begun = time.perf_counter()
            broker.start()
            recovery_ms.append((time.perf_counter() - begun) * 1000)
            if done % 20 == 0 or done == rounds:
                print(
                    f"  {done:>4} rounds  {load.acked_total:>10,} acknowledged  {len(load.wrong)} wrong",
                    flush=True,
                )
        load.stopping.set()
        thread.join(120)
        wrong = load.wrong + verify(broker.bootstrap_servers, load.acknowledged)
    print(
        f"  recovery of {rounds} kills: median {statistics.median(recovery_ms):.0f} ms, "
        f"worst {max(recovery_ms):.0f} ms; {load.acked_total:,} records acknowledged"
    )
    return wrong


def wait_for_progress(load: Load, seconds: float) -> None:
    """Keep the load running for a while, at least until a further record is acknowledged."""
    before, deadline = load.acked_total, time.monotonic() + 30
    time.sleep(seconds)
    while load.acked_total == before:
        if time.monotonic() > deadline:
            load.wrong.append("nothing was acknowledged for 30 s after a restart")
            return
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-kill-") as folder:
        wrong = kill_rounds(Path(folder), options.rounds, options.seed)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    print("ok: nothing lost, nothing doubled, all in order" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
