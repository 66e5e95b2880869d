"""A producer in its own process that writes numbered records and keeps a journal of what was acknowledged.

python tests/system/cluster_writer.py --kind ottla --name w1 --servers S --topic t --partitions 6 --journal F

Each line of the journal is an acknowledgement: `milliseconds partition offset number`; or `failed error`; or
`refused milliseconds error` by kafka-python, which does not send again what OUT_OF_ORDER_SEQUENCE_NUMBER
refused and what was under way to others then; or `unknown milliseconds error` by confluent-kafka, which gives
up what waits, and takes no more for a moment, when a broker says that the topic does not exist. At SIGTERM
the writer sends no more, waits for what is under way, and ends its journal with `end SENT`. A record is
`NAME NUMBER padding`, its partition NUMBER modulo the number of partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

FLUSH_S = 150.0
PADDING = b"x" * 80
Acknowledged = Callable[[int, int | None, int], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--kind", "--name", "--servers", "--topic", "--journal"):
        parser.add_argument(name, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--per-s", type=float, default=200.0)
    parser.add_argument("--acks", default="all")
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with Path(options.journal).open("w", buffering=1) as journal:
        KINDS[options.kind](options, stopping, journal)


def record(options: argparse.Namespace, number: int) -> bytes:
    return b"%s %d %s" % (options.name.encode(), number, PADDING)


def acknowledge(journal: IO[str]) -> Acknowledged:
    def write(partition: int, offset: int | None, number: int) -> None:
        # A batch that the broker had already may be acknowledged without an offset.
        known = -1 if offset is None or offset < 0 else offset
        journal.write(f"{time.time() * 1000:.0f} {partition} {known} {number}\n")

    return write


def confluent(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    acknowledged = acknowledge(journal)
    unknown = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)

    def denied(error: Any) -> None:
        journal.write(f"unknown {time.time() * 1000:.0f} {error}\n")

    def delivered(error: Any, message: Any) -> None:
        if error is not None and error.code() in unknown:
            denied(error)
        elif error is not None:
            journal.write(f"failed {error}\n")
        else:
            acknowledged(message.partition(), message.offset(), int(message.value().split(b" ", 2)[1]))

    producer = Producer(
        {
            "bootstrap.servers": options.servers, "acks": options.acks, "linger.ms": 2,
            "message.timeout.ms": 0, "enable.idempotence": options.acks == "all", "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "socket.timeout.ms": 5_000,
            "request.timeout.ms": 3_000, "queue.buffering.max.messages": 20_000, "log_level": 0,
            "topic.metadata.refresh.interval.ms": 2_000,
            "error_cb": lambda error: journal.write(f"failed {error}\n") if error.fatal() else None,
        }
    )  # fmt: skip
    for number in itertools.count():
        if stopping.is_set():
            break
        try:
            producer.produce(
                options.topic, record(options, number), partition=number % options.partitions,
                on_delivery=delivered,
            )  # fmt: skip
        except BufferError:
            producer.poll(0.05)
            continue
        except KafkaException as error:
            if error.args[0].code() not in unknown:
                raise
            denied(error.args[0])
            producer.poll(1.0)
            continue
        producer.poll(1 / options.per_s)
    left = producer.flush(FLUSH_S)
    journal.write(f"end {left}\n")


def kafka_python(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from kafka import KafkaProducer

    acknowledged = acknowledge(journal)

    def refused(error: Exception) -> None:
        journal.write(f"refused {time.time() * 1000:.0f} {error!r}\n")

    def placed(number: int, done: Any) -> None:
        acknowledged(done.partition, done.offset, number)

    producer = KafkaProducer(
        bootstrap_servers=options.servers.split(","), acks="all" if options.acks == "all" else 1,
        enable_idempotence=options.acks == "all", linger_ms=2, request_timeout_ms=3_000,
        delivery_timeout_ms=600_000, retry_backoff_ms=50, metadata_max_age_ms=2_000,
        max_block_ms=600_000, reconnect_backoff_ms=20, reconnect_backoff_max_ms=200,
    )  # fmt: skip
    for number in itertools.count():
        if stopping.wait(1 / options.per_s):
            break
        sent = producer.send(options.topic, record(options, number), partition=number % options.partitions)
        sent.add_callback(partial(placed, number))
        sent.add_errback(refused)
    producer.flush(FLUSH_S)
    journal.write("end 0\n")


def ottla(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    asyncio.run(_ottla(options, stopping, journal))


async def _ottla(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from ottla.producer import Producer

    acknowledged = acknowledge(journal)

    def delivered(number: int, done: asyncio.Future[Any]) -> None:
        if error := done.exception():
            journal.write(f"failed {error!r}\n")
        else:
            acknowledged(number % options.partitions, done.result().offset, number)

    async with Producer(
        options.servers, acks=options.acks, enable_idempotence=options.acks == "all", linger_ms=2,
        request_timeout_ms=3_000, delivery_timeout_ms=600_000,
    ) as producer:  # fmt: skip
        for number in itertools.count():
            if stopping.is_set():
                break
            sent = await producer.send(
                options.topic, record(options, number), partition=number % options.partitions
            )
            sent.add_done_callback(partial(delivered, number))
            await asyncio.sleep(1 / options.per_s)
        async with asyncio.timeout(FLUSH_S):
            await producer.flush()
    journal.write("end 0\n")


def aiokafka(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    asyncio.run(_aiokafka(options, stopping, journal))


async def _aiokafka(options: argparse.Namespace, stopping: threading.Event, journal: IO[str]) -> None:
    from aiokafka import AIOKafkaProducer

    acknowledged = acknowledge(journal)

    def placed(number: int, done: asyncio.Future[Any]) -> None:
        if error := done.exception():
            journal.write(f"failed {error!r}\n")
        else:
            acknowledged(done.result().partition, done.result().offset, number)

    # It gives a batch up after its request timeout, for which one without a leader must wait.
    async with AIOKafkaProducer(
        bootstrap_servers=options.servers, acks="all" if options.acks == "all" else 1, linger_ms=2,
        enable_idempotence=options.acks == "all", request_timeout_ms=120_000, retry_backoff_ms=50,
        metadata_max_age_ms=2_000,
    ) as producer:  # fmt: skip
        for number in itertools.count():
            if stopping.is_set():
                break
            sent = await producer.send(
                options.topic, record(options, number), partition=number % options.partitions
            )
            sent.add_done_callback(partial(placed, number))
            await asyncio.sleep(1 / options.per_s)
        async with asyncio.timeout(FLUSH_S):
            await producer.flush()
    journal.write("end 0\n")


KINDS = {"aiokafka": aiokafka, "confluent": confluent, "kafka-python": kafka_python, "ottla": ottla}

if __name__ == "__main__":
    main()
