"""Segments with 203 crafted batches, read in every way: each fault is raised once, and nothing is skipped."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.broker.testing import BrokerProcess
from ottla.client.cli import main
from ottla.consumer import Consumer, ConsumerRecord, SyncConsumer, UnreadableBatch
from ottla.consumer.simple import SimpleConsumer
from ottla.consumer.zookeeper import ZookeeperConsumerConfig, ZookeeperConsumerConnector
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.testing import Background
from peers.crafted_batches import FIRST_OFFSET, crafted_batches, serve_crafted

CORPUS = crafted_batches()
TOPIC = "crafted"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(len(CORPUS))]
FIRST = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, "retry_backoff_ms": 5}
BOUND_S = 120.0


@dataclass(frozen=True)
class Serving:
    """A broker with the corpus, one batch in each partition."""

    bootstrap_servers: str
    zookeeper: str


@dataclass
class Delivered:
    """The offsets that an application got, and the errors, by partition."""

    offsets: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[int, list[UnreadableBatch]] = field(default_factory=lambda: defaultdict(list))

    def add(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            self.offsets[record.partition].append(record.offset)

    def add_all(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        for records in found.values():
            self.add(records)

    def add_error(self, error: UnreadableBatch) -> UnreadableBatch:
        self.errors[error.partition.partition].append(error)
        assert len(self.errors[error.partition.partition]) == 1, f"raised again after a seek: {error}"
        return error

    @property
    def is_complete(self) -> bool:
        """Whether the last record of each partition arrived."""
        ends = {number: batch.offsets_behind[1] for number, batch in enumerate(CORPUS)}
        return all(self.offsets[number][-1:] == [end] for number, end in ends.items())

    def check(self, *, without: str = "") -> None:
        """Compare with the corpus, perhaps without a kind of batches."""
        wrong = []
        for number, batch in enumerate(CORPUS):
            if batch.kind == without:
                continue
            expected = batch.expected_offsets + ([] if batch.is_legal else list(batch.offsets_behind))
            errors = self.errors[number]
            if self.offsets[number] != expected or len(errors) != (0 if batch.is_legal else 1):
                wrong.append(f"{batch.name}: {self.offsets[number]} {errors}")
        assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("crafted")
    with Background(EmbeddedCoordinator(folder / "zookeeper")) as coordinator:
        hosts = coordinator.value.connect_string
        with BrokerProcess(folder / "broker", {"zookeeper.connect": hosts}) as broker:
            serve_crafted(broker, TOPIC, CORPUS)
            yield Serving(broker.bootstrap_servers, hosts)


async def by_iteration(consumer: Consumer, delivered: Delivered) -> None:
    delivered.add([await anext(consumer)])


async def in_lists(consumer: Consumer, delivered: Delivered) -> None:
    delivered.add_all(await consumer.getmany(timeout_ms=1_000))


async def in_small_lists(consumer: Consumer, delivered: Delivered) -> None:
    delivered.add_all(await consumer.getmany(timeout_ms=1_000, max_records=2))


async def in_batches(consumer: Consumer, delivered: Delivered) -> None:
    async for batch in consumer.batches():
        delivered.add(batch)
        if delivered.is_complete:
            break


async def as_columns(consumer: Consumer, delivered: Delivered) -> None:
    batch = await consumer.fetch_arrow(columns=["partition", "offset"])
    for row in batch.to_pylist():
        delivered.offsets[row["partition"]].append(row["offset"])


Step = Callable[[Any, Delivered], Awaitable[None]]
WAYS: list[Step] = [by_iteration, in_lists, in_small_lists, in_batches, as_columns]


@pytest.mark.parametrize("read", WAYS, ids=lambda way: way.__name__)
async def test_a_consumer_raises_each_fault_once_and_goes_on_behind_it(serving: Serving, read: Step) -> None:
    delivered = Delivered()

    async with asyncio.timeout(BOUND_S), Consumer(TOPIC, **_to(serving)) as consumer:
        while not delivered.is_complete:
            try:
                await read(consumer, delivered)
            except UnreadableBatch as error:
                delivered.add_error(error)
                consumer.seek(error.partition, error.next_offset)

    delivered.check()


async def test_a_member_of_a_group_raises_each_fault_once_and_commits_what_is_behind(
    serving: Serving,
) -> None:
    delivered = Delivered()

    async with asyncio.timeout(BOUND_S), Consumer(TOPIC, group_id="readers", **_to(serving)) as consumer:
        while not delivered.is_complete:
            try:
                await in_lists(consumer, delivered)
            except UnreadableBatch as error:
                delivered.add_error(error)
                consumer.seek(error.partition, error.next_offset)
        await consumer.commit()
        committed = await consumer.committed_offsets(PARTITIONS)

    delivered.check()
    ends = [batch.offsets_behind[1] + 1 for batch in CORPUS]
    assert [committed[partition].offset for partition in PARTITIONS] == ends


def next_record(consumer: SyncConsumer, delivered: Delivered) -> None:
    delivered.add([next(consumer)])


def list_of_records(consumer: SyncConsumer, delivered: Delivered) -> None:
    delivered.add_all(consumer.getmany(timeout_ms=1_000))


def columns_of_records(consumer: SyncConsumer, delivered: Delivered) -> None:
    for row in consumer.fetch_arrow(columns=["partition", "offset"]).to_pylist():
        delivered.offsets[row["partition"]].append(row["offset"])


@pytest.mark.parametrize(
    "read", [next_record, list_of_records, columns_of_records], ids=lambda way: way.__name__
)
def test_a_synchronous_consumer_raises_each_fault_once(
    serving: Serving, read: Callable[[SyncConsumer, Delivered], None]
) -> None:
    delivered = Delivered()

    with SyncConsumer(TOPIC, **_to(serving)) as consumer:
        while not delivered.is_complete:
            try:
                read(consumer, delivered)
            except UnreadableBatch as error:
                delivered.add_error(error)
                consumer.seek(error.partition, error.next_offset)

    delivered.check()


async def test_a_simple_consumer_raises_each_fault_where_it_is(serving: Serving) -> None:
    delivered = Delivered()

    async with asyncio.timeout(BOUND_S), SimpleConsumer(serving.bootstrap_servers) as consumer:
        for number, batch in enumerate(CORPUS):
            offset = 0
            while offset <= batch.offsets_behind[1]:
                try:
                    fetched = await consumer.fetch(TOPIC, number, offset)
                except UnreadableBatch as error:
                    offset = delivered.add_error(error).next_offset
                else:
                    delivered.add(list(fetched))
                    offset = fetched.next_offset

    # A fetch from the offset behind the good records does not return a batch that claims no offset at all.
    delivered.check(without="last-offset-delta-negative")


@pytest.fixture
async def connector(serving: Serving) -> AsyncIterator[ZookeeperConsumerConnector]:
    config = ZookeeperConsumerConfig(
        group_id="old-readers", zookeeper_connect=serving.zookeeper, auto_offset_reset="smallest"
    )
    async with ZookeeperConsumerConnector(config) as connector:
        yield connector


async def test_a_stream_of_the_zookeeper_consumer_raises_each_fault_once(
    connector: ZookeeperConsumerConnector,
) -> None:
    delivered = Delivered()

    async with asyncio.timeout(BOUND_S):
        ((stream,),) = (await connector.create_message_streams({TOPIC: 1})).values()
        while not delivered.is_complete:
            try:
                delivered.add([await anext(stream)])
            except UnreadableBatch as error:
                delivered.add_error(error)
                stream.seek(error.partition, error.next_offset)

    delivered.check()


def test_the_command_stops_at_a_fault_and_names_the_option_that_skips_it(serving: Serving) -> None:
    number = _partition_of("header-key-null/none/middle")

    done = _consume(serving, "--partition", str(number))

    assert done.exit_code == 1
    assert done.stdout.split() == ["0", "1", "2"]
    assert done.stderr == (
        f"Error: crafted-{number} at offset 3: a record is malformed; "
        "to skip this batch, seek to offset 5, or give --skip-corrupt\n"
    )


def test_the_command_skips_faults_and_counts_them(serving: Serving) -> None:
    number = _partition_of("header-key-null/none/middle")

    one = _consume(serving, "--partition", str(number), "--skip-corrupt")
    faults = [batch for batch in CORPUS if not batch.is_legal]
    every = _consume(serving, "--skip-corrupt", "--group", "skippers")
    again = _consume(serving, "--group", "skippers")

    assert (one.exit_code, one.stdout.split()) == (0, ["0", "1", "2", "5", "6"])
    assert one.stderr == (
        f"skipped offsets 3 to 4 of crafted-{number}: a record is malformed\n"
        "skipped 1 batch that cannot be read\n"
    )
    lines = every.stderr.splitlines()
    assert (every.exit_code, len(lines)) == (0, len(faults) + 1)
    assert lines[-1] == f"skipped {len(faults)} batches that cannot be read"
    assert len(every.stdout.split()) == sum(len(each.expected_offsets) + 2 for each in faults) + sum(
        len(each.expected_offsets) for each in CORPUS if each.is_legal
    )
    assert (again.exit_code, again.stdout) == (0, "")


def _partition_of(name: str) -> int:
    return next(number for number, batch in enumerate(CORPUS) if batch.name == name)


def _consume(serving: Serving, *options: str) -> Result:
    start = ("--from-beginning", "--exit-at-end", "--format", "{offset}")
    servers = ("--bootstrap-server", serving.bootstrap_servers)
    return CliRunner().invoke(main, ["consume", TOPIC, *start, *options, *servers])


def _to(serving: Serving) -> dict[str, Any]:
    return {"bootstrap_servers": serving.bootstrap_servers, **FIRST}


def test_a_comparison_of_replicas_names_each_batch_that_cannot_be_read(serving: Serving) -> None:
    servers = ["--bootstrap-server", serving.bootstrap_servers]
    done = CliRunner().invoke(main, ["replica", "verify", "--topic", TOPIC, "--json", *servers])

    assert done.exit_code == 0, done.output
    wrong = []
    for row in json.loads(done.stdout):
        crafted = CORPUS[row["partition"]]
        is_readable_by_all = crafted.is_legal and "behind-frame" not in crafted.kind
        named = [reason.partition(": ")[0] for reason in row["unreadable"]]
        if row["batches"] != 3 or named != ([] if is_readable_by_all else [str(FIRST_OFFSET)]):
            wrong.append(f"{crafted.name}: {row}")
    assert not wrong, "\n".join(wrong)
