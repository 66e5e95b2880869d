"""Programs of the pages that run until they are stopped: workers, web applications, containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.testing import BrokerProcess
from peers.service import Service, running
from peers.snippets import PRINTED_SERVERS, ROOT, TIMEOUT_S, blocks, run_command

HOWTO = ROOT / "docs/howto"
WORKER = HOWTO / "shut-down-gracefully.md"
WEB = HOWTO / "serve-a-web-application.md"
LIVE = HOWTO / "use-fastapi.md"
CONTAINERS = HOWTO / "run-in-containers.md"
COFFEE = {"guest": "franz", "drink": "coffee"}


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("services"), settings) as running:
        yield running


def save(page: Path, mark: str, file: Path, broker: BrokerProcess) -> None:
    """Copy the one program of a page with a mark into a file."""
    (program,) = blocks(page, mark)
    file.write_text(program.code.replace(PRINTED_SERVERS, broker.bootstrap_servers), encoding="utf-8")


def ottla(broker: BrokerProcess | str, command: str, folder: Path) -> str:
    servers = broker if isinstance(broker, str) else broker.bootstrap_servers
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OTTLA_BOOTSTRAP_SERVER": servers}
    return run_command(command, environment, folder, TIMEOUT_S)


def test_a_worker_that_is_told_to_stop_has_copied_and_committed_everything(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    save(WORKER, "needs signals", tmp_path / "copy_letters.py", broker)
    ottla(broker, "printf 'one\\ntwo\\nthree\\n' | ottla produce letters-in", tmp_path)
    with running(sys.executable, "copy_letters.py", folder=tmp_path) as worker:
        worker.line_with("ready")
        read = "ottla consume letters-out --from-beginning --max-messages 3"
        ottla(broker, "ottla topic create letters-out", tmp_path)
        assert ottla(broker, read, tmp_path) == "one\ntwo\nthree\n"
        assert "stopped" in worker.stop()
    described = ottla(broker, "ottla group describe copyists", tmp_path)
    assert "Empty, 0 members" in described  # it has left
    assert re.search(r"letters-in +0 +3 +3 +0", described), described


@contextmanager
def served(broker: BrokerProcess, folder: Path, page: Path = WEB) -> Iterator[tuple[str, Service]]:
    """Serve the application of a page; give its address."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    save(page, "needs uvicorn", folder / "shop.py", broker)
    program = ("uvicorn", "shop:app", "--port", "0", "--timeout-graceful-shutdown", "1")
    with running(sys.executable, "-m", *program, folder=folder) as service:
        yield service.line_with(r"running on (http://[\d.:]+)")[1], service


def test_the_web_application_writes_counts_and_ends_well(broker: BrokerProcess, tmp_path: Path) -> None:
    with served(broker, tmp_path) as (at, service):
        for offset in range(2):
            written = ask(f"{at}/orders", COFFEE)
            assert written == {"partition": 0, "offset": offset}
        read = "ottla consume web-orders --from-beginning --max-messages 2 --format '{key} {value}'"
        assert ottla(broker, read, tmp_path) == 2 * 'franz {"guest":"franz","drink":"coffee"}\n'
        while ask(f"{at}/drinks") != {"coffee": 2}:
            pass  # the time of `running` bounds it
        assert ask(f"{at}/health") == "ok"
        said = service.stop(-signal.SIGTERM)  # uvicorn ends by the signal that it was sent
        assert "Application shutdown complete" in said
        assert "Traceback" not in said


def test_the_web_application_says_when_its_consumer_has_ended(broker: BrokerProcess, tmp_path: Path) -> None:
    with served(broker, tmp_path) as (at, _):
        assert ask(f"{at}/health") == "ok"
        ottla(broker, "echo no JSON | ottla produce web-orders", tmp_path)
        while ask(f"{at}/health") == "ok":
            pass  # the time of `running` bounds it
        assert ask(f"{at}/health") == 503
        assert ask(f"{at}/orders", COFFEE) == 503


def test_the_live_page_gets_each_order_and_the_application_ends_while_it_looks(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with served(broker, tmp_path, LIVE) as (at, service):
        with urllib.request.urlopen(f"{at}/", timeout=TIMEOUT_S) as page:
            assert b'new EventSource("/events")' in page.read()
        with urllib.request.urlopen(f"{at}/events", timeout=TIMEOUT_S) as events:
            assert events.readline() == b": connected\n"
            drinks = [ask(f"{at}/orders", {"drink": drink, "price": 2}) for drink in ("tea", "coffee")]
            assert [cast("dict[str, int]", written)["offset"] for written in drinks] == [0, 1]
            lines = [line for line in (events.readline() for _ in range(7)) if line.startswith(b"data: ")]
            values = [json.loads(line.removeprefix(b"data: "))["value"]["drink"] for line in lines]
            assert values == ["tea", "coffee"]
            service.stop(-signal.SIGTERM)


def ask(url: str, body: object = None) -> object:
    """Return the JSON of an answer, or the status of a refusal."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_container_serves_what_it_advertises_and_ends_well_on_sigterm(tmp_path: Path) -> None:
    program, environment = in_container(CONTAINERS.read_text(encoding="utf-8"), str(tmp_path / "data"))
    with running(*program, folder=tmp_path, environment=environment) as container:
        port = container.line_with(r"is ready on [\d.]+:(\d+)")[1]
        found = f"127.0.0.1:{port}"
        assert "Produced 1 record" in ottla(found, "echo hello | ottla produce greetings", tmp_path)
        said = container.stop()
    (warning,) = re.findall(r"^```text\n(PLAINTEXT:.*)\n```$", CONTAINERS.read_text(), re.MULTILINE)
    assert warning.replace(":9092", ":0") in said


def in_container(page: str, data: str) -> tuple[list[str], dict[str, str]]:
    """Give what the Dockerfile of the page runs, and with which variables; here on a free port."""
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    joined = dockerfile.replace("\\\n", " ")
    (variables,) = re.findall(r"^ENV (.*)$", joined, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", joined, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", joined, re.MULTILINE)
    program = [data if each == "/data" else each for each in [*json.loads(entry), *json.loads(command)]]
    program[0] = str(Path(sys.executable).parent / "ottla")
    environment = dict(each.partition("=")[::2] for each in shlex.split(variables))
    assert set(environment) == {"PATH", "OTTLA_LISTENERS", "OTTLA_ADVERTISED_LISTENERS"}
    return program, {"OTTLA_LISTENERS": environment["OTTLA_LISTENERS"].replace(":9092", ":0")}
