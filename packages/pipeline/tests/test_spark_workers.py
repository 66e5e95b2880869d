"""Spark's workers report errors by their message, and collect only the garbage of their tasks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.spark_workers import exclude_modules_from_collections, message_first


def test_what_a_first_task_left_is_excluded_from_collections_once() -> None:
    gc.unfreeze()
    exclude_modules_from_collections.cache_clear()
    try:
        exclude_modules_from_collections()
        count = gc.get_freeze_count()
        exclude_modules_from_collections()
        assert 1_000 < gc.get_freeze_count() <= count, "objects of later tasks are collected"
    finally:
        gc.unfreeze()


@message_first
class Reader:
    """Fails as a data source does, at once or between rows."""

    def plan(self) -> int:
        """Fail with an error of ours."""
        raise OptionError("option 'topic' is missing")

    def read(self) -> Iterator[int]:
        """Fail after a row."""
        yield 1
        raise OptionError("option 'topic' is missing")

    def divide(self) -> float:
        """Fail with an error that only a bug raises."""
        return 1 / 0


@pytest.mark.parametrize(
    ("call", "has_traceback"), [("plan()", False), ("read()", False), ("divide()", True)]
)
def test_only_the_error_of_a_bug_is_reported_with_its_traceback(call: str, has_traceback: bool) -> None:
    # A process that is started as a module of Spark, as its workers are.
    program = f"""
import io, sys, types
from importlib.machinery import ModuleSpec
import pyspark.util
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_spark_workers import Reader
sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
out = io.BytesIO()
try:
    list(Reader().{call})
except Exception as error:
    pyspark.util.handle_worker_exception(error, out)
print(out.getvalue()[8:].decode())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("Traceback") is has_traceback
    if not has_traceback:
        assert done.stdout.strip() == "ottla.pipeline.errors.OptionError: option 'topic' is missing"


def test_a_program_that_is_no_worker_of_spark_keeps_its_environment() -> None:
    before = dict(os.environ)
    with pytest.raises(OptionError):
        Reader().plan()
    assert dict(os.environ) == before
