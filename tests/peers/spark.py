"""Spark on this machine, small and quick to start, for tests and benchmarks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import is_slow_start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LEAST_JAVA = 17
_STARTS = 5
SPARK = "4.3.0"

_VERSION = re.compile(r'version "(\d+)')
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Less compilation and one collector thread start in half the time on two cores.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def missing_java() -> str | None:
    """Return what this machine lacks for Spark, or None."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return f"Spark needs Java {LEAST_JAVA} or newer (Debian: openjdk-17-jre-headless)"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    found = _VERSION.search(done.stderr)
    if found is None or int(found[1]) < LEAST_JAVA:
        return (
            f"Spark needs Java {LEAST_JAVA} or newer, and {java} is older (Debian: openjdk-17-jre-headless)"
        )
    return None


def small_driver(folder: Path) -> dict[str, str]:
    """Return variables for the environment of another process, by which its Spark is a small one."""
    conf = folder / "conf"
    conf.mkdir()
    settings = {**_SETTINGS, "spark.local.dir": str(folder / "local")}
    (conf / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings.items())
    )
    return {"SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def spark_session(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start Spark with two task threads, and stop it; `folder` takes the files that it writes by itself."""
    from pyspark.sql import SparkSession

    # Otherwise Spark starts its workers with the first python3 on PATH instead of this one.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("ottla")
    own = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    for name, value in {**_SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def with_patience(run: Callable[[], object]) -> None:
    """Run a query to its end; repeat it if a Python worker did not start within Spark's ten seconds."""
    for _ in range(_STARTS):
        try:
            run()
            return
        except Exception as error:
            if not is_slow_start(str(error)):
                raise
    raise AssertionError("this machine is too busy for a Python of Spark's to start in ten seconds")


@dataclass
class Stream:
    """A query that collects rows, batch by batch; it can be restarted at its checkpoint."""

    rows: Callable[[], DataFrame]
    checkpoint: Path
    trigger: Mapping[str, Any]
    batches: dict[int, list[Row]] = field(default_factory=dict)
    query: StreamingQuery | None = None
    collect: Callable[[DataFrame, int], None] = field(init=False)

    def __post_init__(self) -> None:
        self.collect = self._collect

    def start(self) -> StreamingQuery:
        """Start, at the checkpoint if there is one."""
        writer = self.rows().writeStream.option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(**self.trigger).foreachBatch(self.collect).start()
        return self.query

    def _collect(self, batch: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = batch.collect()

    def run(self) -> list[Row]:
        """Run until the query ends by itself; return all its rows."""
        with_patience(lambda: self.start().awaitTermination())
        return self.all_rows

    def read(self) -> list[Row]:
        """Wait until all existing records are read; return all rows."""
        assert self.query is not None, "start the query first"
        self.query.processAllAvailable()
        return self.all_rows

    def failure(self) -> str:
        """Wait until the query fails, and return what it says."""
        try:
            self.read()
        except Exception as error:
            return " ".join(str(error).split())
        raise AssertionError("the query did not fail")

    def break_off(self) -> None:
        """Make the query fail in its next batch, before that is done."""
        keep, self.collect = self.collect, _break_off
        self.start()
        assert "broken off" in self.failure()
        self.collect = keep

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all batches."""
        return [row for rows in self.batches.values() for row in rows]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each batch."""
        return [len(rows) for rows in self.batches.values()]

    def stop(self) -> None:
        """Stop the query."""
        if self.query is not None:
            self.query.stop()


def _break_off(batch: DataFrame, batch_id: int) -> None:
    """Read a batch, and fail before it is done."""
    batch.collect()
    raise RuntimeError("broken off")
