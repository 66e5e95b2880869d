"""librdkafka's own tests, which an npm package brings: compiled once, and run against any brokers.

`npm view @confluentinc/kafka-javascript` shows the package; its `deps/librdkafka` is the whole source.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.fetched_programs import compiled_package

PACKAGE: Final = "@confluentinc/kafka-javascript@1.10.1"
"""It has librdkafka 2.15.1, whose share consumer has tests of its own."""
SOURCE: Final = "deps/librdkafka"
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|\x1b\(B")
ROW: Final = re.compile(r"^\|\s+\S+\s+\|\s+(PASSED|FAILED|SKIPPED)", re.MULTILINE)

MARKED: Final = re.compile(r"TEST FAILURE|### Test .* failed|Assertion|SKIPPING TEST")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended: `passed`, `failed`, `skipped` or `timeout`, and its log."""

    test: str
    verdict: str
    seconds: float
    log: Path

    def complaints(self) -> list[str]:
        """Return the lines of the log that begin a failure, or give the reason of a skip."""
        lines = COLOURS.sub("", self.log.read_text(errors="replace")).splitlines()
        return [line.strip() for line in lines if MARKED.search(line)]


def compiled_tests() -> Path:
    """Return librdkafka's folder of tests with `test-runner` compiled; skips what cannot be fetched."""
    commands = [
        ["./configure", "--disable-gssapi"],
        ["make", f"-j{os.cpu_count() or 1}", "-C", "src"],
        ["make", f"-j{os.cpu_count() or 1}", "-C", "src-cpp"],
        ["make", f"-j{os.cpu_count() or 1}", "-C", "tests", "build"],
    ]
    return compiled_package(PACKAGE, SOURCE, commands, needs={"make": "make", "g++": "g++"}) / "tests"


def names(tests: Path) -> list[str]:
    """List the four digits of each test that asks a broker: not those of mock brokers and units."""
    files = {file.stem for pattern in ("0*-*.c", "0*-*.cpp") for file in tests.glob(pattern)}
    return sorted(file[:4] for file in files if not file.endswith(("_mock", "_ut")))


def run(
    tests: Path, test: str, *, servers: str, protocol: str, logs: Path, kafka: Path, timeout_s: float = 900
) -> Outcome:
    """Run one test with consumers of a group protocol, `classic` or `consumer`, in a process of its own.

    `kafka` is a folder with Kafka's scripts in `bin`.
    """
    logs.mkdir(parents=True, exist_ok=True)
    settings = logs / f"{test}.conf"  # of its own: a test reads it again for each client that it makes
    settings.write_text(
        f"metadata.broker.list={servers}\ntest.timeout.multiplier=4\ntest.topic.random=true\n"
    )
    environment = os.environ | {
        "TESTS": test, "RDKAFKA_TEST_CONF": str(settings), "TEST_KAFKA_VERSION": "4.2.0", "BROKERS": servers,
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol, "LD_LIBRARY_PATH": "../src:../src-cpp",
        "KAFKA_PATH": str(kafka),
    }  # fmt: skip
    log, started = logs / f"{test}.log", time.monotonic()
    verdict = _verdict(tests, environment, log, timeout_s)
    return Outcome(test, verdict, time.monotonic() - started, log)


def _verdict(tests: Path, environment: dict[str, str], log: Path, timeout_s: float) -> str:
    # -L: no tests of units; -K: none that librdkafka itself knows to fail; -E: no simulated networks.
    command = ["./test-runner", "-L", "-K", "-E", "-p1"]
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command, cwd=tests, env=environment, stdout=output, stderr=output, timeout=timeout_s,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
    found = ROW.findall(COLOURS.sub("", log.read_text(errors="replace")))[1:]  # the first row is of all
    if done.returncode != 0 or "FAILED" in found:
        return "failed"
    return "passed" if "PASSED" in found else "skipped"
