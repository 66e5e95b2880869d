"""Transactions and compacted topics move between brokers of Apache Kafka 3.9 and ours, as the guide shows."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from cluster_controllers import controller_kind
from cluster_moves import BOUND_S, until
from cluster_of_nodes import Cluster
from moving_load import KINDS, OF_BROKERS, OFFSETS, TRANSACTIONS, USERS, assert_equal, under_load
from transactions_chaos import SOURCE

from peers.kafka_scripts import kafka_scripts
from peers.snippets import ROOT, Block, blocks, commands, matches

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

BROKERS: Final = ["apache", "apache", "ottla", "ottla"]
APACHE: Final = (1, 2)
OTTLA: Final = (3, 4)
MIXED: Final = (2, 3)
EVERYTHING: Final = USERS | OFFSETS | TRANSACTIONS
STAGES: Final = [
    # Partitions first: Apache's coordinators write markers into logs of ours.
    (USERS, OTTLA), (OFFSETS, OTTLA), (TRANSACTIONS, OTTLA),
    # And back: our coordinators write markers into logs of Apache's.
    (USERS, APACHE), (OFFSETS, APACHE), (TRANSACTIONS, APACHE),
    # Coordinators first, the other way round; at last both kinds hold everything.
    (TRANSACTIONS, OTTLA), (OFFSETS, OTTLA), (EVERYTHING, MIXED),
]  # fmt: skip
PAGE: Final = ROOT / "docs/howto/move-from-apache-kafka.md"
MARK: Final = "needs MixedCluster"
SWITCH_OFF: Final = 7
"""The step of the page that is done for each Apache broker."""


def test_transactions_and_compacted_topics_move_to_ottla_and_back_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, BROKERS, OF_BROKERS) as cluster:
        with under_load(cluster, tmp_path, APACHE) as moving:
            for topics, brokers in STAGES:
                moving.move(topics, brokers)
            moving.finish()
        assert_equal(cluster, MIXED)


@dataclass
class Reader:
    """Somebody who types what the page shows, with the names of this cluster."""

    cluster: Cluster
    folder: Path
    scripts: Path

    def follow(self, block: Block, stopped: int) -> None:
        """Run the commands of a block; each succeeds and prints what is shown, where something is shown."""
        names = self._names(stopped)
        code = re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], block.code)
        for command, shown in commands(code):
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=self._environment(), timeout=BOUND_S, check=False,
                text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            print(f"$ {command}\n{done.stdout}", end="")
            assert done.returncode == 0, (command, done.stdout)
            assert not shown.strip() or matches(done.stdout, shown), (command, done.stdout)

    def _names(self, stopped: int) -> Mapping[str, str]:
        """Return what the page calls things, and what they are called here."""
        return {
            "kafka1:9092": self.cluster.brokers[APACHE[0]].address,
            "ottla4:9092": self.cluster.brokers[OTTLA[0]].address,
            "--broker-list 1": f"--broker-list {stopped}",
            "--entity-name 1": f"--entity-name {stopped}",
            "4,5,6": ",".join(map(str, OTTLA)),
            "orders": SOURCE,
            "billing": f"g-{KINDS[0]}",
        }

    def _environment(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{self.scripts}{os.pathsep}{os.environ['PATH']}",
            "OTTLA_BOOTSTRAP_SERVER": self.cluster.servers,
        }


def steps() -> dict[int, list[Block]]:
    """Return the blocks of the page that run here, by step; those before the first step are in step 0."""
    found: dict[int, list[Block]] = {}
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for block in blocks(PAGE, MARK):
        before = [line for line in lines[: block.line] if re.match(r"## \d", line)]
        found.setdefault(len(before), []).append(block)
    return found


def test_what_the_page_shows_moves_everything_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, BROKERS, OF_BROKERS) as cluster:
        with under_load(cluster, tmp_path, APACHE) as moving:
            shown = steps()
            switching_off = shown.pop(SWITCH_OFF)
            reader = Reader(cluster, tmp_path, tmp_path / "bin")
            kafka_scripts(reader.scripts)
            for number in sorted(shown):
                for block in shown[number]:
                    reader.follow(block, APACHE[0])
                moving.until_more_is_committed()
            moving.await_moved(EVERYTHING, OTTLA)
            for node in APACHE:
                kafka_scripts(reader.scripts, stops=cluster.brokers[node].process_id)
                for block in switching_off:
                    reader.follow(block, node)
                cluster.brokers[node].stop()
                moving.until_more_is_committed()
            until(lambda: controller_kind(cluster) == "ottla", lambda: controller_kind(cluster))
            moving.finish()
            assert not any(map(moving.run.workers.failures, KINDS)), "a client had to begin anew"
            assert moving.keyed.refused == 0
        assert_equal(cluster, OTTLA)
