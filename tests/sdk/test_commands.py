"""The commands against a real broker: what they print, and what they leave alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main


class Servers(Protocol):
    """A cluster under test."""

    kind: str
    bootstrap_servers: str


Command = Callable[..., Result]


@pytest.fixture
def ottla(cluster: Servers) -> Command:
    """Run a command against the cluster."""

    def run(*arguments: str, given: str | bytes | None = None) -> Result:
        return CliRunner().invoke(
            main, arguments, given, env={"OTTLA_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
        )

    return run


@pytest.mark.parametrize("options", [(), ("--partition", "0"), ("--group", "readers")])
def test_consume_never_creates_a_topic(
    options: tuple[str, ...], ottla: Command, fresh: Callable[[str], str]
) -> None:
    topic = fresh("missing")

    done = ottla("consume", topic, "--exit-at-end", *options)

    assert (done.exit_code, done.output) == (1, f"Error: topic '{topic}' does not exist\n")
    assert topic not in ottla("topic", "list").output
    assert ottla("topic", "describe", topic).output == f"Error: topic '{topic}' does not exist\n"
    assert topic not in ottla("topic", "list").output


def test_a_port_that_speaks_no_tls_is_named_with_what_to_change(
    cluster: Servers, ottla: Command, tmp_path: Path
) -> None:
    properties = tmp_path / "tls.properties"
    properties.write_text("security.protocol=SSL\n")

    done = ottla("topic", "list", "--command-config", str(properties))

    assert done.output == (
        f"Error: no broker can be reached: cannot connect to {cluster.bootstrap_servers}: it hung up on our "
        "TLS greeting; if that port speaks no TLS, connect with security.protocol=PLAINTEXT\n"
    )


@pytest.mark.parametrize("options", [(), ("--daemon",)])
def test_a_data_directory_that_is_a_file_is_refused_in_one_line(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "afile"
    file.write_text("")

    below = start_broker("--data-dir", f"{file}/data", *options)
    in_settings = start_broker("--set", f"log.dirs={file}", *options)
    given = start_broker("--data-dir", str(file), *options)

    words = "cannot be a data directory: a file stands there, or above it"
    assert below == f"Error: {file}/data {words}\n"
    assert in_settings == f"Error: {file} {words}\n"
    assert given.endswith(f"Error: Invalid value for '--data-dir': Directory '{file}' is a file.\n")


def start_broker(*options: str) -> str:
    """Start a broker that cannot start; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla.broker", "start", *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr
