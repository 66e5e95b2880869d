"""Runs of jobs that need no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Job
from ottla.pipeline.jobs.progress_report import STATUS
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.state_files import StateFile

Work = Callable[[Run], None]


class Plain(Job):
    """Runs a function of the test."""

    kind: Literal["plain"] = "plain"
    work: Work

    def run(self, run: Run) -> None:
        self.work(run)


def _job(folder: Path, work: Work) -> Job:
    return Plain(name="plain", checkpoint=str(folder / "state"), work=work)


def _status(folder: Path) -> dict[str, Any]:
    return StateFile(folder / "state" / STATUS).read()


def test_what_a_job_reports_is_its_status(tmp_path: Path) -> None:
    def work(run: Run) -> None:
        run.report(0, rows=10, batch_ms=5, lag=3, counts={"copied": 10})
        run.report(1, rows=3, batch_ms=5, lag=0, counts={"copied": 3})

    seen: list[Any] = []
    Run(_job(tmp_path, work), once=True, watch=seen.append)()
    found = _status(tmp_path)
    assert (found["state"], found["kind"], found["error"]) == ("done", "plain", None)
    main = found["queries"]["main"]
    assert (main["rows"], main["lag"], main["batches"], main["counts"]) == (13, 0, 2, {"copied": 13})
    assert seen[-1] == found
    assert [each["queries"]["main"]["rows"] for each in seen if each["queries"]] == [10, 13, 13]


class Py4JError(Exception):
    """Has the name of PySpark's error after the end of Java."""


def test_how_a_run_ended_is_its_state(tmp_path: Path) -> None:
    def interrupted(run: Run) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(_job(tmp_path, interrupted))()
    assert _status(tmp_path)["state"] == "stopped"

    Run(_job(tmp_path, lambda run: run.stopping.set()), once=True)()
    assert _status(tmp_path)["state"] == "stopped", "before all was done, for all that is known"

    def without_java(run: Run) -> None:
        raise Py4JError

    with pytest.raises(PipelineError, match="Spark's Java ended"):
        Run(_job(tmp_path, without_java))()
    assert _status(tmp_path)["state"] == "failed"


def test_queries_that_begin_at_once_have_the_same_id(tmp_path: Path) -> None:
    found: set[str] = set()

    def work(run: Run) -> None:
        threads = [threading.Thread(target=lambda: found.add(run.app_id)) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(10)

    job = _job(tmp_path, work)
    Run(job)()
    assert found == {Run(job).app_id}


def test_counts_go_on_in_the_next_run(tmp_path: Path) -> None:
    for batch in (0, 1, 1):  # the last batch is repeated
        job = _job(tmp_path, lambda run, batch=batch: run.report(batch, rows=1, batch_ms=1, counts={"n": 2}))  # type: ignore[misc]
        Run(job)()
    assert _status(tmp_path)["queries"]["main"]["counts"] == {"n": 4}


def test_a_run_that_finds_nothing_leaves_the_status_where_it_was(tmp_path: Path) -> None:
    Run(_job(tmp_path, lambda run: run.report(7, rows=9, batch_ms=1, lag=2, counts={"n": 2})))()
    Run(_job(tmp_path, lambda run: run.begin()))()
    main = _status(tmp_path)["queries"]["main"]
    assert (main["batch"], main["lag"], main["counts"]) == (7, 2, {"n": 2})
    assert (main["batches"], main["rows"]) == (0, 0), "these are of the run"
    Run(_job(tmp_path, lambda run: run.report(0, rows=1, batch_ms=1, lag=0)))()
    main = _status(tmp_path)["queries"]["main"]
    assert (main["batch"], main["lag"], main["rows"]) == (0, 0, 1)


def test_a_damaged_status_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / STATUS).write_text("{")
    Run(_job(tmp_path, lambda run: run.begin()))()
    assert _status(tmp_path)["state"] == "done"


def test_a_failure_is_in_the_status(tmp_path: Path) -> None:
    def work(run: Run) -> None:
        raise PipelineError("the lake\nis dry")

    with pytest.raises(PipelineError):
        Run(_job(tmp_path, work))()
    assert _status(tmp_path)["state"] == "failed"
    assert _status(tmp_path)["error"] == "the lake is dry"


def test_a_failure_is_not_hidden_by_a_status_that_cannot_be_written(tmp_path: Path) -> None:
    def work(run: Run) -> None:
        # As on a full disk: no new file beside the old one.
        (tmp_path / "state" / f".{STATUS}.new").mkdir()
        raise PipelineError("no space for the lake")

    with pytest.raises(PipelineError, match="no space for the lake"):
        Run(_job(tmp_path, work))()


def test_stopping_is_no_failure(tmp_path: Path) -> None:
    Run(_job(tmp_path, lambda run: run.stopping.set()))()
    assert _status(tmp_path)["state"] == "stopped"


def test_a_job_that_waits_says_that_it_lives_and_what_it_did(tmp_path: Path) -> None:
    seen: list[Any] = []

    def work(run: Run) -> None:
        run.report(0, rows=10, batch_ms=5, counts={"copied": 10})
        said, deadline = [_status(tmp_path)], time.monotonic() + 60
        while len(said) < 3:
            assert time.monotonic() < deadline, "it said nothing more"
            time.sleep(0.02)
            now = _status(tmp_path)
            if now["updated_s"] > said[-1]["updated_s"]:
                said.append(now)
        seen.extend(said)

    Run(_job(tmp_path, work))()
    assert [each["state"] for each in seen] == ["running"] * 3
    assert [each["rows"] for each in seen[-1]["queries"].values()] == [10]
    assert _status(tmp_path)["state"] == "done", "nothing is said behind the end"


def test_a_checkpoint_belongs_to_one_run(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def work(run: Run) -> None:
        begun.set()
        assert end.wait(30)

    other = threading.Thread(target=Run(_job(tmp_path, work)))
    other.start()
    assert begun.wait(30)
    try:
        with pytest.raises(PipelineError, match="plain is already running"):
            Run(_job(tmp_path, lambda run: None))()
        assert _status(tmp_path)["state"] == "running", "what was refused says nothing about the other"
    finally:
        end.set()
        other.join()
    Run(_job(tmp_path, lambda run: None))()


def test_places_of_its_own_are_kept(tmp_path: Path) -> None:
    Run(_job(tmp_path, lambda run: run.state("main").write({"at": 7})))()
    found = []
    Run(_job(tmp_path, lambda run: found.append(run.state("main").read())))()
    assert found == [{"at": 7}]


def test_batches_of_another_checkpoint_are_others(tmp_path: Path) -> None:
    one, other = (Run(_job(tmp_path / name, lambda run: None)) for name in ("one", "other"))
    assert one.batch_key("main", 3) == one.batch_key("main", 3)
    assert one.batch_key("main", 3) != other.batch_key("main", 3)
    assert one.batch_key("main", 3) != one.batch_key("side", 3)
