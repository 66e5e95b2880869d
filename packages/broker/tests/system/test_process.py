"""The process that `ottla broker start` makes of itself."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess, BrokerThread
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

TIMEOUT_S = 60.0

# Starts a broker, lets a thread look at the process once it is ready, and stops it.
LOOK_WHEN_READY = """
import gc, os, resource, signal, sys, threading
from ottla.broker.server.cli import broker

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
read, write = os.pipe()

def look():
    with os.fdopen(read) as ready:
        ready.readline()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    print("collects garbage:", gc.isenabled(), "all descriptors:", soft == hard, flush=True)
    print("modules:", *sorted(sys.modules), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look).start()
broker(["start", "--listen", "127.0.0.1:0", "--data-dir", sys.argv[1], "--ready-fd", str(write)])
"""


def test_a_running_broker_collects_garbage_and_may_open_as_many_files_as_the_system_allows(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", LOOK_WHEN_READY, str(tmp_path / "data")]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert "collects garbage: True all descriptors: True" in ended.stdout
    assert ended.returncode == 0


MOST_MODULES = 545
"""Modules of a broker that is ready; each takes a quarter of a millisecond of every start."""


def test_a_start_imports_only_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOOK_WHEN_READY, str(tmp_path / "data")]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)

    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("modules: ")]
    modules = set(line.split()[1:])
    assert not modules & {
        "cramjam",
        "email",
        "http",
        "logging.handlers",
        "ottla.broker.api.create_topics",
        "ottla.broker.log.compaction.segment_cleaning",
        "ottla.broker.metrics.prometheus",
        "ottla.client.connection",
        "pickle",
        "shutil",
        "tempfile",
    }
    assert len(modules) <= MOST_MODULES


def test_a_broker_whose_last_directory_fails_says_so_in_one_line(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {"log.flush.offset.checkpoint.interval.ms": "100"})
    broker.start()
    (broker.data_dir / "recovery-point-offset-checkpoint.tmp").mkdir()  # nothing can be written there now

    returncode = broker.wait(TIMEOUT_S)

    assert returncode == 1
    assert broker.last_words(1).startswith("Error: every log directory has failed")
    assert "Traceback" not in broker.log_file.read_text()


async def create_topic(servers: str) -> None:
    config = ClientConfig(default_api_timeout_ms=5_000)
    async with Admin(servers, config) as admin:
        await admin.topics.create("orders")


def test_a_broker_whose_directory_is_removed_says_so_in_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [
        sys.executable,
        "-m",
        "ottla.broker",
        "start",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        str(data),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().split()[-1]
        shutil.rmtree(data)

        with suppress(ClientError, KafkaError):
            asyncio.run(create_topic(address))

        try:
            last_line = broker.communicate(timeout=TIMEOUT_S)[1].splitlines()[-1]
        finally:
            broker.kill()
    assert broker.returncode == 1
    assert f"Error: every log directory has failed ({data}: the directory was removed)" in last_line


def test_a_session_that_cannot_be_remembered_does_not_keep_a_broker_from_its_work(tmp_path: Path) -> None:
    (tmp_path / "data" / "coordination.session").mkdir(parents=True)

    with BrokerThread(tmp_path / "data") as broker:
        assert broker.port


def test_a_port_that_is_taken_is_named_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["-m", "ottla.broker", "start", "--listen", address, "--data-dir", str(tmp_path / "data")]

        ended = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"Error: cannot listen on {address}: Address already in use; ")
    assert ended.returncode == 1
