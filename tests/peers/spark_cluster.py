"""A standalone cluster of Spark on this machine: a master and workers, small, from the jars of PySpark."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 120.0
"""How long a process may take to say that it is ready, on a busy machine."""
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_DRIVER_MB = 640
SMALL = {
    "driver.host": "127.0.0.1",
    "driver.bindAddress": "127.0.0.1",
    "driver.memory": "512m",
    "executor.memory": "512m",
    "sql.shuffle.partitions": "2",
}
"""Settings of an application that fits on it."""
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster."""

    url: str
    """The address of the master: `spark://host:port`."""
    folders: tuple[Path, ...]
    """The folder of each worker, in which every application has one."""

    def workers_of_last_application(self) -> int:
        """Return how many workers ran an executor of the application that was started last."""
        applications = sorted({each.name for folder in self.folders for each in folder.glob("app-*")})
        return sum((folder / applications[-1]).is_dir() for folder in self.folders)


def declared_on(cluster: SparkCluster) -> str:
    """Return the section of a declaration that runs the pipeline on the cluster."""
    settings = {"master": cluster.url, **SMALL}
    return "\n".join(["[spark]", *(f'{name} = "{value}"' for name, value in settings.items())])


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Start a master and workers with one core and 600 MB each; stop them.

    Each worker has an address of its own, for Spark starts no second copy of a task on the host of the first.
    """
    with ExitStack() as stack:
        master = ("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        said = stack.enter_context(_started(folder / "master", *master, ready="Starting Spark master at "))
        url = said.split()[-1]
        folders = tuple(folder / f"worker-{number}" for number in range(workers))
        for number, each in enumerate(folders, 1):
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(each), "--webui-port", "0")
            worker = ("worker.Worker", "--host", f"127.0.0.{number}", *size, url)
            stack.enter_context(_started(each, *worker, ready="Successfully registered with master"))
        yield SparkCluster(url, folders)


@contextmanager
def connect_server(cluster: SparkCluster, folder: Path, port: int) -> Iterator[str]:
    """Start a Connect server whose tasks run on the cluster; yield its address."""
    settings = {**SMALL, "connect.grpc.binding.address": "127.0.0.1", "connect.grpc.binding.port": str(port)}
    settings |= {"ui.enabled": "false", "sql.warehouse.dir": str(folder / "warehouse")}
    confs = [word for name, value in settings.items() for word in ("--conf", f"spark.{name}={value}")]
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    words = ("SparkSubmit", "--master", cluster.url, *confs, *server)
    with _started(folder, *words, ready="Spark Connect server started at", heap_mb=_DRIVER_MB):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _started(folder: Path, program: str, *arguments: str, ready: str, heap_mb: int = 192) -> Iterator[str]:
    """Start a program of Spark's; yield the line of its log that says it is ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    folder.mkdir()
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin{os.pathsep}{os.environ['PATH']}")
    options = (f"-Xmx{heap_mb}m", *_JAVA, *_opens())
    command = [java or "java", *options, "-cp", f"{home}/jars/*", f"{_DEPLOY}.{program}", *arguments]
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder)}
    own["SPARK_SCALA_VERSION"] = _scala_version(home)
    own["PYSPARK_PYTHON"] = sys.executable
    process = subprocess.Popen(
        command, env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reading = threading.Thread(target=_pass_on, args=(process, lines))
    reading.start()
    try:
        yield _line_with(ready, lines)
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        reading.join(LIMIT_S)
        if process.stderr is not None:
            process.stderr.close()


def _scala_version(home: Path) -> str:
    """Return the version that a worker needs to find the jars of its executors, as Spark's scripts do."""
    (library,) = (home / "jars").glob("scala-library-*.jar")
    return ".".join(library.stem.rpartition("-")[2].split(".")[:2])


def _opens() -> list[str]:
    """Return the options for Java with which Spark starts its own programs."""
    packages = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch", "java.net")
    return [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in packages]


def _pass_on(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.put(line.strip())
    lines.put(None)


def _line_with(words: str, lines: queue.SimpleQueue[str | None]) -> str:
    said: list[str] = []
    while (line := lines.get(timeout=LIMIT_S)) is not None:
        if words in line:
            return line
        said.append(line)
    raise AssertionError("\n".join(said))
