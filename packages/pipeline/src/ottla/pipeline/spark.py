"""Spark for pipelines: the Java that it runs on, and one session, configured for our data sources."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST = 17
_VERSION = re.compile(r'version "(\d+)')
_NEEDED = "jdk.incubator.vector"
"""A module that Spark needs at its start; a reduced Java may not have it."""

_COMMANDS = {
    "debian": "sudo apt install default-jre-headless",
    "fedora": "sudo dnf install java-21-openjdk-headless",
    "rhel": "sudo dnf install java-21-openjdk-headless",
    "suse": "sudo zypper install java-21-openjdk-headless",
    "arch": "sudo pacman -S jre21-openjdk-headless",
    "alpine": "sudo apk add openjdk21-jre-headless",
    "Darwin": "brew install openjdk@21",
    "Windows": "winget install EclipseAdoptium.Temurin.21.JRE",
}


class NoJava(PipelineError):
    """There is no Java that Spark can run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: its program and its version."""

    program: Path
    version: int

    @property
    def home(self) -> Path:
        """The folder for JAVA_HOME."""
        return self.program.resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Tried:
    """A program that was tried, and its answer."""

    program: Path
    version: int | None
    """None: the program failed, or lacks a required module."""


def find_java(
    environment: Mapping[str, str] | None = None, ask: Callable[[Path], int | None] | None = None
) -> Java:
    """Return the first Java of JAVA_HOME and PATH that is new enough. Raises NoJava with install advice."""
    tried = []
    for program in _programs(os.environ if environment is None else environment):
        version = (ask or version_of)(program)
        if version is not None and version >= LEAST:
            return Java(program, version)
        tried.append(Tried(program, version))
    raise NoJava(_advice(tried))


def _programs(environment: Mapping[str, str]) -> Iterator[Path]:
    name = "java.exe" if os.name == "nt" else "java"
    if home := environment.get("JAVA_HOME"):
        yield Path(home, "bin", name)
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)


def version_of(program: Path) -> int | None:
    """Return the version of a Java; None if it fails or lacks a module that Spark needs."""
    try:
        done = subprocess.run(
            [program, f"--add-modules={_NEEDED}", "-version"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode:  # Java 8 does not know the option: ask only for its version
            done = subprocess.run(
                [program, "-version"], capture_output=True, text=True, timeout=30, check=True
            )
            found = _VERSION.search(done.stderr)
            return int(found[1]) if found and int(found[1]) < LEAST else None
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr)
    return int(found[1]) if found else None


def _advice(tried: list[Tried]) -> str:
    said = "; ".join(f"{java.program} {_why(java)}" for java in tried) or "none was found"
    install = install_command(platform.system(), _distribution())
    return f"Spark needs Java {LEAST} or newer ({said}): {install}, or set JAVA_HOME to one"


def _why(tried: Tried) -> str:
    if tried.version is None and not tried.program.exists():
        return "cannot be run: there is no such file"
    if tried.version is None:
        return f"cannot be run or has no {_NEEDED}"
    return f"is Java {tried.version}"


def install_command(system: str, distribution: tuple[str, ...]) -> str:
    """Return the command that installs a Java, for a system and the names of a distribution."""
    for name in (*distribution, system):
        if name in _COMMANDS:
            return _COMMANDS[name]
    return "install OpenJDK 21 from https://adoptium.net"


def _distribution() -> tuple[str, ...]:
    """Return the names of this Linux distribution and of those it is based on."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release.get("ID", ""), *release.get("ID_LIKE", "").split())


_ENDING_S = 2.0
"""A process that was killed closes its connections shortly before it ends."""
_QUIET = Path(__file__).with_name("log4j2.properties")

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Without it, stopping a query waits without limit for a batch that does not end.
    "spark.sql.streaming.stopTimeout": "60s",
    # A replayed batch replaces its own folders and leaves all others alone.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # With Spark's default, other readers of Parquet would take timestamps as having no time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}

_LOCAL: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # State is small and cores are few: 200 shuffle partitions, the default, would only write many small
    # files.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}


def settings_for(given: Mapping[str, Any], *, has_master: bool) -> dict[str, str]:
    """Return the settings of a session: the given ones, over defaults for the master."""
    wanted = {_name(name): _text(value) for name, value in given.items()}
    if not has_master:
        # Retry a failed task, as on a cluster: its Python worker may have been killed.
        wanted.setdefault("spark.master", "local[*,4]")
    local = _LOCAL if wanted.get("spark.master", "").startswith("local") else {}
    settings = {**DEFAULTS, **local, **wanted}
    quiet = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
    more = settings.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in more:
        settings["spark.driver.extraJavaOptions"] = f"{quiet} {more}".strip()
    return settings


def spark_session(name: str, given: Mapping[str, Any]) -> SparkSession:
    """Start Spark, or return the running session. Raises NoJava."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Otherwise Spark starts its workers with the first python3 on PATH instead of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Each worker would warn that pandas 3 is not fully supported yet; the parts in use here are tested.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:PySpark does not yet fully support pandas:FutureWarning")
    with pandas_of_any_age(), _same_ctrl_c():
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name)
        for setting, value in settings_for(given, has_master="MASTER" in os.environ).items():
            builder = builder.config(setting, value)
        return builder.getOrCreate()


@contextmanager
def pandas_of_any_age() -> Iterator[None]:
    """Within this context, suppress Spark's warning about pandas 3: the parts in use here are tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        yield


@contextmanager
def _same_ctrl_c() -> Iterator[None]:
    """Keep the handler of Ctrl+C: Spark would raise in the middle of a batch that can still finish."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def is_running() -> bool:
    """Whether this process has a session already, which the pipeline must not stop."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def has_ended(session: SparkSession) -> bool:
    """Whether the Java that this process started has ended; waits a moment for its end."""
    gateway = getattr(session.sparkContext, "_gateway", None)
    java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if java is None:
        return False
    try:
        java.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _name(given: str) -> str:
    return given if given.startswith("spark.") else f"spark.{given}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
