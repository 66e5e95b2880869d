"""A producer in its own process that writes numbered records and keeps a journal of what was acknowledged.

python tests/system/cluster_writer.py --kind ottla --name w1 --servers S --topic t --partitions 6 --journal F

Each line of the journal is an acknowledgement: `milliseconds partition offset number`; or `failed error`; or
`refused milliseconds error` by kafka-python, which does not send again what OUT_OF_ORDER_SEQUENCE_NUMBER
refused and what was under way to others then, and by confluent-kafka, to which that error is fatal: it gives
up all that is under way, and is made `anew milliseconds`; or `unknown milliseconds error` by confluent-kafka,
which gives up what waits, and takes no more for a moment, when a broker says that the topic does not exist.
At SIGTERM the writer sends no more, waits for what is under way, and ends its journal with `end SENT`. A
record is `NAME NUMBER padding`, its partition NUMBER modulo the number of partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.client_access import read_access

FLUSH_S = 150.0
GIVEN_UP_AFTER = 50
"""Polls until a producer that met a fatal error has reported what it gives up."""
PADDING = b"x" * 80
Acknowledged = Callable[[int, int | None, int], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--kind", "--name", "--servers", "--topic", "--journal"):
        parser.add_argument(name, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--per-s", type=float, default=200.0)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--access", default="", help="a file with a login; PLAINTEXT without it")
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
    from confluent_kafka import KafkaException

    numbers = itertools.count()
    while True:
        producer, refused = _confluent(options, journal)
        try:
            _produce(producer, options, numbers, stopping, journal)
            journal.write(f"end {producer.flush(FLUSH_S)}\n")
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            refused(error.args[0])
            _give_up(producer)
            journal.write(f"anew {time.time() * 1000:.0f}\n")
        else:
            return


def _confluent(options: argparse.Namespace, journal: IO[str]) -> tuple[Any, Callable[[Any], None]]:
    """Return a producer whose reports go into the journal, and how to say that it will not write a record."""
    from confluent_kafka import KafkaError, Producer

    acknowledged = acknowledge(journal)
    given_up = (
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError._FATAL, KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    )  # fmt: skip

    def refused(error: Any) -> None:
        journal.write(f"refused {time.time() * 1000:.0f} {error}\n")

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged(message.partition(), message.offset(), int(message.value().split(b" ", 2)[1]))
        elif error.code() in _unknown():
            journal.write(f"unknown {time.time() * 1000:.0f} {error}\n")
        elif error.code() in given_up:
            refused(error)
        else:
            journal.write(f"failed {error}\n")

    producer = Producer(
        {
            "bootstrap.servers": options.servers, "acks": options.acks, "linger.ms": 2,
            "message.timeout.ms": 0, "enable.idempotence": options.acks == "all", "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20, "socket.timeout.ms": 5_000,
            "request.timeout.ms": 3_000, "queue.buffering.max.messages": 20_000, "log_level": 0,
            "topic.metadata.refresh.interval.ms": 2_000, "on_delivery": delivered,
            "error_cb": lambda _: None,  # a fatal error is raised beside it
        }
        | read_access(options.access).librdkafka()
    )  # fmt: skip
    return producer, refused


def _unknown() -> Sequence[int]:
    from confluent_kafka import KafkaError

    return KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART


def _produce(
    producer: Any,
    options: argparse.Namespace,
    numbers: Iterator[int],
    stopping: threading.Event,
    journal: IO[str],
) -> None:
    """Write records until it is time to stop. Raises KafkaException for a fatal error."""
    from confluent_kafka import KafkaException

    while not stopping.is_set():
        number = next(numbers)
        try:
            producer.produce(options.topic, record(options, number), partition=number % options.partitions)
        except BufferError:
            producer.poll(0.05)
            continue
        except KafkaException as error:
            if error.args[0].code() not in _unknown():
                raise
            journal.write(f"unknown {time.time() * 1000:.0f} {error.args[0]}\n")
            producer.poll(1.0)
            continue
        producer.poll(1 / options.per_s)


def _give_up(producer: Any) -> None:
    """Make a producer that met a fatal error report all that it has not written."""
    from confluent_kafka import KafkaException

    producer.purge()
    for _ in range(GIVEN_UP_AFTER):
        with suppress(KafkaException):
            if not producer.poll(0.2) and not len(producer):
                return


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
        **read_access(options.access).kafka_python(),
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
        request_timeout_ms=3_000, delivery_timeout_ms=600_000, **read_access(options.access).ottla(),
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
        metadata_max_age_ms=2_000, **read_access(options.access).aiokafka(),
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
