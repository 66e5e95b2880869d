"""Losses made on purpose, by acks=1 and by an unclean election, which the chaos checks must find."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from chaos_log import read_back
from cluster_chaos import PARTITIONS, TOPIC, Clients
from cluster_checks import acknowledgements, lost
from cluster_nodes import SESSION_MS
from cluster_of_nodes import Cluster, start


def self_test(folder: Path) -> list[str]:
    """Make each loss; return those that were not found."""
    scenarios = {
        "acks=1": ("1", 1.5, {"min_insync_replicas": "1"}),
        "unclean election": (
            "all",
            2.5 * SESSION_MS / 1000,
            {"min_insync_replicas": "1", "unclean_leader_election_enable": "true"},
        ),
    }
    wrong = []
    for name, (acks, pause_s, configs) in scenarios.items():
        found = _lose(folder / name.replace(" ", "-"), acks, pause_s, configs)
        print(f"  {name}: {found[0] if found else 'nothing found'}", flush=True)
        if not found:
            wrong.append(f"the loss made by {name} was not found")
    return wrong


def _lose(folder: Path, acks: str, pause_s: float, configs: dict[str, str]) -> list[str]:
    """Pause two of three brokers, let the third acknowledge alone, kill it, and resume the two."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, ["ottla"] * 3))
        clients = Clients(folder)
        stack.callback(clients.kill)
        cluster.create(TOPIC, PARTITIONS, **configs)
        cluster.wait_until_healed(TOPIC)
        clients.write(cluster.servers, kinds=["confluent"], acks=acks, per_s=500)
        journal = clients.journal("writer-confluent")
        _wait_for_lines(journal, 500)
        alone = cluster.brokers[1]
        others = [broker for broker in cluster.brokers.values() if broker is not alone]
        for other in others:
            other.pause()
        time.sleep(pause_s)
        _wait_for_lines(journal, _lines(journal) + 100)
        alone.kill()
        for other in others:
            other.resume()
        _wait_for_leaders(cluster)
        time.sleep(2)  # so that the new leaders have records of their own where others were
        start(alone)
        cluster.wait_until_healed(TOPIC)
        clients.kill()
        writer = acknowledgements("writer-confluent", journal)
        return lost(read_back(cluster.servers, TOPIC, PARTITIONS), writer)


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _wait_for_lines(journal: Path, count: int) -> None:
    """Wait until the writer has that many acknowledgements."""
    deadline = time.monotonic() + 30
    while _lines(journal) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def _wait_for_leaders(cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        partitions = cluster.describe(TOPIC)
        if partitions and all(each.leader in (2, 3) for each in partitions.values()):
            return
        time.sleep(0.2)
