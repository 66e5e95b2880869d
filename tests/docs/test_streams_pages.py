"""The app of the tutorial, run by `ottla streams run` and watched as the page shows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.service import Service, running
from peers.snippets import (
    PRINTED_SERVERS,
    ROOT,
    TIMEOUT_S,
    Block,
    blocks,
    commands,
    matches,
    run_command,
    run_program,
)

FLIGHTS = ROOT / "docs/tutorial/streams.md"
APP = ROOT / "docs/tutorial/streams-app.md"
OTTLA = (sys.executable, "-c", "from ottla.client.cli import main; main()")
PRINTED_STATUS = "127.0.0.1:9465"


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("docs")) as started:
        yield started


def run_block(block: Block, broker: BrokerProcess, folder: Path, name: str) -> None:
    run_program(block.code.replace(PRINTED_SERVERS, broker.bootstrap_servers), folder, name)


def arguments(block: Block) -> tuple[str, str]:
    """Return the arguments of the one command of a block, and what it prints there."""
    ((command, printed),) = commands(block.code)
    assert command.startswith("ottla ")
    return command.removeprefix("ottla "), printed


def seen_at_last(url: str, block: Block, folder: Path) -> None:
    """Look at an app until it is as the page shows, as somebody does who waits for it."""
    looking, expected = arguments(block)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = f"ottla {looking} {url}"
    ends = time.monotonic() + TIMEOUT_S
    while not matches(printed := run_command(command, environment, folder, TIMEOUT_S), expected):
        assert time.monotonic() < ends, f"{printed}\nwas expected to be\n{expected}"


def test_the_app_counts_departures_and_can_be_watched(broker: BrokerProcess, tmp_path: Path) -> None:
    run_block(blocks(FLIGHTS)[0], broker, tmp_path, "write_flights.py")
    (program,) = (block for block in blocks(APP) if block.file == "airports.py")
    starting, watching, reading = blocks(APP, "needs app")
    run_block(program, broker, tmp_path, "airports.py")
    command, _ = arguments(starting)
    assert command.endswith(PRINTED_STATUS)
    started = command.replace(PRINTED_STATUS, "127.0.0.1:0").split()

    with running(*OTTLA, *started, folder=tmp_path) as app:
        url = app.line_with(r"status is served url=(http://[\d.:]+)")[1]
        run_block(reading, broker, tmp_path, "read_departures.py")
        seen_at_last(url, watching, tmp_path)
        said = stopped(app)

    assert {f"rush hour at {hour} o'clock" for hour in range(5, 15)} <= set(said.splitlines())


def stopped(app: Service) -> str:
    said = app.stop()
    assert "Traceback" not in said, said
    return said
