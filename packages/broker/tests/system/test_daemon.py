"""`ottla broker start --daemon`, and the signals of a broker's process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.server.daemon import last_words, wait_until_ready
from ottla.broker.testing import BrokerProcess

TIMEOUT_S = 60.0
START = [sys.executable, "-m", "ottla.broker", "start", "--listen", "127.0.0.1:0"]
DIES_SILENTLY = "import os, sys\nif '--ready-fd' in sys.argv: os._exit(3)\n"


def test_the_reason_of_a_failed_start_is_not_one_of_an_earlier_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "broker.log").write_text("Error: a fault of last week\n")
    (tmp_path / "sitecustomize.py").write_text(DIES_SILENTLY)
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))

    ended = subprocess.run(
        [*START, "--data-dir", str(data), "--daemon"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert ended.returncode == 1
    assert "last week" not in ended.stderr
    assert "ended without a word" in ended.stderr


def test_a_broker_goes_on_when_the_command_that_waited_for_it_has_gone(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*START[:-1], f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(
        [*command, "--ready-fd", str(write_end)], pass_fds=(write_end,), stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(write_end)
        assert process.stdout is not None
        assert "is ready on" in process.stdout.readline()

        process.send_signal(signal.SIGTERM)

        assert process.wait(TIMEOUT_S) == 0


def test_a_start_that_takes_long_is_reported_and_awaited(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    reported = threading.Event()

    def news() -> str:
        reported.set()
        return "Loading logs"

    def become_ready() -> None:
        reported.wait(TIMEOUT_S)
        os.write(write_end, b"Ottla broker 1 is ready\n")

    with os.fdopen(read_end), os.fdopen(write_end):
        thread = threading.Thread(target=become_ready)
        thread.start()
        line = wait_until_ready(read_end, news, news_s=0.05)
        thread.join()
        assert line == "Ottla broker 1 is ready"
        assert wait_until_ready(read_end, news, news_s=0.01, bound_s=0.02) is None
    assert "for 0 s now. Loading logs" in capsys.readouterr().err


def test_the_words_of_this_run_alone_are_read(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("old\n")
    begin = log.stat().st_size
    assert last_words(log, begin) == ""

    with log.open("a") as opened:
        opened.write("new\nError: newest\n")

    assert last_words(log, begin) == "Error: newest"


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP as a terminal gives it to its processes, where the tests run under nohup too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_a_hangup_stops_a_broker_in_order(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()

    os.kill(broker.pid, signal.SIGHUP)

    assert broker.wait(TIMEOUT_S) == 0


def test_a_broker_prints_its_tasks_on_demand(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        os.kill(broker.pid, signal.SIGUSR1)

        deadline = time.monotonic() + TIMEOUT_S
        while "tasks; the first" not in broker.log_file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        socket.create_connection((broker.host, broker.port), TIMEOUT_S).close()


def check(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ottla.broker", "check", "--timeout", "30", *options],
        env={**os.environ, **settings}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def test_the_check_of_a_container_succeeds_while_the_broker_answers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        running = check(OTTLA_LISTENERS=f"PLAINTEXT://0.0.0.0:{port}")
    stopped = check("--listen", f"127.0.0.1:{port}")

    assert (running.returncode, running.stdout) == (0, f"PLAINTEXT://127.0.0.1:{port} answers\n")
    assert stopped.returncode == 1
    assert stopped.stderr.startswith(f"Error: PLAINTEXT://127.0.0.1:{port} does not answer: ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "it closed the connection without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "its answer is not one of Kafka's protocol"),
    ],
)
def test_the_check_fails_at_a_server_that_is_no_broker(answer: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"PLAINTEXT://127.0.0.1:{server.getsockname()[1]}"

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        answering = threading.Thread(target=reply)
        answering.start()
        done = check("--listen", address)
        answering.join()

    assert (done.returncode, done.stderr) == (1, f"Error: {address} does not answer: {reason}\n")


def test_the_check_needs_neither_certificate_nor_login(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    data = str(tmp_path / "data")
    start = [sys.executable, "-m", "ottla.broker", "start", "--secure", "--daemon", "--listen", address]
    subprocess.run([*start, "--data-dir", data], check=True, capture_output=True, timeout=TIMEOUT_S)
    try:
        done = check("--listen", f"SASL_SSL://{address}")
    finally:
        subprocess.run(
            [sys.executable, "-m", "ottla.broker", "stop", "--data-dir", data],
            check=True, capture_output=True, timeout=TIMEOUT_S,
        )  # fmt: skip

    assert done.stdout == f"SASL_SSL://{address} answers\n", done.stderr
