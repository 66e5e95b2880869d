"""Which kind of broker has the controller in a cluster of two kinds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from cluster_nodes import START_BOUND_S, Broker, NodeFailed
from cluster_of_nodes import Cluster, start


def controller_kind(cluster: Cluster) -> str:
    """Return the kind of the broker that has the controller; `nobody` while there is none."""
    found = cluster.controller()
    return cluster.brokers[found].kind if found in cluster.brokers else "nobody"


def move_controller(cluster: Cluster, kind: str) -> None:
    """Move the controller to a broker of that kind.

    Whoever has it is stopped, one after the other, until one of that kind is elected; then they start again.
    """
    stopped: list[Broker] = []
    try:
        while (elected := _elected(cluster, stopped)).kind != kind:
            elected.stop()
            stopped.append(elected)
    finally:
        if stopped:
            with ThreadPoolExecutor(len(stopped)) as pool:
                list(pool.map(start, stopped))


def _elected(cluster: Cluster, stopped: Sequence[Broker]) -> Broker:
    """Wait for a controller among those that run."""
    deadline = time.monotonic() + START_BOUND_S
    while time.monotonic() < deadline:
        found = cluster.controller()
        if found in cluster.brokers and cluster.brokers[found] not in stopped:
            return cluster.brokers[found]
        time.sleep(0.1)
    raise NodeFailed(f"nobody is the controller {START_BOUND_S:g} s after {len(stopped)} were stopped")
