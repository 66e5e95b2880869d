"""Commands of `ottla` that a test runs in its own process against one cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from click.testing import CliRunner, Result

from ottla.client.cli import main

Command = Callable[..., Result]


def command_for(bootstrap_servers: str) -> Command:
    """Return a function that runs a command against the cluster; `given` is its standard input."""

    def run(*arguments: str, given: str | None = None) -> Result:
        environment = {"OTTLA_BOOTSTRAP_SERVER": bootstrap_servers}
        return CliRunner().invoke(main, arguments, given, env=environment)

    return run


def filled(ottla: Command, topic: str, *options: str) -> str:
    """Create a topic with these options, write 1,500 records to it, and return its name."""
    done = ottla("topic", "create", topic, *options)
    assert done.exit_code == 0, done.output
    for _ in range(3):
        done = ottla("produce", topic, given="".join(f"record {number}\n" for number in range(500)))
        assert done.exit_code == 0, done.output
    return topic


def shown(done: Result) -> Any:
    """Return what a command with --json has printed; it must have succeeded."""
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def until(condition: Callable[[], bool], bound_s: float = 120) -> None:
    """Wait until commands show that a condition holds."""
    deadline_s = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
