"""`ottla registry start`: it says where it serves, ends with a signal, and refuses in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from ottla.broker.testing import BrokerThread
from ottla.registry.cli import registry
from peers.service import running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as started:
        yield started


def test_the_command_serves_until_it_is_stopped(broker: BrokerThread, tmp_path: Path) -> None:
    program = "import sys; from ottla.registry.cli import registry; registry(sys.argv[1:])"
    options = ("-b", broker.bootstrap_servers, "--listen", "127.0.0.1:0", "--topic", "own-schemas")
    with running(sys.executable, "-c", program, "start", *options, folder=tmp_path) as service:
        url = service.line_with(r"ottla registry is ready at (http://[\d.:]+)")[1]
        assert httpx.get(f"{url}/subjects").json() == []
        assert "Traceback" not in service.stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:0"], "give --users and --tls-certificate, or --insecure"),
        (["--listen", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["--listen", "203.0.113.1:9", "--insecure"], "cannot be served"),
        (["-b", "127.0.0.1:1"], "Is a broker running there?"),
    ],
)
def test_what_prevents_the_start_is_one_line(options: list[str], words: str) -> None:
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]

    done = CliRunner().invoke(registry, ["start", *listen, *options])

    assert done.exit_code != 0
    assert words in done.output
    assert done.output.count("\n") < 5
