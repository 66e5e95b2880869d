"""The mirror on the clients: to the cluster from a broker of ours, killed on the way; groups move over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import ConsumerRecord, SyncConsumer
from ottla.pipeline.errors import DataLoss, NotSupported, PipelineError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.mirroring.offset_mapping import MAPPING_TOPIC, MappedSpan, read_mapping
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.pipeline.jobs.progress_report import SILENT_S, state_now
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.state_files import StateFile
from ottla.producer import SyncProducer
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator
from peers.crafted_batches import crafted_batches, serve_crafted
from peers.denied_transactions import denied_transactions
from peers.mirror_copies import check_translations, names, read, varied, what
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from sdk.conftest import Cluster

DECLARATION = """
kind = "mirror"
name = "{name}"
checkpoint = "state-{name}"
refresh = "300ms"
{more}
[source]
bootstrap_servers = "{source}"
{topics}
[target]
bootstrap_servers = "{target}"
[groups]
pattern = "{name}-.*"
every = "200ms"
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The cluster that is copied; the one that copies go to is the fixture `cluster`."""
    with BrokerProcess(
        tmp_path_factory.mktemp("source"), {"group.initial.rebalance.delay.ms": "0"}
    ) as running:
        yield running


@pytest.fixture
def topics(source: BrokerProcess) -> Iterator[Topics]:
    with Topics(source.bootstrap_servers) as topics:
        yield topics


class Mirrored:
    """A mirror of one topic, as a file, and both sides of it."""

    def __init__(
        self, folder: Path, source: str, target: str, topic: str, topics: str | None = None, more: str = "",
        name: str | None = None,
    ) -> None:  # fmt: skip
        self.source, self.target, self.topic = source, target, topic
        self.folder, self.name = folder, name or f"mirror-{topic}"
        self.file = folder / f"{self.name}.toml"
        self.checkpoint = folder / f"state-{self.name}"
        given = topics or f'topics = ["{topic}"]'
        self.file.write_text(
            DECLARATION.format(name=self.name, source=source, target=target, topics=given, more=more)
        )

    def once(self) -> None:
        Run(read_job(self.file), once=True)()

    def process(self) -> subprocess.Popen[bytes]:
        command = Path(sys.executable).with_name("ottla")
        return subprocess.Popen([command, "pipeline", "run", str(self.file), "--quiet"])

    def mapping(self) -> dict[TopicPartition, Spans]:
        return asyncio.run(read_mapping({"bootstrap.servers": self.target}, self.name))

    def originals(self) -> list[ConsumerRecord]:
        return read(self.source, self.topic)

    def copies(self) -> list[ConsumerRecord]:
        return read(self.target, self.topic)


@pytest.fixture
def mirrored(
    tmp_path: Path, source: BrokerProcess, cluster: Cluster, fresh: Callable[[str], str]
) -> Mirrored:
    return Mirrored(tmp_path, source.bootstrap_servers, cluster.bootstrap_servers, fresh("orders"))


def test_records_are_copied_as_they_are_and_once(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, 3, retention_ms="123456789012")
    topics.send(mirrored.topic, varied(500))
    mirrored.once()
    topics.send(mirrored.topic, varied(100, 500))
    mirrored.once()
    mirrored.once()
    originals, copies = mirrored.originals(), mirrored.copies()
    assert len(copies) == 600
    assert what(copies) == what(originals)
    check_translations(mirrored.mapping(), originals, copies)


def test_copies_have_the_partitions_and_settings_of_their_originals(
    mirrored: Mirrored, topics: Topics
) -> None:
    topics.create(mirrored.topic, 3, retention_ms="123456789012")
    mirrored.once()
    topics.add_partitions(mirrored.topic, 5)
    topics.send(mirrored.topic, [Sent(value=b"x", partition=4)])
    mirrored.once()

    async def ask() -> tuple[int, str | None]:
        async with Admin(mirrored.target) as admin:
            configs = {each.name: each.value for each in await admin.configs.describe(2, mirrored.topic)}
            return len((await admin.topics.describe(mirrored.topic)).partitions), configs["retention.ms"]

    assert asyncio.run(ask()) == (5, "123456789012")
    assert what(mirrored.copies()) == what(mirrored.originals())


def test_a_batch_that_cannot_be_read_ends_the_mirror_unless_its_loss_is_allowed(
    tmp_path: Path, cluster: Cluster, fresh: Callable[[str], str]
) -> None:
    batch = next(each for each in crafted_batches() if not each.is_legal)
    topic = fresh("crafted")
    with BrokerProcess(tmp_path / "broker") as source:
        serve_crafted(source, topic, [batch])
        mirrored = Mirrored(tmp_path, source.bootstrap_servers, cluster.bootstrap_servers, topic)

        with pytest.raises(DataLoss, match=f"{topic}-0 at offset {batch.expected_offsets[-1] + 1}: "):
            mirrored.once()
        text = mirrored.file.read_text()
        mirrored.file.write_text(text.replace("[target]", "options = {failOnDataLoss = false}\n[target]"))
        mirrored.once()
        copies = mirrored.copies()
    assert len(copies) == len(batch.expected_offsets) + len(batch.offsets_behind)
    assert copies[-1].value == b"z"


def test_gaps_of_the_original_are_in_the_mapping(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(50))
    topics.delete_records({TopicPartition(mirrored.topic, 0): 20})
    mirrored.once()
    spans = mirrored.mapping()[TopicPartition(mirrored.topic, 0)]
    assert [spans.translate(each) for each in (0, 20, 35, 50, 99)] == [0, 0, 15, 30, 30]


def test_new_topics_of_a_pattern_join_while_it_runs(
    tmp_path: Path, source: BrokerProcess, cluster: Cluster, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("many")
    pattern = f'pattern = "{stem}-.*"'
    mirrored = Mirrored(tmp_path, source.bootstrap_servers, cluster.bootstrap_servers, f"{stem}-a", pattern)
    topics.create(f"{stem}-a", retention_ms="-1")
    topics.create(f"{stem}x", retention_ms="-1")
    topics.send(f"{stem}-a", varied(10))
    with mirrored.process() as running:
        _until(lambda: len(mirrored.copies()) == 10, running)
        topics.create(f"{stem}-b", 2, retention_ms="-1")
        topics.send(f"{stem}-b", varied(20))
        _until(lambda: len(read(mirrored.target, f"{stem}-b")) == 20, running)
        running.terminate()
        assert running.wait(30) == 0
    assert what(read(mirrored.target, f"{stem}-b")) == what(read(mirrored.source, f"{stem}-b"))
    assert StateFile(mirrored.checkpoint / "status.json").read()["state"] == "stopped"


def test_a_mirror_that_waits_says_that_it_lives_until_it_is_killed(
    mirrored: Mirrored, topics: Topics
) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    status, said = StateFile(mirrored.checkpoint / "status.json"), set()

    def is_idle_and_says_so() -> bool:
        found = status.read()
        if found and sum(each["rows"] for each in found["queries"].values()) == 10:
            said.add(found["updated_s"])
        return len(said) == 3

    with mirrored.process() as running:
        _until(is_idle_and_says_so, running)
        running.kill()
    left = status.read()
    assert state_now(left, left["updated_s"]) == "running"
    assert state_now(left, left["updated_s"] + SILENT_S + 1) == "killed"


def test_a_group_moves_over_and_misses_nothing(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, 2, retention_ms="-1")
    topics.send(mirrored.topic, varied(300))
    topics.delete_records({TopicPartition(mirrored.topic, 0): 40})
    group = f"{mirrored.name}-billing"
    before = _read_some(mirrored.source, mirrored.topic, group, 100)
    mirrored.once()
    after = _read_some(mirrored.target, mirrored.topic, group, None)
    seen = [(each.partition, each.timestamp) for each in (*before, *after)]
    assert sorted(seen) == sorted((each.partition, each.timestamp) for each in mirrored.originals())
    # It has moved: what it left behind in the source does not set it back.
    mirrored.once()
    assert _read_some(mirrored.target, mirrored.topic, group, None) == []


def _read_some(servers: str, topic: str, group: str, count: int | None) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with SyncConsumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest",
        consumer_timeout_ms=2_000, enable_auto_commit=False,
    ) as consumer:  # fmt: skip
        for each in consumer:
            found.append(each)
            if len(found) == count:
                break
        consumer.commit()
    return found


def test_another_writer_is_noticed(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    mirrored.once()
    with SyncProducer(bootstrap_servers=mirrored.target) as producer:
        producer.send_and_wait(mirrored.topic, b"not of the mirror", partition=0)
    topics.send(mirrored.topic, varied(10, 10))
    with pytest.raises(PipelineError, match="that this mirror did not write"):
        mirrored.once()


def test_records_that_are_gone_before_they_were_copied_end_it(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    mirrored.once()
    topics.send(mirrored.topic, varied(10, 10))
    topics.delete_records({TopicPartition(mirrored.topic, 0): 15})
    with pytest.raises(DataLoss, match="from 10 up to 15 are lost"):
        mirrored.once()
    text = mirrored.file.read_text().replace("[target]", "options = {failOnDataLoss = false}\n[target]")
    mirrored.file.write_text(text)
    mirrored.once()
    assert [each.timestamp % 1_000 for each in mirrored.copies()] == [*range(10), *range(15, 20)]
    spans = mirrored.mapping()[TopicPartition(mirrored.topic, 0)]
    found = [spans.translate(each) for each in (9, 10, 14, 20)]
    # Where there are transactions, the end of the first has an offset too.
    assert found in ([9, 10, 10, 15], [9, 10, 10, 16])


def test_a_topic_that_was_made_again_ends_it(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    mirrored.once()
    topics.delete(mirrored.topic)
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(5))
    with pytest.raises(PipelineError, match="deleted and created again"):
        mirrored.once()


def test_a_mirror_without_its_copy_is_refused(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    for number in range(2):
        topics.send(mirrored.topic, varied(10, number * 10))
        mirrored.once()
    with Topics(mirrored.target) as there:
        there.delete(mirrored.topic)
    with pytest.raises(PipelineError, match="ends at offset 0, but had records up to"):
        mirrored.once()


def test_topics_are_left_out_and_renamed(
    tmp_path: Path, source: BrokerProcess, cluster: Cluster, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("left-out")
    for name in (f"{stem}-a", f"{stem}-tmp-b", f"{stem}-c"):
        topics.create(name, retention_ms="-1")
        topics.send(name, varied(5))
    Mirrored(
        tmp_path, source.bootstrap_servers, cluster.bootstrap_servers, stem, f'pattern = "{stem}-.*"',
        f'exclude = [".*-tmp-.*", "{stem}-c"]\nrename = "north.{{topic}}"',
    ).once()  # fmt: skip
    assert names(cluster.bootstrap_servers, stem) == {f"north.{stem}-a"}
    assert len(read(cluster.bootstrap_servers, f"north.{stem}-a")) == 5


def test_a_mirror_begins_with_what_is_new_if_it_is_told_to(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    text = mirrored.file.read_text().replace("[target]", 'starting_offsets = "latest"\n[target]')
    mirrored.file.write_text(text)
    mirrored.once()
    topics.send(mirrored.topic, varied(5, 10))
    topics.add_partitions(mirrored.topic, 2)
    with Topics(mirrored.source) as others:
        others.send(mirrored.topic, [Sent(value=b"x", partition=1, timestamp_ms=1_714_557_600_777)])
    mirrored.once()
    assert sorted(each.timestamp % 1_000 for each in mirrored.copies()) == [*range(10, 15), 777]


def test_a_topic_that_came_from_there_is_not_mirrored_back(
    mirrored: Mirrored, topics: Topics, tmp_path: Path
) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    mirrored.once()
    back = Mirrored(tmp_path, mirrored.target, mirrored.source, mirrored.topic, name="back")
    with pytest.raises(PipelineError, match="they would be copied without end"):
        back.once()
    mirrored.once()
    assert len(mirrored.originals()) == len(mirrored.copies()) == 10


def test_clusters_are_mirrored_both_ways_when_copies_have_names_of_their_own(
    tmp_path: Path, source: BrokerProcess, cluster: Cluster, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("both")
    north, south = source.bootstrap_servers, cluster.bootstrap_servers
    pattern = f'pattern = ".*{stem}"'
    there = Mirrored(tmp_path, north, south, stem, pattern, 'rename = "north.{topic}"', f"there-{stem}")
    back = Mirrored(tmp_path, south, north, stem, pattern, 'rename = "south.{topic}"', f"back-{stem}")
    topics.create(stem, retention_ms="-1")
    topics.send(stem, varied(10))
    with Topics(south) as others:
        others.create(stem, retention_ms="-1")
        others.send(stem, varied(7))
    for _ in range(3):
        there.once()
        back.once()
    assert names(north, stem) == {stem, f"south.{stem}"}
    assert names(south, stem) == {stem, f"north.{stem}"}
    assert len(read(south, f"north.{stem}")) == 10
    assert len(read(north, f"south.{stem}")) == 7


def test_within_one_cluster_copies_are_not_copied_again(
    tmp_path: Path, source: BrokerProcess, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("within")
    topics.create(stem, retention_ms="-1")
    topics.send(stem, varied(3))
    servers = source.bootstrap_servers
    mirrored = Mirrored(tmp_path, servers, servers, stem, f'pattern = ".*{stem}"', 'rename = "copy.{topic}"')
    mirrored.once()
    mirrored.once()
    assert names(servers, stem) == {stem, f"copy.{stem}"}


def test_transactions_are_used_where_the_target_has_them(
    mirrored: Mirrored, topics: Topics, cluster: Cluster
) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(10))
    mirrored.file.write_text(
        mirrored.file.read_text().replace("[source]", 'delivery = "exactly-once"\n[source]')
    )
    mirrored.once()
    copied = TopicPartition(mirrored.topic, 0)
    deadline = time.monotonic() + 30
    with SyncConsumer(bootstrap_servers=mirrored.target) as consumer:
        # The brokers write the marker after they have answered the commit.
        while (end := consumer.end_offsets([copied])[copied]) < 11 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert end == 11, "the end of the transaction has an offset, too"


async def test_a_target_that_denies_transactions_is_no_target_of_exactly_once(
    source: BrokerProcess, tmp_path: Path
) -> None:
    async with denied_transactions() as target:
        mirrored = Mirrored(
            tmp_path, source.bootstrap_servers, target, "orders", more='delivery = "exactly-once"'
        )
        with pytest.raises(NotSupported, match="delivery=dedupe compares the copies"):
            await asyncio.to_thread(mirrored.once)


async def test_a_target_with_too_few_brokers_for_transactions_is_told_in_one_line(
    source: BrokerProcess, tmp_path: Path
) -> None:
    async with EmbeddedCoordinator() as zookeeper:
        settings = {
            "zookeeper.connect": zookeeper.connect_string,
            "transaction.state.log.replication.factor": "3",
        }
        target = BrokerProcess(tmp_path / "target", settings)
        await asyncio.to_thread(target.start)
        try:
            more = '[target.options]\n"kafka.default.api.timeout.ms" = 5000'
            mirrored = Mirrored(tmp_path, source.bootstrap_servers, target.bootstrap_servers, "orders")
            mirrored.file.write_text(mirrored.file.read_text() + more)
            with pytest.raises(PipelineError) as told:
                await asyncio.to_thread(mirrored.once)
        finally:
            await asyncio.to_thread(target.stop)

    said = str(told.value)
    assert "transaction.state.log.replication.factor" in said
    assert 'delivery = "dedupe"' in said
    assert "\n" not in said


def test_a_mirror_goes_on_when_its_delivery_is_changed(
    mirrored: Mirrored, topics: Topics, cluster: Cluster
) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    declared = mirrored.file.read_text()
    for number, delivery in enumerate(("dedupe", "auto", "dedupe", "auto")):
        mirrored.file.write_text(declared.replace("[source]", f'delivery = "{delivery}"\n[source]', 1))
        topics.send(mirrored.topic, varied(10, number * 10))
        mirrored.once()
    assert what(mirrored.copies()) == what(mirrored.originals())


def test_what_was_planned_before_a_crash_is_told_from_what_was_written(
    mirrored: Mirrored, topics: Topics
) -> None:
    """The mapping has a plan for 12 records and the copy 7 of them; then the original loses some."""
    mirrored.file.write_text(
        mirrored.file.read_text().replace("[source]", 'delivery = "dedupe"\n[source]', 1)
    )
    topics.create(mirrored.topic, retention_ms="-1")
    partition = TopicPartition(mirrored.topic, 0)
    topics.send(mirrored.topic, varied(5))
    mirrored.once()
    more = varied(12, 5)
    topics.send(mirrored.topic, more)
    plan = MappedSpan(mirrored.name, partition, Span(0, 0, 17), sure=5)
    with Topics(mirrored.target) as there:
        there.send(MAPPING_TOPIC, [Sent(key=plan.key(), value=plan.value(mirrored.topic), partition=0)])
        there.send(mirrored.topic, more[:7])
    topics.delete_records({partition: 9})
    mirrored.once()
    assert [each.timestamp % 1_000 for each in mirrored.copies()] == list(range(17))
    assert [mirrored.mapping()[partition].translate(each) for each in (0, 11, 12, 17)] == [0, 11, 12, 17]


def _until(is_so: Callable[[], bool], running: subprocess.Popen[bytes], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert running.poll() is None, "the mirror ended"
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)


def _kill_and_finish(mirrored: Mirrored, topics: Topics, rounds: int) -> None:
    """Kill mirrors while records come in, finish, and hold the copy against the original."""
    topics.create(mirrored.topic, 3, retention_ms="-1")
    sent = 0
    for number in range(rounds):
        sent += _send_until_killed(mirrored, topics, sent, more_rounds=1 + number % 4)
    mirrored.once()
    originals, copies = mirrored.originals(), mirrored.copies()
    assert len(copies) == sent
    assert what(copies) == what(originals)
    check_translations(mirrored.mapping(), originals, copies)


def _send_until_killed(mirrored: Mirrored, topics: Topics, start: int, more_rounds: int) -> int:
    """Send records while a mirror runs, and kill it after some rounds, with more to do."""
    batches = StateFile(mirrored.checkpoint / "places" / "mirror.batches.json")
    done, sent, deadline = int(batches.read().get("next", 0)), 0, time.monotonic() + 90
    running = mirrored.process()
    try:
        while int(batches.read().get("next", 0)) < done + more_rounds:
            assert running.poll() is None, "the mirror ended"
            assert time.monotonic() < deadline, "the mirror does not get on"
            sent += topics.send(mirrored.topic, varied(100, start + sent))
        return sent + topics.send(mirrored.topic, varied(500, start + sent))
    finally:
        running.kill()
        running.wait()


def test_killed_on_the_way_no_record_is_lost_or_doubled(mirrored: Mirrored, topics: Topics) -> None:
    _kill_and_finish(mirrored, topics, rounds=2)


@pytest.mark.slow
def test_killed_ten_times(mirrored: Mirrored, topics: Topics) -> None:
    _kill_and_finish(mirrored, topics, rounds=10)
