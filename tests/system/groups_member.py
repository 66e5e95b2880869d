"""Members of share groups and of consumer groups in one process, each with a journal.

python tests/system/groups_member.py --kind ottla --servers S --topic T --folder F

Each line of standard input is `start NAME GROUP share-explicit|share-implicit|consumer` or `stop NAME`; at
its end all members leave, and the process ends. Each line of FOLDER/NAME.journal begins with the time in
microseconds: `began`, `failed ERROR` when it is made again, and `left`; for a member of a consumer group
`assigned P`, `revoked P`, `lost P`, `read P OFFSET WRITER NUMBER`, `committed P NEXT`, which the coordinator
has confirmed, `uncommitted ERROR`; for one of a share group `given P OFFSET DELIVERIES WRITER NUMBER`, which
it accepts unless `released P OFFSET` follows, and the answers `confirmed P OFFSET`, `refused P OFFSET ERROR`.
Explicit members release some records at their first delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from ottla.client.errors import ClientError
from ottla.consumer import AcknowledgementFailed, Consumer, RebalanceListener, ShareConsumer
from ottla.protocol.errors import ErrorCode, KafkaError

RELEASED_OF: Final = 16
POLL_S: Final = 0.2
AGAIN_S: Final = 0.5
LIBRDKAFKA_STALL_MS: Final = 45_000
"""librdkafka gives up a heartbeat after the heartbeat interval, and loses the assignment in an answer that is
later: of brokers of Apache Kafka, too. Its coordinator removes it after this time, and it joins again."""


class Journal:
    """The journal of one member; each line is in the file at once."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def note(self, *words: object) -> None:
        self._file.write(f"{time.time_ns() // 1_000} {' '.join(map(str, words))}\n")

    def note_all(self, word: str, partitions: Collection[Any]) -> None:
        for each in partitions:
            self.note(word, each.partition)


@contextmanager
def journal(folder: Path, name: str) -> Iterator[Journal]:
    with (folder / f"{name}.journal").open("a", buffering=1) as file:
        yield Journal(file)


def read_value(value: bytes | None) -> tuple[str, int]:
    writer, number, _ = (value or b"").split(b" ", 2)
    return writer.decode(), int(number)


# --- ours


class Listener(RebalanceListener):
    """Journals what a member is assigned."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self._journal.note_all("assigned", assigned)

    def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self._journal.note_all("revoked", revoked)

    def on_partitions_lost(self, lost: Collection[Any]) -> None:
        self._journal.note_all("lost", lost)


async def consume(servers: str, topic: str, group: str, journal: Journal, until: asyncio.Event) -> None:
    consumer = Consumer(
        bootstrap_servers=servers, group_id=group, group_protocol="consumer", auto_offset_reset="earliest",
        enable_auto_commit=False, request_timeout_ms=5_000, metadata_max_age_ms=2_000,
    )  # fmt: skip
    consumer.subscribe([topic], listener=Listener(journal))
    async with consumer:
        while not until.is_set():
            given = await consumer.getmany(timeout_ms=POLL_S * 1_000)
            for records in given.values():
                for each in records:
                    journal.note("read", each.partition, each.offset, *read_value(each.value))
            if given:
                await commit(consumer, {at: records[-1].offset + 1 for at, records in given.items()}, journal)


async def commit(consumer: Consumer[Any, Any], offsets: dict[Any, int], journal: Journal) -> None:
    try:
        await consumer.commit(offsets)
    except (ClientError, KafkaError, TimeoutError) as error:  # the next owner, or commit, goes on from before
        journal.note("uncommitted", type(error).__name__)
        return
    for partition, offset in offsets.items():
        journal.note("committed", partition.partition, offset)


async def share(
    servers: str, topic: str, group: str, journal: Journal, until: asyncio.Event, *, is_explicit: bool
) -> None:
    released: set[tuple[int, int]] = set()

    def answered(partition: Any, offsets: tuple[int, ...], error: Exception | None) -> None:
        for offset in offsets:
            place = partition.partition, offset
            if place in released:
                released.discard(place)
            elif error is None:
                journal.note("confirmed", *place)
            else:
                journal.note("refused", *place, name_of(error))

    consumer = ShareConsumer(
        topic, bootstrap_servers=servers, group_id=group, request_timeout_ms=5_000, metadata_max_age_ms=2_000,
        acknowledgement_mode="explicit" if is_explicit else "implicit",
    )  # fmt: skip
    consumer.set_acknowledgement_callback(answered)
    async with consumer:
        while not until.is_set():
            given = await consumer.getmany(timeout_ms=POLL_S * 1_000)
            for record in (each for records in given.values() for each in records):
                place = record.partition, record.offset
                journal.note("given", *place, record.delivery_count, *read_value(record.value))
                if not is_explicit:
                    continue
                if record.delivery_count == 1 and record.offset % RELEASED_OF == 0:
                    released.add(place)
                    journal.note("released", *place)
                    record.release()
                else:
                    record.accept()


def name_of(error: Exception) -> str:
    if isinstance(error, AcknowledgementFailed):
        return "no_answer" if error.code is None else ErrorCode(error.code).name
    return type(error).__name__


async def member_of_ours(
    options: argparse.Namespace, name: str, group: str, kind: str, until: asyncio.Event
) -> None:
    with journal(options.folder, name) as lines:
        while not until.is_set():
            lines.note("began")
            try:
                if kind == "consumer":
                    await consume(options.servers, options.topic, group, lines, until)
                else:
                    explicit = kind == "share-explicit"
                    await share(options.servers, options.topic, group, lines, until, is_explicit=explicit)
            except (ClientError, KafkaError, TimeoutError) as error:
                lines.note("failed", repr(error))
                await asyncio.sleep(AGAIN_S)
        lines.note("left")


async def ottla(options: argparse.Namespace) -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[list[str] | None]()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.split())
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=listen, daemon=True).start()
    members: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def follow(before: asyncio.Task[None] | None, *arguments: Any) -> None:
        if before is not None:
            await before
        await member_of_ours(options, *arguments)

    async with asyncio.TaskGroup() as tasks:
        while (words := await lines.get()) is not None:
            task, until = members.get(words[1], (None, None))
            if words[0] == "start":
                until = asyncio.Event()
                members[words[1]] = tasks.create_task(follow(task, *words[1:], until)), until
            elif until is not None:
                until.set()
        for _, until in members.values():
            until.set()


# --- confluent-kafka's


def confluent_member(
    options: argparse.Namespace, name: str, group: str, kind: str, until: threading.Event
) -> None:
    from confluent_kafka import KafkaException

    assert kind == "consumer"
    with journal(options.folder, name) as lines:
        while not until.is_set():
            lines.note("began")
            try:
                confluent_consume(options, name, group, lines, until)
            except KafkaException as error:
                lines.note("failed", repr(error))
                time.sleep(AGAIN_S)
        lines.note("left")


def confluent_consume(
    options: argparse.Namespace, name: str, group: str, journal: Journal, until: threading.Event
) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.servers, "group.id": group, "group.protocol": "consumer",
            "client.id": name, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 5_000, "topic.metadata.refresh.interval.ms": 2_000, "log_level": 0,
            "max.poll.interval.ms": LIBRDKAFKA_STALL_MS,
        }
    )  # fmt: skip
    consumer.subscribe(
        [options.topic],
        on_assign=lambda _, partitions: journal.note_all("assigned", partitions),
        on_revoke=lambda _, partitions: journal.note_all("revoked", partitions),
        on_lost=lambda _, partitions: journal.note_all("lost", partitions),
    )
    try:
        while not until.is_set():
            read: dict[int, int] = {}
            for message in consumer.consume(500, timeout=POLL_S):
                if message.error() is not None:
                    journal.note("told", message.error())
                    continue
                journal.note("read", message.partition(), message.offset(), *read_value(message.value()))
                read[message.partition()] = message.offset() + 1
            if not read:
                continue
            offsets = [TopicPartition(options.topic, at, offset) for at, offset in read.items()]
            try:
                done = consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                journal.note("uncommitted", error.args[0].name())
                continue
            for each in done:
                if each.error is None:
                    journal.note("committed", each.partition, each.offset)
                else:
                    journal.note("uncommitted", each.error.name())
    finally:
        consumer.close()


def confluent(options: argparse.Namespace) -> None:
    members: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def follow(before: threading.Thread | None, *arguments: Any) -> None:
        if before is not None:
            before.join()
        confluent_member(options, *arguments)

    for line in sys.stdin:
        words = line.split()
        thread, until = members.get(words[1], (None, None))
        if words[0] == "start":
            until = threading.Event()
            members[words[1]] = threading.Thread(target=follow, args=(thread, *words[1:], until)), until
            members[words[1]][0].start()
        elif until is not None:
            until.set()
    for thread, until in members.values():
        until.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--kind", "--servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    if options.kind == "ottla":
        asyncio.run(ottla(options))
    else:
        confluent(options)


if __name__ == "__main__":
    main()
