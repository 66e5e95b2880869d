"""A few rounds of chaos in a real cluster.

`nox -s chaos -- --cluster`, `-- --transactions` and `-- --groups` run them at length.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SYSTEM = Path(__file__).resolve().parents[1] / "system"

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--profile", "kills", "--rounds", "4"], id="three brokers that are killed"),
        pytest.param(
            ["--fault", "kill any", "--rounds", "2", "--brokers", "ottla,apache,ottla"],
            id="two of ours and one of Apache Kafka",
        ),
        pytest.param(["--profile", "kills", "--rounds", "2", "--secure"], id="three brokers on SASL_SSL"),
    ],
)
def test_nothing_acknowledged_is_lost_in_a_cluster(options: list[str]) -> None:
    run("cluster_chaos.py", "--per-s", "50", *options)


@pytest.mark.parametrize("brokers", ["ottla", "apache"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--clients", "java,kafka-python,ottla", "--kills", "3"], id="kills"),
        pytest.param(["--self-test", "--kills", "6"], id="faults that are made on purpose are found"),
    ],
)
def test_transactions_copy_exactly_once_on_three_brokers(options: list[str], brokers: str) -> None:
    run("transactions_chaos.py", "--per-s", "50", "--brokers", ",".join([brokers] * 3), *options)


def test_transactions_copy_exactly_once_on_brokers_of_both_kinds() -> None:
    options = ("--clients", "java,ottla", "--kills", "4", "--victims", "broker,coordinator")
    run("transactions_chaos.py", "--per-s", "50", "--brokers", "ottla,apache,ottla", *options)


def test_share_groups_and_consumer_groups_read_all_on_three_brokers() -> None:
    run("groups_chaos.py", "--kills", "2", "--per-s", "25")


def run(script: str, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SYSTEM / script), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
