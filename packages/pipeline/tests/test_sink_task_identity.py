"""Identities of tasks that are repeated."""

from __future__ import annotations

import pytest

from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.sink.tasks import BATCH_ID, QUERY_ID, TaskIdentity, batch_task, stream_task

NOWHERE: dict[str, str] = {}
STREAM = {QUERY_ID: "q", BATCH_ID: "7"}


def test_a_place_in_a_stream_is_that_of_query_batch_and_task() -> None:
    task = stream_task(STREAM.get, 3)

    assert task == TaskIdentity("q", 7, 3)
    assert task.key == TaskIdentity("q", 8, 3).key != TaskIdentity("q", 8, 4).key
    assert task.transactional_id("ottla") == "ottla-q-3"
    assert str(task) == "partition 3 of batch 7 of query q"


def test_outside_of_a_stream_there_is_no_such_place() -> None:
    with pytest.raises(PipelineError, match="for tasks of a stream"):
        stream_task({QUERY_ID: "q"}.get, 3)


def test_a_write_has_its_own_name_or_a_random_one() -> None:
    assert batch_task(NOWHERE.get, 1, None, "random") == TaskIdentity("random", 0, 1)
    assert batch_task(NOWHERE.get, 1, "bills", "random") == TaskIdentity("bills", 0, 1)


def test_a_write_of_a_streams_batch_has_the_streams_place() -> None:
    assert batch_task(STREAM.get, 1, "bills", "random") == TaskIdentity("q/bills", 7, 1)
    with pytest.raises(OptionError, match=r"foreachBatch needs option 'write\.id'"):
        batch_task(STREAM.get, 1, None, "random")
