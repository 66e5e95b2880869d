"""Apache Kafka's consumer on batches with right checksums and wrong contents: our readers follow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.crafted_batches import CraftedBatch, crafted_batches, serve_crafted
from peers.java import run_program
from peers.maven import classpath

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "java" / "CraftedBatchReader.java"
CORPUS = crafted_batches()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("crafted")) as running:
        serve_crafted(running, "crafted", CORPUS)
        yield running


def test_the_corpus_says_of_each_batch_what_apache_kafkas_consumer_does(serving: BrokerProcess) -> None:
    java = classpath("org.apache.kafka:kafka-clients:3.9.1", "org.slf4j:slf4j-simple:1.7.36")

    output = run_program(PROGRAM, java, serving.bootstrap_servers, "crafted", str(len(CORPUS)))

    lines = dict(zip([batch.name for batch in CORPUS], output.splitlines(), strict=True))
    differing = [f"{each.name}: {lines[each.name]}" for each in CORPUS if not _agrees(each, lines[each.name])]
    assert not differing, "\n".join(differing)


def _agrees(batch: CraftedBatch, line: str) -> bool:
    """Return whether Java's offsets and outcome are those of the corpus.

    Java decompresses as it reads, and may deliver records before the fault of a frame that we open whole.
    """
    offsets = [int(word.rstrip("kv")) for word in line.split() if word[0].isdigit()]
    expected = batch.expected_offsets
    if batch.java_loses:
        return line.endswith("ok")
    if batch.is_legal:
        return line.endswith("ok") and offsets == expected
    return "raises" in line and (offsets == expected or ("-frame" in batch.kind and offsets[:2] == expected))
