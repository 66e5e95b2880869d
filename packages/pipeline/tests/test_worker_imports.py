"""Each Python worker that Spark starts imports what it needs, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest

PLANNED = "import pyspark_ottla"
WRITTEN = "import ottla.pipeline.sink.spark_writers"
READ = "import ottla.pipeline.source.readers"


def imported_by(statement: str) -> set[str]:
    """Return the modules of this project that a new process has after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True
    )
    return {name for name in done.stdout.split() if name.startswith("ottla.")}


@pytest.mark.parametrize(
    ("statement", "needless"),
    [
        (PLANNED, "ottla.client"),
        (PLANNED, "ottla.consumer"),
        (PLANNED, "ottla.producer"),
        (WRITTEN, "ottla.consumer"),
        (WRITTEN, "ottla.pipeline.source"),
        (WRITTEN, "ottla.pipeline.sink.exactly_once"),
        (READ, "ottla.producer"),
    ],
)
def test_a_worker_does_not_import_what_its_step_does_not_need(statement: str, needless: str) -> None:
    found = imported_by(statement)
    assert found
    assert not [name for name in found if name == needless or name.startswith(f"{needless}.")]


def test_a_worker_that_writes_has_its_producer_before_its_first_row() -> None:
    assert "ottla.producer.producer" in imported_by(WRITTEN)
