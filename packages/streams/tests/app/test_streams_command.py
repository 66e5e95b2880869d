"""`ottla streams` as a user runs it: in a process of its own, against a broker."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.consumer import SyncConsumer
from ottla.producer import SyncProducer

OTTLA = (sys.executable, "-c", "from ottla.client.cli import main; main()")
Fresh = Callable[[str], str]

PROGRAM = """
import asyncio
from ottla.streams import App, Context

app = App({name!r}, drain_timeout_ms=10_000)

@app.on_shutdown
async def close():
    print("closed", flush=True)

@app.handle({source!r})
async def charge(order: int, context: Context):
    print("handles", order, flush=True)
    {body}
    await context.send({target!r}, b"%d" % order)
"""


class Program:
    """A program in a file, its topics, and the command that runs it."""

    def __init__(
        self, folder: Path, servers: str, fresh: Fresh, body: str = "await asyncio.sleep(0)"
    ) -> None:
        self.folder, self.servers = folder, servers
        self.source, self.target, self.name = fresh("in"), fresh("out"), fresh("billing")
        self.file = folder / "app.py"
        self.write(body)

    def write(self, body: str) -> None:
        self.file.write_text(
            PROGRAM.format(name=self.name, source=self.source, target=self.target, body=body)
        )

    def send(self, *numbers: int) -> None:
        with SyncProducer(self.servers) as producer:
            for number in numbers:
                producer.send(self.source, b"%d" % number, key=b"%d" % number)

    def outputs(self, count: int) -> list[int]:
        with SyncConsumer(
            self.target,
            bootstrap_servers=self.servers,
            auto_offset_reset="earliest",
            consumer_timeout_ms=60_000,
        ) as consumer:
            return sorted(int(next(iter(consumer)).value) for _ in range(count))

    @contextmanager
    def run(self, *options: str) -> Iterator[Running]:
        arguments = ("streams", "run", "app.py", "-b", self.servers, *options)
        with subprocess.Popen(
            (*OTTLA, *arguments), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as process:
            try:
                yield Running(process)
            finally:
                process.kill()


class Running:
    """A running program; its output is read line by line, within a bound."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = {"stdout": b"", "stderr": b""}

    def wait_for(self, text: str, stream: str = "stderr", timeout_s: float = 60) -> str:
        """Return the line with a text."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            *lines, rest = self._rest[stream].split(b"\n")
            for number, line in enumerate(lines):
                if text in line.decode():
                    self._rest[stream] = b"\n".join([*lines[number + 1 :], rest])
                    return line.decode()
            file = getattr(self.process, stream)
            ready, _, _ = select.select([file], [], [], max(0.0, deadline_s - time.monotonic()))
            more = os.read(file.fileno(), 65_536) if ready else b""
            if not more:
                raise AssertionError(f"{text!r} is not in:\n{self._rest[stream].decode()}")
            self._rest[stream] += more

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def program(broker: BrokerProcess, fresh: Fresh, tmp_path: Path) -> Program:
    return Program(tmp_path, broker.bootstrap_servers, fresh)


def ottla(*arguments: str, folder: Path | None = None) -> tuple[int, str]:
    """Run a command to its end; return its exit code and its output."""
    done = subprocess.run(
        (*OTTLA, *arguments), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_first_signal_drains_and_ends_with_0(program: Program, number: int, loop: str) -> None:
    program.write("await asyncio.sleep(2)")
    program.send(1)

    with program.run("--loop", loop) as running:
        running.wait_for("handles 1", "stdout")
        running.signal(number)
        running.wait_for("Stopping: handlers that run have 10 s to end")
        assert running.exit_code() == 0
        running.wait_for("closed", "stdout")

    assert program.outputs(1) == [1]


@pytest.mark.parametrize("body", ["await asyncio.Event().wait()", "import time; time.sleep(300)"])
def test_the_second_signal_ends_at_once_also_when_a_handler_blocks(program: Program, body: str) -> None:
    program.write(body)
    program.send(1)

    with program.run() as running:
        running.wait_for("handles 1", "stdout")
        running.signal(signal.SIGINT)
        running.wait_for("Stopping")
        time.sleep(0.6)  # one that comes within half a second is the same Ctrl+C
        running.signal(signal.SIGINT)
        assert running.exit_code() == 1


def test_a_failure_is_one_line_and_exit_code_1(program: Program) -> None:
    program.write('from ottla.streams.errors import ContextMisused; raise ContextMisused("it is misused")')
    program.send(1)

    with program.run("--log-level", "error") as running:
        line = running.wait_for(f"{program.name} failed: ")
        assert running.exit_code() == 1

    assert "offset 0): ContextMisused: it is misused" in line


def test_a_program_that_ends_with_app_run_is_run_once_with_the_options_of_the_command(
    program: Program,
) -> None:
    program.file.write_text(program.file.read_text() + "\napp.run()\nprint('imported', flush=True)\n")
    program.send(1)

    with program.run("--status", "127.0.0.1:0") as running:
        running.wait_for("imported", "stdout")
        running.wait_for("status is served")
        running.wait_for("handles 1", "stdout")
        running.signal(signal.SIGTERM)
        assert running.exit_code() == 0


@pytest.mark.parametrize(
    ("address", "reason"), [("{servers}", "in use"), ("no.such.host.invalid:9465", "not known|resolution")]
)
def test_a_status_address_that_cannot_be_served_is_one_line(
    program: Program, address: str, reason: str
) -> None:
    given = address.format(servers=program.servers)

    with program.run("--status", given, "--status-open", "--log-level", "error") as running:
        line = running.wait_for(f"{program.name} failed: ")
        assert running.exit_code() == 1

    assert f"cannot be served at {given}: " in line
    assert re.search(reason, line)
    assert "--status" in line


@pytest.mark.parametrize("arguments", [(), ("--status-token-file", "{folder}/token")])
def test_pages_for_other_machines_want_tls_and_a_token(
    program: Program, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "token").write_text("t0ken-of-letters-and-digits")
    given = [part.format(folder=tmp_path) for part in arguments]

    with program.run("--status", "0.0.0.0:0", *given, "--log-level", "error") as running:
        line = running.wait_for("can be read from other machines")
        assert running.exit_code() == 1

    assert "--status-open" in line


def test_top_shows_an_app_whose_pages_want_a_token(program: Program, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t0ken-of-letters-and-digits")
    token.chmod(0o600)
    with program.run("--status", "127.0.0.1:0", "--status-token-file", str(token), "--json-logs") as running:
        url = json.loads(running.wait_for("status is served"))["url"]
        refused, why = ottla("streams", "top", url, "--once")
        code, _ = ottla("streams", "top", url, "--once", "--token-file", str(token), "--interval", "0.1")

    assert (refused, code) == (1, 0)
    assert "wants a token: give its file by --token-file" in why


def test_top_shows_a_running_app(program: Program) -> None:
    program.write("await asyncio.sleep(3600 if order == 3 else 0)")
    with program.run("--status", "127.0.0.1:0", "--json-logs") as running:
        url = json.loads(running.wait_for("status is served"))["url"]
        program.send(1, 2, 3)
        running.wait_for("handles 3", "stdout")
        code, text = ottla("streams", "top", url, "--once", "--interval", "1.5")
        json_code, as_json = ottla("streams", "top", url.removeprefix("http://"), "--once", "--json")
        live = seen_at_a_terminal(url, "oldest key".upper())

    assert (code, json_code) == (0, 0)
    lines = text.splitlines()
    assert lines[0] == f"{program.name}: healthy, 1 handler"
    assert lines[3].split()[:6] == ["HANDLER", "GROUP", "STATE", "REC/S", "LAG", "LANES"]
    assert lines[4].split()[:3] == ["charge", program.name, "healthy"]
    (processor,) = json.loads(as_json)["processors"]
    assert (processor["record_handled_total"], processor["in_flight"]) == (2, 1)
    assert processor["oldest"]["offset"] == 2
    assert "charge" in live


def seen_at_a_terminal(url: str, text: str) -> str:
    """Run `ottla streams top` at a terminal until it shows a text; end it by Ctrl+C; return the screen."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen((*OTTLA, "streams", "top", url), stdout=child, stdin=child, env=environment) as top:
        try:
            os.close(child)
            screen = b""
            while text not in screen.decode(errors="replace"):
                ready, _, _ = select.select([parent], [], [], 60)
                assert ready, screen
                screen += os.read(parent, 65_536)
            top.send_signal(signal.SIGINT)
            while select.select([parent], [], [], 60)[0]:
                try:
                    if not os.read(parent, 65_536):
                        break
                except OSError:
                    break
            assert top.wait(60) == 0
        finally:
            top.kill()
    os.close(parent)
    return screen.decode(errors="replace")


def test_reload_starts_again_when_the_program_changes(program: Program) -> None:
    program.send(1)
    with program.run("--reload", "--log-level", "info") as running:
        try:
            running.wait_for("handles 1", "stdout")
            program.write('print("new program", flush=True)')
            running.wait_for("closed", "stdout")
            program.send(2)
            running.wait_for("new program", "stdout")
        finally:
            running.signal(signal.SIGINT)
            running.process.wait(60)


def test_mistakes_of_the_command_line_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "two.py").write_text(
        'from ottla.streams import App\none, two = App("one"), App("two")\nlimit = 3\n'
    )
    run = ("streams", "run")

    assert ottla(*run, "no.py", folder=tmp_path) == (1, "Error: there is no file no.py\n")
    assert ottla(*run, "no.module", folder=tmp_path)[1].startswith(
        "Error: there is no module 'no.module' here"
    )
    assert ottla(*run, "empty.py", folder=tmp_path) == (
        1, 'Error: empty.py has no App at its top level; write app = App("name")\n',
    )  # fmt: skip
    assert (
        "two.py has several apps; give one: two.py:one, two.py:two"
        in ottla(*run, "two.py", folder=tmp_path)[1]
    )
    assert "limit of two.py is a int, not an App" in ottla(*run, "two.py:limit", folder=tmp_path)[1]
    assert "the app has no handler" in ottla(*run, "two:one", folder=tmp_path)[1]
    assert ottla("streams", "top", "127.0.0.1:1", "--once") == (
        1,
        "Error: no app answers at http://127.0.0.1:1/status ([Errno 111] Connection refused); start it with: "
        "ottla streams run app.py --status 127.0.0.1:1\n",
    )


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("import nosuch\n", ["import nosuch", "ModuleNotFoundError: No module named 'nosuch'"]),
        ("def charge(:\n", ["def charge(:", "SyntaxError: invalid syntax"]),
        ("def make():\n    return 1 / 0\nmake()\n", ["in make", "ZeroDivisionError: division by zero"]),
    ],
)
def test_an_error_of_the_program_is_shown_with_its_own_lines_only(
    tmp_path: Path, program: str, shown: list[str]
) -> None:
    (tmp_path / "shop.py").write_text(program)

    code, text = ottla("streams", "run", "shop.py", folder=tmp_path)

    assert code == 1
    assert text.startswith("Error: shop.py cannot be loaded:\n")
    assert all(each in text for each in shown)
    assert {line for line in text.splitlines() if "File " in line and "shop.py" not in line} == set()
