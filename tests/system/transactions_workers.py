"""Workers that copy with transactions: each a process that is started again whenever it ends."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from peers.client_access import OPEN, Access
from peers.java import compile_program
from peers.maven import KAFKA_3, KAFKA_4, kafka_clients

KINDS: Final = ("java", "java-4", "confluent", "kafka-python", "aiokafka", "ottla")
JAVA: Final = {"java": KAFKA_3, "java-4": KAFKA_4}
"""The versions of Apache's Java client: that of Kafka 4 has transactions of version 2, as ours has."""
ALONE: Final = frozenset({"aiokafka"})
"""Clients that commit offsets in the name of a group, not of its member: two would not be fenced."""
HANGING: Final = frozenset({"kafka-python", "confluent"})
HANGING_S: Final = 45.0
HERE: Final = Path(__file__).resolve().parent
STOP_BOUND_S: Final = 90.0
_AGAIN_S: Final = 0.5


class Worker:
    """One worker; what all its processes have printed is in one file."""

    def __init__(self, kind: str, number: int, command: Sequence[str], output: Path) -> None:
        self.kind = kind
        self.name = f"{kind}-{number}"
        self.output = output
        self.starts = 0
        self.hung = 0
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_held = False
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            self._start()

    def _start(self) -> None:
        with self.output.open("ab") as output:
            output.write(b"started\n")
            output.flush()
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        self.starts += 1
        self._is_held = False

    def tend(self) -> None:
        """Start it again if it has ended by itself, or hangs as kafka-python and librdkafka do.

        kafka-python 3.0.12 may wait for ever in `send_offsets_to_transaction` after a broker has died, and
        until its timeout in `init_transactions`, on brokers of Apache Kafka too: its sender drops the request
        that it has taken from its queue when `await_ready` raises, and never settles it (state of such a
        process: nothing queued or in flight, no error). So may librdkafka, past its timeout, if the group's
        coordinator was missing in the metadata for a while (confluentinc/librdkafka, issues 5511 and 5456).
        """
        with self._lock:
            if self.kind in HANGING and self._process is not None and not self._is_held and self._hangs():
                self.hung += 1
                self._process.kill()
                self._process.wait(30)
            if self._process is not None and self._process.poll() is not None and not self._is_held:
                self._start()

    def _hangs(self) -> bool:
        is_quiet = time.time() - self.output.stat().st_mtime > HANGING_S
        return is_quiet and (self.is_amid() or self.is_initializing())

    def kill(self) -> None:
        """Kill it with SIGKILL; it is away until `start`."""
        with self._lock:
            self._is_held = True
            if self._process is not None:
                self._process.kill()
                self._process.wait(30)

    def terminate(self) -> None:
        with self._lock:
            self._is_held = True
            if self._process is not None:
                self._process.terminate()

    def wait(self) -> str:
        """Wait for the end of a terminated one; return what is wrong with it."""
        assert self._process is not None
        try:
            status = self._process.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            return f"{self.name} did not end within {STOP_BOUND_S:g} s of SIGTERM: {self.lines()[-2:]}"
        # The JVM ends with 143 after SIGTERM, however well it went.
        return "" if status in (0, 143) else f"{self.name} ended with status {status}: {self.lines()[-2:]}"

    def lines(self) -> list[str]:
        return self.output.read_text(errors="replace").splitlines() if self.output.exists() else []

    def commits(self) -> int:
        return sum(line.startswith("committed ") for line in self.lines())

    def is_amid(self) -> bool:
        """Whether a transaction is open, as far as it has said."""
        return self._last_line().startswith("begun ")

    def is_initializing(self) -> bool:
        """Whether it waits for `init_transactions`, as far as it has said."""
        return self._last_line() == "initializing"

    def _last_line(self) -> str:
        return (self.lines() or [""])[-1]


class Workers:
    """The workers of all kinds; while entered, those that end are started again."""

    def __init__(
        self, folder: Path, servers: str, source: str, partitions: int, *, each: int, broken: bool = False,
        access: Access = OPEN,
    ) -> None:  # fmt: skip
        self.all: list[Worker] = []
        self._folder = folder
        self._common = (servers, source, partitions)
        self._each = each
        self._broken = broken
        self._access = access
        self._over = threading.Event()
        self._tending = threading.Thread(target=self._tend, daemon=True)

    def __enter__(self) -> Self:
        self._tending.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_tending()
        for worker in self.all:
            with suppress(OSError):
                worker.kill()

    def add(self, kind: str, session_ms: int) -> None:
        """Start the workers of a kind; their group is `g-KIND`, their target `copy-KIND`."""
        for number in range(1, 1 + (1 if kind in ALONE else self._each)):
            command = self._command(kind, f"{kind}-{number}", session_ms)
            worker = Worker(kind, number, command, self._folder / f"worker-{kind}-{number}.out")
            worker.start()
            self.all.append(worker)

    def of(self, kind: str) -> list[Worker]:
        return [each for each in self.all if each.kind == kind]

    def commits(self, kind: str) -> int:
        return sum(each.commits() for each in self.of(kind))

    def stop(self) -> list[str]:
        """Ask all to finish; return those that did not.

        One that hangs in `init_transactions` would end with that failure: it is started again before.
        """
        initialized = wait_for("init_transactions", self._are_initialized, 3 * HANGING_S)
        self._stop_tending()
        for each in self.all:
            each.terminate()
        return [wrong for wrong in (initialized, *(each.wait() for each in self.all)) if wrong]

    def _are_initialized(self) -> bool:
        return not any(each.is_initializing() for each in self.all)

    def failures(self, kind: str) -> Counter[str]:
        """Return how often workers of a kind have ended with an error, by its name or confluent's code."""
        lines = (line for each in self.of(kind) for line in each.lines() if line.startswith("failed "))
        codes = ((re.search(r"code=(\w+)", line), line.split()[1]) for line in lines)
        return Counter(code[1] if code else name for code, name in codes)

    def _command(self, kind: str, transactional_id: str, session_ms: int) -> list[str]:
        servers, source, partitions = self._common
        target, group = f"copy-{kind}", f"g-{kind}"
        if kind in JAVA:
            login = self._access.java_options(self._folder / "worker.properties")
            arguments = (servers, source, target, group, transactional_id, str(session_ms), *login)
            return java_command(*arguments, version=JAVA[kind])
        return [
            sys.executable, str(HERE / "transactions_worker.py"), "--kind", kind, "--servers", servers,
            "--source", source, "--target", target, "--group", group, "--id", transactional_id,
            "--partitions", str(partitions), "--session-ms", str(session_ms),
            *(["--commit-outside"] if self._broken else []),
            *self._access.options(self._folder / "worker.access"),
        ]  # fmt: skip

    def _tend(self) -> None:
        while not self._over.wait(_AGAIN_S):
            for worker in self.all:
                worker.tend()

    def _stop_tending(self) -> None:
        self._over.set()
        self._tending.join(30)


def java_command(*arguments: str, version: str = KAFKA_3) -> list[str]:
    """Return the command of the worker of a version of Apache's Java client."""
    program = HERE.parent / "interop" / "java" / "TransactionalCopier.java"
    class_path = kafka_clients(version)
    classes = compile_program(program, class_path)
    return [
        "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{classes}:{class_path}", program.stem,
        *arguments,
    ]  # fmt: skip


def wait_for(what: str, is_so: Callable[[], bool], within_s: float) -> str:
    """Wait until `is_so()`; return a complaint when that takes too long."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            return f"{what} did not happen within {within_s:g} s"
        time.sleep(0.05)
    return ""
