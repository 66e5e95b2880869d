"""Messages between the driver of a mirror on Spark and its tasks."""

from __future__ import annotations

import base64
import json
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import OffsetMapping
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.pipeline.jobs.mirroring.spark_task import Copied, CopyWriter, Task
from ottla.pipeline.jobs.state_files import StateFile
from ottla.protocol.topics import TopicPartition

EMPTY = Task(ClusterPair("m", {}, {}, "mapping"), OffsetMapping("m"), 0)


class _Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_what_all_tasks_copied_is_kept_for_the_driver(tmp_path: Path) -> None:
    counts = StateFile(tmp_path / "places" / "copied.json")
    options = {"secret.task": EMPTY.to_option(), "counts": str(counts.path)}
    writer = pickle.loads(pickle.dumps(CopyWriter(options)))  # as Spark passes it to its workers
    for messages, copied in (([Copied(3), Copied(0), Copied(4)], 7), ([], 0)):
        writer.commit(messages)
        assert counts.read() == {"copied": copied}


def test_a_task_is_the_same_in_the_worker() -> None:
    known = OffsetMapping("m")
    for number, sure in ((0, None), (12, 7)):
        partition = TopicPartition("orders", number)
        known.spans[partition] = Spans([Span(5, 3, 2), Span(9, 5, 2**40)])
        known.set_sure(partition, sure)
    clusters = ClusterPair(
        "m", {"bootstrap.servers": "a:1"}, {"bootstrap.servers": "b:2", "acks": "all"}, "mapping",
        rename="dc1.{topic}", transactional=True, ignored=frozenset({"b", "a"}),
    )  # fmt: skip

    found = Task.from_option(Task(clusters, known, 4).to_option())

    assert (found.clusters, found.next_offset) == (clusters, 4)
    assert found.known.mirror == "m"
    assert {each: list(spans) for each, spans in found.known.spans.items()} == {
        each: list(spans) for each, spans in known.spans.items()
    }
    assert [found.known.sure(each) for each in known.spans] == [None, 7]


def test_an_option_runs_no_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = base64.b64encode(pickle.dumps(_Touch(made))).decode()

    with suppress(OptionError):
        CopyWriter({"secret.task": text, "counts": str(tmp_path / "counts")})

    assert not made.exists()


@pytest.mark.parametrize("change", [{"clusters": {}}, {"known": []}, {"next_offset": None}])
def test_another_option_is_refused(change: dict[str, object]) -> None:
    found = json.loads(EMPTY.to_option()) | change
    with pytest.raises(OptionError, match=r"option 'secret\.task' is not the task of a mirror"):
        Task.from_option(json.dumps(found))
