"""Results that the tasks of a mirror on Spark report to the driver."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import OffsetMapping
from ottla.pipeline.jobs.mirroring.spark_task import Copied, CopyWriter, Task
from ottla.pipeline.jobs.state_files import StateFile


def test_what_all_tasks_copied_is_kept_for_the_driver(tmp_path: Path) -> None:
    counts = StateFile(tmp_path / "places" / "copied.json")
    task = Task(ClusterPair("m", {}, {}, "mapping"), OffsetMapping("m"), 0)
    text = base64.b64encode(pickle.dumps(task)).decode()
    writer = pickle.loads(pickle.dumps(CopyWriter({"task": text, "counts": str(counts.path)})))
    for messages, copied in (([Copied(3), Copied(0), Copied(4)], 7), ([], 0)):
        writer.commit(messages)
        assert counts.read() == {"copied": copied}
