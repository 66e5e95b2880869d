"""A script that calls `app.run()`, as a user starts it with Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ottla.broker.testing import BrokerProcess
from ottla.producer import SyncProducer

Fresh = Callable[[str], str]

UNGUARDED = """
from ottla.streams import App

app = App("images", {servers!r}, run_on="processes", max_processes=2)

@app.handle("images")
def scale(record):
    pass

app.run()
"""
FAILING = """
from ottla.streams import App

app = App({name!r}, {servers!r}, retries=1, retry_backoff_ms=1)

@app.handle({topic!r})
async def charge(order: int):
    raise ValueError("no credit")

if __name__ == "__main__":
    app.run()
"""


def run(program: Path, text: str) -> subprocess.CompletedProcess[str]:
    program.write_text(text)
    return subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=False
    )


def test_a_program_with_processes_and_no_guard_is_told_in_one_line(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    ended = run(tmp_path / "images.py", UNGUARDED.format(servers=broker.bootstrap_servers))

    (line,) = ended.stderr.splitlines()
    assert line.startswith("images failed: the worker processes ended while they started; ")
    assert 'if __name__ == "__main__":' in line
    assert ended.returncode == 1


def test_failures_are_seen_with_their_record_though_no_logging_is_set_up(
    broker: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    topic = fresh("orders")
    with SyncProducer(broker.bootstrap_servers) as producer:
        producer.send_and_wait(topic, b"1", b"k")

    ended = run(
        tmp_path / "billing.py",
        FAILING.format(name=fresh("billing"), servers=broker.bootstrap_servers, topic=topic),
    )

    first = ended.stderr.splitlines()[0]
    assert "WARNING ottla.streams: the handler failed and is called again later" in first
    assert f"topic={topic} partition=0 offset=0" in first
    assert ended.stderr.splitlines()[-1].endswith("offset 0): ValueError: no credit")
    assert ended.returncode == 1
