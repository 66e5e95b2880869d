"""Partitions and segments under paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.pipeline.errors import OptionError, SegmentsChanged
from ottla.pipeline.segments.log_directories import PartitionFolder, find_partitions
from ottla.pipeline.source.config import TopicSelection
from ottla.protocol.topics import TopicPartition
from peers.log_directory import PartitionWriter

EVERY = TopicSelection(pattern=".*")


def partition(log_dir: Path, topic: str = "orders", number: int = 0, segments: int = 3) -> PartitionWriter:
    """Write a partition with closed segments of ten records each, and an active one with one record."""
    writer = PartitionWriter(log_dir, TopicPartition(topic, number))
    for _ in range(segments):
        writer.batch([b"value"] * 10)
        writer.roll()
    writer.batch([b"active"])
    return writer


def found_in(*paths: Path | str, wanted: TopicSelection = EVERY) -> dict[str, PartitionFolder]:
    return {str(each): folder for each, folder in find_partitions(map(str, paths), wanted).items()}


def test_a_log_directory_has_the_partitions_of_all_topics_but_internal_ones(tmp_path: Path) -> None:
    for topic, number in (("orders", 0), ("orders", 1), ("a-b", 3), ("__consumer_offsets", 0)):
        partition(tmp_path, topic, number)
    (tmp_path / "orders-2.0123456789abcdef0123456789abcdef-delete").mkdir()
    (tmp_path / "not-one").mkdir()
    (tmp_path / "meta.properties").touch()

    assert list(found_in(tmp_path)) == ["a-b-3", "orders-0", "orders-1"]
    named = TopicSelection(topics=frozenset({"__consumer_offsets"}))
    assert list(found_in(tmp_path, wanted=named)) == ["__consumer_offsets-0"]


def test_every_segment_but_the_last_is_closed(tmp_path: Path) -> None:
    writer = partition(tmp_path)

    folder = found_in(tmp_path)["orders-0"]

    assert [(each.base_offset, each.end_offset) for each in folder.closed] == [(0, 10), (10, 20), (20, 30)]
    assert folder.active.base_offset == 30
    assert folder.active.end_offset is None
    assert [each.size for each in folder.every] == [
        writer.path(base_offset=base).stat().st_size for base in (0, 10, 20, 30)
    ]


def test_paths_may_be_partitions_segments_and_patterns(tmp_path: Path) -> None:
    partition(tmp_path, number=0)
    partition(tmp_path, number=1)

    assert list(found_in(tmp_path / "orders-1")) == ["orders-1"]
    assert list(found_in(tmp_path / "orders-*")) == ["orders-0", "orders-1"]
    some = found_in(tmp_path / "orders-0" / "*1?.log", tmp_path / "orders-0" / "*2?.log")
    assert [each.base_offset for each in some["orders-0"].closed] == [10, 20]
    assert not some["orders-0"].chooses(some["orders-0"].active)


def test_a_log_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    partition(tmp_path / "kafka-logs-1")

    assert list(found_in(tmp_path / "kafka-logs-*")) == ["orders-0"]


def test_topics_and_partitions_are_chosen(tmp_path: Path) -> None:
    for topic, number in (("orders", 0), ("orders", 1), ("bills", 0)):
        partition(tmp_path, topic, number)

    assert list(found_in(tmp_path, wanted=TopicSelection(topics=frozenset({"bills"})))) == ["bills-0"]
    one = TopicSelection(partitions=frozenset({TopicPartition("orders", 1)}))
    assert list(found_in(tmp_path, wanted=one)) == ["orders-1"]


@pytest.mark.parametrize(
    ("paths", "wanted", "message"),
    [
        (["nowhere"], EVERY, "contains no log segments"),
        (["."], TopicSelection(topics=frozenset({"bills"})), "no path contains topic 'bills'"),
        ([".", "copy"], EVERY, "orders-0 is both in "),
    ],
)
def test_missing_and_duplicate_partitions_are_rejected(
    tmp_path: Path, paths: list[str], wanted: TopicSelection, message: str
) -> None:
    partition(tmp_path)
    partition(tmp_path / "copy")

    with pytest.raises(OptionError, match=re.escape(message)):
        found_in(*(tmp_path / each for each in paths), wanted=wanted)


def test_a_compaction_that_is_not_over_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = partition(tmp_path)
    swap = writer.path(base_offset=10).with_suffix(".log.swap")
    writer.path(base_offset=10).rename(swap)
    waits = []

    def complete(_: float) -> None:
        waits.append(swap.exists())
        swap.rename(writer.path(base_offset=10))

    monkeypatch.setattr("ottla.pipeline.segments.log_directories.time.sleep", complete)
    assert [each.base_offset for each in found_in(tmp_path)["orders-0"].closed] == [0, 10, 20]
    assert waits == [True]


def test_a_compaction_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = partition(tmp_path)
    writer.path(base_offset=10).rename(writer.path(base_offset=10).with_suffix(".log.swap"))
    monkeypatch.setattr("ottla.pipeline.segments.log_directories.time.sleep", lambda _: None)

    with pytest.raises(SegmentsChanged, match="start it once"):
        found_in(tmp_path)


def test_offsets_that_the_broker_noted_are_found(tmp_path: Path) -> None:
    writer = partition(tmp_path)
    writer.checkpoint("replication-offset-checkpoint", 17)
    writer.checkpoint("log-start-offset-checkpoint", 4)

    folder = found_in(tmp_path)["orders-0"]
    assert (folder.high_watermark, folder.log_start) == (17, 4)


def test_without_checkpoints_nothing_is_known_of_offsets(tmp_path: Path) -> None:
    partition(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("no checkpoint")

    folder = found_in(tmp_path)["orders-0"]
    assert (folder.high_watermark, folder.log_start) == (None, 0)
