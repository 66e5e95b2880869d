"""kcat, unmodified, from Debian's package."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from ottla.broker.testing import BrokerProcess

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat (Debian: kcat)")


def kcat(broker: BrokerProcess, *arguments: str, stdin: str | None = None) -> str:
    command = ["kcat", "-b", broker.bootstrap_servers, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_in_order(broker: BrokerProcess, codec: str) -> None:
    lines = [f"line {number}" for number in range(500)]
    topic = f"kcat-{codec}"
    kcat(broker, "-P", "-t", topic, "-p", "0", "-z", codec, "-H", "h=v", stdin="\n".join(lines))

    consumed = kcat(
        broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-X", "check.crcs=true"
    )

    assert consumed.splitlines() == lines


def test_metadata_lists_the_broker_and_the_topic(broker: BrokerProcess) -> None:
    kcat(broker, "-P", "-t", "kcat-meta", stdin="x")

    listed = json.loads(kcat(broker, "-L", "-J"))

    assert len(listed["brokers"]) == 1
    assert "kcat-meta" in [topic["topic"] for topic in listed["topics"]]


def test_a_group_of_kcats_balances_itself(broker: BrokerProcess) -> None:
    kcat(broker, "-P", "-t", "kcat-group", stdin="\n".join(str(number) for number in range(50)))

    consumed = kcat(
        broker, "-G", "kcat-readers", "-X", "auto.offset.reset=earliest", "-c", "50", "-q", "kcat-group"
    )

    assert sorted(map(int, consumed.splitlines())) == list(range(50))
