"""Several releases of each client, old and new, against one Ottla broker: the same round by all of them.

A round produces without and with compression, reads without a group, reads as the member of a group that
commits, and asks for offsets by time. Each prints a line for every record and offset.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from peers.fetched_programs import go_program, node_modules, python_environment
from peers.java import java_command
from peers.maven import kafka_clients

pytestmark = pytest.mark.timeout(900)

HERE: Final = Path(__file__).parent
PARTITIONS: Final = 3
RECORDS: Final = 30
ROUND_S: Final = 240
_numbers = count(1)


def expected() -> list[str]:
    """Return the lines of a round, sorted: a record for each partition in turn, a millisecond apart."""
    places = [f"{number % PARTITIONS} {number // PARTITIONS} {number}" for number in range(RECORDS)]
    records = [f"{kind} {place}" for kind in ("produced", "read", "member") for place in places]
    per_partition = RECORDS // PARTITIONS
    ends = [f"{kind} {index} {per_partition}" for kind in ("end", "committed") for index in range(PARTITIONS)]
    return sorted(records + ends + [f"at {index} {per_partition // 2}" for index in range(PARTITIONS)])


def python_client(program: str, *requirements: str, python: str = "") -> Callable[[], list[str]]:
    source = HERE / "python" / f"{program}_round.py"
    return lambda: [str(python_environment(*requirements, python=python)), str(source)]


def kafkajs(version: str) -> list[str]:
    modules = node_modules(f"kafkajs@{version}")
    return ["env", f"NODE_PATH={modules}", "node", str(HERE / "javascript" / "kafkajs_round.js")]


def java(version: str) -> list[str]:
    return java_command(HERE / "java" / "ClientRound.java", kafka_clients(version))


def franz_go(version: str) -> list[str]:
    return [str(go_program(HERE / "go" / "franz_go_round.go", f"github.com/twmb/franz-go@{version}"))]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    **{
        f"kafka-python {version}": python_client("kafka_python", f"kafka-python=={version}")
        for version in ("2.0.2", "2.2.21", "2.3.3", "3.0.0", "3.0.9", "3.0.12")
    },
    **{
        f"aiokafka {version}": python_client("aiokafka", f"aiokafka=={version}")
        for version in ("0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0")
    },
    # The last release before 2 has no wheels for later Pythons.
    "confluent-kafka 1.9.2": python_client("confluent_kafka", "confluent-kafka==1.9.2", python="3.10"),
    **{
        f"confluent-kafka {version}": python_client("confluent_kafka", f"confluent-kafka=={version}")
        for version in ("2.3.0", "2.16.1")
    },
    **{f"kafkajs {version}": partial(kafkajs, version) for version in ("1.16.0", "2.2.4")},
    **{f"franz-go {version}": partial(franz_go, version) for version in ("v1.15.4", "v1.22.3")},
}
JAVA: Final = ("2.8.2", "3.9.1", "4.1.0", "4.4.0")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_release_of_a_client_goes_its_round(broker: BrokerProcess, client: str) -> None:
    assert await lines_of(broker, CLIENTS[client]()) == expected()


@pytest.mark.java
@pytest.mark.parametrize("version", JAVA)
async def test_a_release_of_the_java_client_goes_its_round(broker: BrokerProcess, version: str) -> None:
    assert await lines_of(broker, java(version)) == expected()


async def lines_of(broker: BrokerProcess, command: list[str]) -> list[str]:
    """Run a client's program against a new topic; return its output, sorted."""
    name = f"round-{next(_numbers)}"
    async with Admin(broker.bootstrap_servers) as admin:
        # The clients' timestamps are of 2020: retention would delete the records while a round lasts.
        kept = {"retention.ms": "-1"}
        await admin.topics.create(name, partitions=PARTITIONS, replication_factor=1, configs=kept)
    done = await asyncio.to_thread(
        subprocess.run,
        [*command, broker.bootstrap_servers, name, f"{name}-group"],
        capture_output=True, text=True, timeout=ROUND_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return sorted(done.stdout.splitlines())
