"""A consumer in its own process that keeps a journal of every record it was given.

python tests/system/cluster_reader.py --kind confluent --servers … --topic t --journal F [--group G]

Each line of the journal is `partition offset writer number`; what confluent-kafka says of itself every five
seconds is in the file with the suffix `.statistics`. With a group the member commits what it has
journalled, and after SIGTERM leaves; without one the reader follows all partitions from their beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.client_access import read_access


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--kind", "--servers", "--topic", "--journal"):
        parser.add_argument(name, required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--session-ms", type=int, default=6_000)
    parser.add_argument("--isolation", default="read_committed")
    parser.add_argument("--access", default="", help="a file with a login; PLAINTEXT without it")
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with Path(options.journal).open("w", buffering=1) as journal:
        {"confluent": confluent, "ottla": ottla}[options.kind](options, stopping, journal)


def confluent(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.servers, "group.id": options.group or "follower",
            "enable.auto.commit": False, "auto.offset.reset": "error" if not options.group else "earliest",
            "check.crcs": True, "isolation.level": options.isolation, "log_level": 0,
            "session.timeout.ms": options.session_ms, "heartbeat.interval.ms": 500,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 5_000, "topic.metadata.refresh.interval.ms": 2_000,
            "statistics.interval.ms": 5_000,
            "stats_cb": partial(_keep, Path(options.journal).with_suffix(".statistics")),
        }
        | read_access(options.access).librdkafka()
    )  # fmt: skip
    if options.group:
        consumer.subscribe([options.topic])
    else:
        every = range(options.partitions)
        consumer.assign([TopicPartition(options.topic, index, OFFSET_BEGINNING) for index in every])
    while not stopping.is_set():
        given = consumer.consume(1_000, timeout=0.2)
        _journal(journal, given)
        if options.group and given:
            try:
                consumer.commit(asynchronous=True)
            except KafkaException as error:  # of a rebalance: the next owner repeats what was not committed
                journal.write(f"commit {error}\n")
    consumer.close()
    journal.write("end\n")


def _keep(file: Path, statistics: str) -> None:
    whole = file.with_suffix(".new")
    whole.write_text(statistics)
    whole.replace(file)


def _journal(journal: IO[str], given: Iterable[Any]) -> None:
    for message in given:
        if message.error() is not None:
            journal.write(f"error {message.error()}\n")
            continue
        writer, number, _ = message.value().split(b" ", 2)
        journal.write(f"{message.partition()} {message.offset()} {writer.decode()} {int(number)}\n")


def ottla(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    asyncio.run(_ottla(options, stopping, journal))


async def _ottla(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from ottla.consumer import Consumer

    async with Consumer(
        options.topic, bootstrap_servers=options.servers, group_id=options.group or None,
        auto_offset_reset="earliest", enable_auto_commit=False, isolation_level=options.isolation,
        session_timeout_ms=options.session_ms, heartbeat_interval_ms=500,
        **read_access(options.access).ottla(),
    ) as consumer:  # fmt: skip
        while not stopping.is_set():
            given = await consumer.getmany(timeout_ms=200)
            for records in given.values():
                for each in records:
                    writer, number, _ = (each.value or b"").split(b" ", 2)
                    journal.write(f"{each.partition} {each.offset} {writer.decode()} {int(number)}\n")
    journal.write("end\n")


if __name__ == "__main__":
    main()
