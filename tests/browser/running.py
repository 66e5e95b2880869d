"""Programs behind the tests of pages: clusters of each kind, a console beside them, and a browser."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from browser.demo import fill, run
from ottla.broker.testing import BrokerCluster, BrokerProcess
from peers.json_service import Answer, Asked, Handler, SmallRegistry, json_service
from peers.processes import free_port
from peers.three_brokers import ThreeBrokers

BOUND_MS: Final = 60_000
"""How long anything may take. A page updates each five seconds."""
KINDS: Final = ("ottla", "three", "kafka-3.9", "kafka-4.4")
"""One broker of ours; three of ours, and of Apache Kafka with ZooKeeper and with KRaft."""
OF_JAVA: Final = frozenset({"kafka-3.9", "kafka-4.4"})
CHROMIUM: Final = ("/usr/bin/chromium", "/usr/bin/chromium-browser")
SETTINGS: Final = {
    # Leaders stay where a test puts them, and a transaction may hang.
    "auto.leader.rebalance.enable": "false", "transaction.partition.verification.enable": "false",
}  # fmt: skip


@dataclass(frozen=True)
class Running:
    """A cluster that runs: its kind, its brokers' addresses, and what a test may do to it."""

    kind: str
    servers: str
    cluster: Any


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Running]:
    """Run a cluster of a kind, filled with the demo."""
    made: dict[str, Callable[[], Any]] = {
        "ottla": lambda: BrokerProcess(folder / "data", SETTINGS),
        "three": lambda: BrokerCluster(folder / "data", SETTINGS),
        "kafka-3.9": lambda: ThreeBrokers(kind, folder / "kafka", SETTINGS),
        "kafka-4.4": lambda: ThreeBrokers(kind, folder / "kafka", SETTINGS),
    }
    with made[kind]() as cluster:
        run(fill(cluster.bootstrap_servers, 1 if kind == "ottla" else 3))
        yield Running(kind, cluster.bootstrap_servers, cluster)


class ConsoleProcess:
    """`ottla console` for one cluster, which it calls `local`; it may be ended and started again."""

    def __init__(self, servers: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder
        self._command = [
            sys.executable, "-m", "ottla.console", "--bootstrap-server", servers,
            "--listen", f"127.0.0.1:{self.port}", "--history", str(folder / "console.sqlite"), *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of its first page, without the last slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, and return once it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"XDG_STATE_HOME": str(self.folder), "OTTLA_PROFILES": str(self.folder / "profiles.toml")}
        with (self.folder / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, **state}
            )
        until(self._answers, lambda: (self.folder / "console.log").read_text())
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "console.log").read_text())
        try:
            urllib.request.urlopen(f"{self.url}/health", timeout=10).close()
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def until(condition: Any, words: Any = lambda: "") -> None:
    """Return once a condition holds; there is no event for what another process does."""
    deadline = monotonic() + BOUND_MS / 1_000
    while not condition():
        assert monotonic() < deadline, f"it did not come true: {words()}"
        sleep(0.05)


def chromium() -> str | None:
    """Return Debian's Chromium, None where it is not installed."""
    return next((path for path in CHROMIUM if Path(path).exists()), None)


def problems_of(page: Any) -> list[str]:
    """Return the list to which errors of a page's scripts and of its security policy are written."""
    found: list[str] = []

    def heard(message: Any) -> None:
        # A page of an error has a status of one; the browser notes that as an error, too.
        statuses = r"status of (400|401|403|404|429|502|503)"
        if message.type == "error" and not re.search(statuses, message.text):
            found.append(message.text)

    def lost(url: str, reason: str) -> None:
        if "ERR_ABORTED" not in reason:  # as requests are that the next page finds under way
            found.append(f"{url}: {reason}")

    page.on("console", heard)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("requestfailed", lambda request: lost(request.url, str(request.failure)))
    return found


AXE_RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def violations(page: Any, axe: str, rules: Sequence[str] = AXE_RULES) -> Sequence[str]:
    """Return what axe-core finds wrong with a page, one line for each rule, with the first places."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe)  # not as a script of the page, whose policy would refuse it
    result = page.evaluate(
        "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})",
        list(rules),
    )
    return [
        f"{found['id']}: {found['help']}: " + " | ".join(node["html"][:160] for node in found["nodes"][:3])
        for found in result["violations"]
    ]


NARROW: Final = {"width": 390, "height": 844}
USUAL: Final = {"width": 1_280, "height": 900}
WIDE: Final = {"width": 2_560, "height": 1_440}
ZOOMED: Final = {"width": USUAL["width"] // 2, "height": USUAL["height"] // 2}
"""A window of the usual size at 200 %: as many pixels of CSS as half of it has."""


def flaws(page: Any, axe: str) -> list[str]:
    """Return what keeps people from using an open page: light and dark, and at all widths."""
    found = [f"light: {line}" for line in violations(page, axe)]
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    found += [f"dark: {line}" for line in violations(page, axe)]
    for size in (NARROW, ZOOMED, WIDE):
        page.set_viewport_size(size)
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{wider} pixels wider than {size['width']}"] if wider > 0 else []
        found += [f"narrow: {line}" for line in violations(page, axe)] if size is NARROW else []
    page.set_viewport_size(USUAL)
    page.locator("#theme").click()
    return found


@contextmanager
def serving_json(handler: Handler) -> Iterator[str]:
    """Serve a handler of JSON on a thread; return its address."""
    ready, done = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with json_service(handler) as service:
            found.append(service.url)
            ready.set()
            await asyncio.to_thread(done.wait)

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(asyncio.run, serve())
        assert ready.wait(30)
        try:
            yield found[0]
        finally:
            done.set()
            serving.result()


def registry() -> SmallRegistry:
    """Return a registry with two versions of a schema."""
    made = SmallRegistry()
    for names in (("id",), ("id", "note")):
        fields = [{"name": name, "type": "string"} for name in names]
        made.register(
            "orders-value", {"schema": json.dumps({"type": "record", "name": "Order", "fields": fields})}
        )
    return made


@dataclass
class Worker:
    """A worker of Connect in memory: one connector that runs, with a task that failed.

    Where something runs says how it was restarted.
    """

    configs: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            "copy-orders": {"connector.class": "JdbcSource", "topic": "orders", "password": "hunter2"}
        }
    )
    states: dict[str, str] = field(default_factory=lambda: {"copy-orders": "RUNNING"})
    restarts: int = 0
    restarted_tasks: set[str] = field(default_factory=set)

    def __call__(self, asked: Asked) -> Answer:
        """Answer a request."""
        parts = [unquote(part) for part in asked.path.partition("?")[0].strip("/").split("/")]
        match asked.method, parts:
            case "GET", [""]:
                return Answer({"version": "3.9.1", "commit": "abc", "kafka_cluster_id": "id"})
            case "GET", ["connectors"]:
                return Answer({name: self._connector(name) for name in self.configs})
            case "GET", ["connectors", name] if name in self.configs:
                return Answer({"name": name, "config": self.configs[name]})
            case "GET", ["connectors", name, "status"] if name in self.configs:
                return Answer(self._connector(name)["status"])
            case "GET", ["connectors", name, "topics"]:
                return Answer({name: {"topics": ["orders"]}})
            case "GET", ["connector-plugins", *_]:
                return Answer([])
            case "PUT", ["connector-plugins", *_]:
                return Answer({"configs": []})
            case "PUT", ["connectors", name, "config"]:
                self.configs[name] = asked.body
                return Answer({"name": name})
            case "PUT", ["connectors", name, ("pause" | "resume" | "stop") as verb]:
                self.states[name] = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED"}[verb]
                return Answer(status=202)
            case "POST", ["connectors"]:
                self.configs[asked.body["name"]] = asked.body["config"]
                return Answer({"name": asked.body["name"]}, 201)
            case "POST", ["connectors", _, "restart"]:
                self.restarts += 1
                return Answer(status=202)
            case "POST", ["connectors", name, "tasks", "0", "restart"]:
                self.restarted_tasks.add(name)
                return Answer(status=204)
            case "DELETE", ["connectors", name]:
                self.configs.pop(name, None)
                return Answer(status=204)
        return Answer({"error_code": 404, "message": "not found"}, 404)

    def _connector(self, name: str) -> dict[str, Any]:
        state = {"state": self.states.get(name, "RUNNING"), "worker_id": "w:1"}
        task = {"id": 0, "state": "FAILED", "worker_id": "w:1", "trace": "java.lang.Exception: no table"}
        if self.restarts:
            task["worker_id"] = f"restarted {self.restarts} times"
        if name in self.restarted_tasks:
            task = {"id": 0, "state": "RUNNING", "worker_id": "worker of a new task"}
        return {
            "status": {"name": name, "connector": state, "tasks": [task]},
            "info": {"name": name, "config": self.configs[name], "type": "source"},
        }
