"""A schema registry by other hands: Apicurio's, with Confluent's interface, as Maven Central has it."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.zookeeper.apache_server import free_port
from peers.processes import Process

VERSION = "2.6.13.Final"
START_S = 180.0
_NAME = "apicurio-registry-app"


def installed() -> Path:
    """Return the runnable jar, downloaded by Maven and unpacked once beside its cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cache = home / "ottla-peers" / f"apicurio-{VERSION}"
    runner = cache / f"{_NAME}-{VERSION}-runner.jar"
    if not runner.exists():
        cache.mkdir(parents=True, exist_ok=True)
        artifact = f"io.apicurio:{_NAME}:{VERSION}:tar.gz:all"
        get = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"]
        subprocess.run(get, check=True, timeout=900)
        copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={cache}"]
        subprocess.run(copy, check=True, timeout=900, cwd=cache)
        with tarfile.open(cache / f"{_NAME}-{VERSION}-all.tar.gz") as archive:
            archive.extractall(cache, filter="data")
    return runner


@contextmanager
def apicurio_registry(folder: Path) -> Iterator[str]:
    """Run a registry that keeps its schemas in memory; return the address of Confluent's interface."""
    port = free_port()
    command = [
        "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dquarkus.http.port={port}",
        "-Dquarkus.http.host=127.0.0.1", "-jar", str(installed()),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with Process(command, folder / "apicurio.out") as process:
        process.wait_for_port(port, START_S)
        _wait_for(f"{url}/subjects", process)
        yield url


def _wait_for(url: str, process: Process) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                json.load(answer)
                return
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.2)
    raise RuntimeError(f"the registry does not answer:\n{process.last_words()}")
