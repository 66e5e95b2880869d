"""A worker that copies a topic exactly once, with the transactions of one Python client, in its own process.

python tests/system/transactions_worker.py --kind confluent --servers … --source s --target t --group g --id x

Each transaction takes the records that one poll returns, writes each to the same partition of the target with
the worker's name before it, and commits the offsets of the group with it. The worker prints `ready`, then
`begun COUNT` and `committed COUNT` for each transaction; kafka-python's prints `initializing` and
`initialized` before. At an error it prints `failed ERROR`, aborts where the client allows it, and ends with
status 3: whoever runs it starts it again. SIGTERM ends it with status 0 after the transaction under way.

`--commit-outside` breaks it on purpose: it commits offsets with the consumer, before the transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.client_access import read_access

MAX_RECORDS = 50
TIMEOUT_MS = 15_000
CALL_S = 30.0
LONGEST_PAUSE_S = 0.1
FAILED = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--kind", "--servers", "--source", "--target", "--group", "--id"):
        parser.add_argument(name, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--session-ms", type=int, default=6_000)
    parser.add_argument("--commit-outside", action="store_true")
    parser.add_argument("--access", default="", help="a file with a login; PLAINTEXT without it")
    options = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        KINDS[options.kind](options, stopping)
    except Exception as error:  # whatever it is: a worker that starts again begins at what is committed
        say("failed", type(error).__name__, " ".join(str(error).split())[:200])
        sys.exit(FAILED)


def say(*words: object) -> None:
    print(*words, flush=True)


def image(offset: int, value: bytes) -> bytes:
    """Return the record that is written for a record: `OFFSET@WRITER NUMBER padding`."""
    return b"%d@%s" % (offset, value)


def pause_s() -> float:
    """Return how long a transaction stays open with its records written: a kill shall find it so."""
    return random.random() * LONGEST_PAUSE_S


@contextlib.contextmanager
def said(count: int) -> Iterator[None]:
    """Print when a transaction begins and ends."""
    say("begun", count)
    yield
    say("committed", count)


def confluent(options: argparse.Namespace, stopping: threading.Event) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer

    common = {
        "bootstrap.servers": options.servers, "log_level": 0, "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5_000,
        "topic.metadata.refresh.interval.ms": 2_000, **read_access(options.access).librdkafka(),
    }  # fmt: skip
    consumer = Consumer(
        common
        | {
            "group.id": options.group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100,
        }
    )  # fmt: skip
    producer = Producer(
        common
        | {
            "transactional.id": options.id, "transaction.timeout.ms": TIMEOUT_MS, "linger.ms": 5,
            "request.timeout.ms": 5_000, "retry.backoff.ms": 20,
        }
    )  # fmt: skip
    producer.init_transactions(CALL_S)
    # With a callback, partitions come and go within `consume` only.
    consumer.subscribe([options.source], on_assign=lambda *_: say("ready"), on_revoke=lambda *_: None)
    try:
        while not stopping.is_set():
            batch = [each for each in consumer.consume(MAX_RECORDS, 0.3) if each.error() is None]
            if batch:
                with said(len(batch)):
                    _confluent_transaction(options, consumer, producer, batch)
    except KafkaException:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(CALL_S)
        raise
    finally:
        consumer.close()


def _confluent_transaction(options: argparse.Namespace, consumer: Any, producer: Any, batch: Any) -> None:
    from confluent_kafka import TopicPartition

    producer.begin_transaction()
    for each in batch:
        copy = image(each.offset(), each.value())
        producer.produce(options.target, copy, each.key(), partition=each.partition())
    ends = {each.partition(): each.offset() + 1 for each in batch}
    offsets = [TopicPartition(options.source, index, offset) for index, offset in ends.items()]
    if options.commit_outside:
        consumer.commit(offsets=offsets, asynchronous=False)
    producer.flush(CALL_S)
    time.sleep(pause_s())
    if not options.commit_outside:
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), CALL_S)
    producer.commit_transaction(CALL_S)


def kafka_python(options: argparse.Namespace, stopping: threading.Event) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            say("ready")

    common = {
        "bootstrap_servers": options.servers.split(","), "metadata_max_age_ms": 2_000,
        "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200, "retry_backoff_ms": 50,
        **read_access(options.access).kafka_python(),
    }  # fmt: skip
    producer = KafkaProducer(
        **common, transactional_id=options.id, transaction_timeout_ms=TIMEOUT_MS, linger_ms=5,
        request_timeout_ms=5_000, delivery_timeout_ms=60_000, max_block_ms=60_000,
    )  # fmt: skip
    consumer = KafkaConsumer(
        **common, group_id=options.group, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed", session_timeout_ms=options.session_ms, heartbeat_interval_ms=500,
        max_poll_records=MAX_RECORDS, fetch_max_wait_ms=100,
    )  # fmt: skip
    say("initializing")
    producer.init_transactions()
    say("initialized")
    consumer.subscribe([options.source], listener=Listener())
    is_open = False
    try:
        while not stopping.is_set():
            batch = consumer.poll(timeout_ms=300)
            group = consumer.group_metadata()
            if batch:
                with said(sum(map(len, batch.values()))):
                    is_open = True
                    _kafka_python_transaction(options, producer, batch, group)
                    is_open = False
    except Exception:
        if is_open:
            with contextlib.suppress(Exception):
                producer.abort_transaction()
        raise
    finally:
        consumer.close()
        producer.close(timeout=5)


def _kafka_python_transaction(options: argparse.Namespace, producer: Any, batch: Any, group: Any) -> None:
    from kafka import OffsetAndMetadata

    producer.begin_transaction()
    for partition, records in batch.items():
        for each in records:
            copy = image(each.offset, each.value)
            producer.send(options.target, copy, each.key, partition=partition.partition)
    producer.flush(CALL_S)
    time.sleep(pause_s())
    offsets = {
        partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in batch.items()
    }
    producer.send_offsets_to_transaction(offsets, group)
    producer.commit_transaction()


def aiokafka(options: argparse.Namespace, stopping: threading.Event) -> None:
    asyncio.run(_aiokafka(options, stopping))


async def _aiokafka(options: argparse.Namespace, stopping: threading.Event) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    common = {
        "bootstrap_servers": options.servers, "metadata_max_age_ms": 2_000, "retry_backoff_ms": 50,
        **read_access(options.access).aiokafka(),
    }  # fmt: skip
    consumer = AIOKafkaConsumer(
        **common, group_id=options.group, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed", fetch_max_wait_ms=100,
    )  # fmt: skip
    async with AIOKafkaProducer(
        **common, transactional_id=options.id, transaction_timeout_ms=TIMEOUT_MS, linger_ms=5,
        request_timeout_ms=10_000,
    ) as producer:  # fmt: skip
        await consumer.start()
        try:
            # It commits in the name of the group, not of a member: only one of these may run at a time.
            consumer.assign([TopicPartition(options.source, index) for index in range(options.partitions)])
            say("ready")
            while not stopping.is_set():
                batch = await consumer.getmany(timeout_ms=300, max_records=MAX_RECORDS)
                if batch:
                    with said(sum(map(len, batch.values()))):
                        await _aiokafka_transaction(options, producer, batch)
        finally:
            await consumer.stop()


async def _aiokafka_transaction(options: argparse.Namespace, producer: Any, batch: Any) -> None:
    async with asyncio.timeout(2 * CALL_S), producer.transaction():
        for partition, records in batch.items():
            for each in records:
                copy = image(each.offset, each.value)
                await producer.send(options.target, copy, each.key, partition=partition.partition)
        await producer.flush()
        await asyncio.sleep(pause_s())
        offsets = {partition: records[-1].offset + 1 for partition, records in batch.items()}
        await producer.send_offsets_to_transaction(offsets, options.group)


def ottla(options: argparse.Namespace, stopping: threading.Event) -> None:
    asyncio.run(_ottla(options, stopping))


async def _ottla(options: argparse.Namespace, stopping: threading.Event) -> None:
    from ottla.consumer import Consumer
    from ottla.producer import Producer

    login = read_access(options.access).ottla()
    async with (
        Producer(
            options.servers, transactional_id=options.id, transaction_timeout_ms=TIMEOUT_MS, linger_ms=5,
            request_timeout_ms=5_000, **login,
        ) as producer,
        Consumer(
            options.source, bootstrap_servers=options.servers, group_id=options.group,
            enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed",
            session_timeout_ms=options.session_ms, heartbeat_interval_ms=500, fetch_max_wait_ms=100,
            **login,
        ) as consumer,
    ):  # fmt: skip
        say("ready")
        while not stopping.is_set():
            batch = await consumer.getmany(timeout_ms=300, max_records=MAX_RECORDS)
            if batch:
                with said(sum(map(len, batch.values()))):
                    await _ottla_transaction(options, producer, consumer, batch)


async def _ottla_transaction(options: argparse.Namespace, producer: Any, consumer: Any, batch: Any) -> None:
    async with asyncio.timeout(2 * CALL_S), producer.transaction():
        for partition, records in batch.items():
            for each in records:
                copy = image(each.offset, each.value)
                await producer.send(options.target, copy, each.key, partition=partition.partition)
        await producer.flush()
        await asyncio.sleep(pause_s())
        offsets = {partition: records[-1].offset + 1 for partition, records in batch.items()}
        await producer.send_offsets(offsets, consumer.group_metadata())


KINDS = {"aiokafka": aiokafka, "confluent": confluent, "kafka-python": kafka_python, "ottla": ottla}

if __name__ == "__main__":
    main()
