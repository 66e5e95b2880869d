"""The mirror on Spark: to a broker of ours, and to one of Apache Kafka; killed on the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.consumer import SyncConsumer
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.mirroring.offset_mapping import MAPPING_TOPIC, MappedSpan, read_mapping
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.pipeline.jobs.run import Run
from ottla.protocol.topics import TopicPartition
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.mirror_copies import check_translations, names, read, varied, what
from peers.pipelines import SPARK, Pipeline
from peers.topics import Sent, Topics

Fresh = Callable[[str], str]

pytestmark = pytest.mark.timeout(900)

DECLARATION = """
kind = "mirror"
engine = "{engine}"
name = "{name}"
checkpoint = "state"
trigger = "100ms"
exclude = [".*-tmp"]
[source]
bootstrap_servers = "{source}"
pattern = "{topic}.*"
max_records_per_batch = 1500
[target]
bootstrap_servers = "{target}"
"""


GROUPS = """
[groups]
pattern = "billing"
every = "100ms"
"""


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The cluster that copies go to: one broker of Ottla, or of Apache Kafka."""
    folder = tmp_path_factory.mktemp("target")
    if request.param == "ottla":
        with BrokerProcess(folder) as ours:
            yield ours.bootstrap_servers
        return
    if missing := missing_tools():
        pytest.skip(missing)
    with KraftKafka(folder, {"transaction.state.log.num.partitions": "8"}) as kafka:
        yield kafka.bootstrap_servers


class Mirrored:
    """A mirror of a topic, as a file, and both sides of it."""

    def __init__(self, folder: Path, source: str, target: str, topic: str) -> None:
        self.source, self.target, self.topic = source, target, topic
        self.name = f"mirror-{topic}"
        self.file = folder / "mirror.toml"
        self.state = folder / "state"
        self.declare("spark")

    def declare(self, engine: str) -> None:
        self.file.write_text(
            DECLARATION.format(
                engine=engine, name=self.name, source=self.source, target=self.target, topic=self.topic
            )
            + SPARK
        )

    def once(self) -> dict[str, object]:
        said: dict[str, object] = {}
        Run(read_job(self.file), once=True, watch=said.update)()
        return said

    def mapping(self) -> dict[TopicPartition, Spans]:
        return asyncio.run(read_mapping({"bootstrap.servers": self.target}, self.name))

    def check(self, count: int) -> None:
        """Hold the copy against the original, and the mapping against both."""
        originals, copies = read(self.source, self.topic), read(self.target, self.topic)
        assert len(copies) == count
        assert what(copies) == what(originals)
        check_translations(self.mapping(), originals, copies)


@pytest.fixture
def mirrored(tmp_path: Path, broker: BrokerProcess, target: str, fresh: Fresh) -> Mirrored:
    return Mirrored(tmp_path, broker.bootstrap_servers, target, fresh("orders"))


@pytest.mark.usefixtures("spark")
def test_records_are_copied_as_they_are_and_once(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, 2, retention_ms="-1")
    topics.create(f"{mirrored.topic}-tmp")
    topics.send(mirrored.topic, varied(1_000))
    said = mirrored.once()
    assert said["queries"]["main"]["counts"] == {"copied": 1_000}  # type: ignore[index]
    topics.add_partitions(mirrored.topic, 3)
    with Topics(mirrored.source) as others:
        others.send(mirrored.topic, [Sent(value=b"x", partition=2, timestamp_ms=1_714_557_700_000)])
    topics.send(mirrored.topic, varied(100, 1_000))
    mirrored.once()
    mirrored.once()
    mirrored.check(1_101)
    assert names(mirrored.target, mirrored.topic) == {mirrored.topic}


@pytest.mark.usefixtures("spark")
def test_a_repeated_batch_is_not_written_again(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, 2, retention_ms="-1")
    topics.send(mirrored.topic, varied(300))
    mirrored.once()
    _forget_last_commit(mirrored.state / "queries" / "main")
    topics.send(mirrored.topic, varied(100, 300))
    mirrored.once()
    mirrored.check(400)


def _forget_last_commit(query: Path) -> None:
    last = max((query / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.usefixtures("spark")
def test_the_engine_may_change_on_the_way(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, 2, retention_ms="-1")
    for number, engine in enumerate(("sdk", "spark", "sdk", "spark")):
        mirrored.declare(engine)
        topics.send(mirrored.topic, varied(200, number * 200))
        mirrored.once()
    mirrored.check(800)


@pytest.mark.usefixtures("spark")
def test_a_group_moves_over_while_there_is_nothing_to_copy(mirrored: Mirrored, topics: Topics) -> None:
    topics.create(mirrored.topic, retention_ms="-1")
    topics.send(mirrored.topic, varied(50))
    mirrored.file.write_text(mirrored.file.read_text() + GROUPS)
    run = Run(read_job(mirrored.file))
    partition = TopicPartition(mirrored.topic, 0)

    def commit_and_look() -> int | None:
        try:
            _until(lambda: run.state("mirror.copied").read() == {"copied": 50}, run)
            with SyncConsumer(
                bootstrap_servers=mirrored.source,
                group_id="billing",
                enable_auto_commit=False,  # or leaving commits where it would have begun to read: the end
            ) as reader:
                reader.assign([partition])
                reader.commit({partition: 20})
            with SyncConsumer(bootstrap_servers=mirrored.target, group_id="billing") as moved:
                _until(lambda: moved.committed(partition) == 20, run)
                return moved.committed(partition)
        finally:
            run.stopping.set()

    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(commit_and_look)
        try:
            run()
        finally:
            run.stopping.set()
        assert found.result(60) == 20


def _until(is_so: Callable[[], bool], run: Run) -> None:
    deadline = time.monotonic() + 200
    while not is_so():
        assert not run.stopping.is_set(), "the mirror ended"
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.05)


@pytest.mark.usefixtures("spark")
def test_records_behind_a_plan_of_before_a_crash_are_counted(mirrored: Mirrored, topics: Topics) -> None:
    """The mapping has a plan for 12 records, and the copy 7 of them: 5 are copied."""
    mirrored.file.write_text('delivery = "dedupe"' + mirrored.file.read_text())
    topics.create(mirrored.topic, retention_ms="-1")
    more = varied(12, 5)
    topics.send(mirrored.topic, varied(5))
    assert mirrored.once()["queries"]["main"]["counts"] == {"copied": 5}  # type: ignore[index]
    topics.send(mirrored.topic, more)
    plan = MappedSpan(mirrored.name, TopicPartition(mirrored.topic, 0), Span(0, 0, 17), sure=5)
    with Topics(mirrored.target) as there:
        there.send(MAPPING_TOPIC, [Sent(key=plan.key(), value=plan.value(mirrored.topic), partition=0)])
        there.send(mirrored.topic, more[:7])
    assert mirrored.once()["queries"]["main"]["counts"] == {"copied": 10}  # type: ignore[index]
    mirrored.check(17)


def _kill_and_finish(mirrored: Mirrored, topics: Topics, rounds: int) -> None:
    """Kill drivers, with all their workers or not, while records come in; then finish, and check."""
    topics.create(mirrored.topic, 2, retention_ms="-1")
    pipeline, chance, sent = Pipeline(mirrored.file, mirrored.state), random.Random(4), 0
    for _ in range(rounds):
        sent += topics.send(mirrored.topic, varied(2_000, sent))
        done = pipeline.committed()
        pipeline.start()
        try:
            pipeline.until(lambda done=done: pipeline.committed() > done)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.5))  # the moment is drawn: anywhere in a batch
        finally:
            pipeline.kill()
    pipeline.once()
    mirrored.check(sent)


def test_killed_on_the_way_no_record_is_lost_or_doubled(mirrored: Mirrored, topics: Topics) -> None:
    _kill_and_finish(mirrored, topics, rounds=2)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_killed_ten_times(mirrored: Mirrored, topics: Topics) -> None:
    _kill_and_finish(mirrored, topics, rounds=10)
