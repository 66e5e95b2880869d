"""The console beside a broker: a process of its own that begins and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.broker.config import load_broker_config
from ottla.broker.server.console_process import HISTORY, ConsoleProcess
from ottla.broker.testing import free_port
from ottla.client.config_definition import ConfigError

pytest.importorskip("ottla.console")

BOUND_S = 60.0
LOGINS = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram."
    'ScramLoginModule required username="broker" password="secret";',
}


@contextmanager
def broker(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start a broker with a console; end it with whatever it started."""
    environment = {**os.environ, "OTTLA_PROFILES": str(folder / "profiles.toml"), "PYTHONUNBUFFERED": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "ottla.broker", "start", "--listen", "127.0.0.1:0",
         "--data-dir", str(folder / "data"), *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    try:
        yield running
    finally:
        if running.poll() is None:
            running.terminate()
            running.communicate(timeout=BOUND_S)


def address_of(running: subprocess.Popen[str]) -> str:
    """Return the console's address once it is printed; everything before it is passed over."""
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Open http"):
            return line.split()[1]
    raise AssertionError("the broker has ended without a console")


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
        text: str = answer.read().decode()
        return text


def is_away(url: str) -> bool:
    try:
        page(url)
    except (urllib.error.URLError, ConnectionError):
        return True
    return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def console_pid(history: Path) -> int:
    """Return the process that has the console's history open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"ottla.console" in command and str(history).encode() in command:
            return int(process.name)
    raise AssertionError("no console runs")


def test_a_broker_with_a_console_serves_its_pages_and_ends_it(tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with broker(tmp_path, "--console", listen) as running:
        url = address_of(running)
        text = page(url + "c/local/")
        running.terminate()
        _, errors = running.communicate(timeout=BOUND_S)

    assert url == f"http://{listen}/"
    assert "No problem found" in text
    assert (running.returncode, errors) == (0, "")
    assert is_away(url)
    assert (tmp_path / "data" / HISTORY).exists()


def test_a_console_that_dies_is_one_line_of_a_broker_that_goes_on(tmp_path: Path) -> None:
    with broker(tmp_path, "--console", f"127.0.0.1:{free_port()}") as running:
        address_of(running)
        os.kill(console_pid(tmp_path / "data" / HISTORY), signal.SIGKILL)
        assert running.stderr is not None
        said = running.stderr.readline()
        is_alive = running.poll() is None
        running.terminate()
        _, errors = running.communicate(timeout=BOUND_S)

    assert "the console has ended, and the broker goes on" in said
    assert is_alive
    assert (running.returncode, errors) == (0, "")


def test_a_broker_that_is_killed_takes_its_console_along(tmp_path: Path) -> None:
    with broker(tmp_path, "--console", f"127.0.0.1:{free_port()}") as running:
        url = address_of(running)
        running.kill()
        running.communicate(timeout=BOUND_S)

        until(lambda: is_away(url))


def test_a_console_without_its_address_does_not_hold_up_the_broker(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        broker(tmp_path, "--console", f"127.0.0.1:{taken.getsockname()[1]}") as running,
    ):
        assert running.stdout is not None
        assert running.stderr is not None
        ready = running.stdout.readline()
        said = running.stderr.readline()
        running.terminate()
        _, errors = running.communicate(timeout=BOUND_S)

    assert "is ready on 127.0.0.1:" in ready
    assert said.startswith("Error: the console does not start: 127.0.0.1:")
    assert "--listen names another" in said
    assert len(errors.splitlines()) <= 1, errors
    assert running.returncode == 0


def test_a_secured_broker_gives_its_console_the_administrators_profile(tmp_path: Path) -> None:
    with broker(tmp_path, "--secure", "--console", f"127.0.0.1:{free_port()}") as running:
        text = page(address_of(running) + "c/local/access")

    assert "SCRAM-SHA-512" in text
    assert "admin" in text


def test_a_listener_with_logins_asks_for_a_profile() -> None:
    config = load_broker_config(flags={"listeners": "SASL_PLAINTEXT://127.0.0.1:9093", **LOGINS}).config

    with pytest.raises(ConfigError, match="start `ottla console --profile NAME`"):
        ConsoleProcess.planned("127.0.0.1:8180", config, None)
