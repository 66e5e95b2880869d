"""Performs the faults of a cluster's chaos: each is over, and its victims run again, when it returns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cluster_faults import Fault
from cluster_network import both_ways
from cluster_nodes import Broker, Node
from cluster_of_nodes import Cluster, start

Victims = Callable[[Cluster, str, random.Random], Broker]


def perform(fault: Fault, cluster: Cluster, topic: str) -> None:
    """Do what the fault says, for as long as it lasts, and undo it."""
    rng = random.Random(fault.draw)
    verb, _, rest = fault.kind.partition(" ")
    if "ZooKeeper" in fault.kind and verb != "cut":
        _zookeeper(fault, cluster, rng)
    elif verb == "kill":
        _kill(rest, fault, cluster, topic, rng)
    elif verb == "pause":
        _paused([_victim(rest, cluster, topic, rng)], fault.lasts_s)
    elif verb == "cut":
        _cut(fault, cluster, rng)
    else:
        _OPERATIONS[fault.kind](cluster, topic, rng, fault.lasts_s)


def _victim(which: str, cluster: Cluster, topic: str, rng: random.Random) -> Broker:
    brokers = cluster.brokers
    found: int | None = None
    if which == "leader":
        partitions = cluster.describe(topic)
        found = partitions[rng.choice(sorted(partitions))].leader if partitions else None
    elif which == "controller":
        found = cluster.controller()
    return brokers[found] if found in brokers else brokers[rng.choice(sorted(brokers))]


def _kill(which: str, fault: Fault, cluster: Cluster, topic: str, rng: random.Random) -> None:
    brokers = list(cluster.brokers.values())
    if which == "two in turn":
        for victim in rng.sample(brokers, 2):
            _killed([victim], fault.lasts_s)
            cluster.wait_until_healed(topic)
    elif which == "two at once":
        _killed(rng.sample(brokers, 2), fault.lasts_s)
    elif which == "all":
        _killed(brokers, 0)
    else:
        _killed([_victim(which, cluster, topic, rng)], fault.lasts_s)


def _killed(victims: Sequence[Broker], for_s: float) -> None:
    for victim in victims:
        victim.kill()
    time.sleep(for_s)
    with ThreadPoolExecutor(len(victims)) as pool:  # each may wait for the other
        list(pool.map(start, victims))


def _paused(victims: Sequence[Node], for_s: float) -> None:
    for victim in victims:
        victim.pause()
    try:
        time.sleep(for_s)
    finally:
        for victim in victims:
            victim.resume()


def _cut(fault: Fault, cluster: Cluster, rng: random.Random) -> None:
    victim = rng.choice(list(cluster.brokers.values())).host
    others = [host for host in cluster.broker_hosts if host != victim]
    network = cluster.network
    if fault.kind == "cut one way":
        network.cut(victim, rng.choice(others))
    elif fault.kind == "cut a broker from brokers":
        both_ways(network, victim, others)
    elif fault.kind == "cut a broker from ZooKeeper":
        both_ways(network, victim, cluster.zookeeper_hosts)
    else:
        both_ways(network, victim, [*others, *cluster.zookeeper_hosts])
    try:
        time.sleep(fault.lasts_s)
    finally:
        network.heal()


def _zookeeper(fault: Fault, cluster: Cluster, rng: random.Random) -> None:
    ensemble = cluster.ensemble
    leader = ensemble.leader() or ensemble.servers[0]
    followers = [each for each in ensemble.servers if each is not leader]
    if fault.kind == "pause ZooKeeper's leader":
        _paused([leader], fault.lasts_s)
    else:
        victims = {
            "kill ZooKeeper's leader": [leader],
            "kill a ZooKeeper follower": [rng.choice(followers)],
            "ZooKeeper without quorum": [leader, followers[0]],
        }[fault.kind]
        for victim in victims:
            victim.kill()
        time.sleep(fault.lasts_s)
        for victim in victims:
            victim.start()
    ensemble.wait_for_quorum()


def _restart_in_turn(cluster: Cluster, topic: str, rng: random.Random, lasts_s: float) -> None:
    for broker in rng.sample(list(cluster.brokers.values()), len(cluster.brokers)):
        broker.stop()
        start(broker)
        cluster.wait_until_healed(topic)


def _stop_and_start(cluster: Cluster, topic: str, rng: random.Random, lasts_s: float) -> None:
    victim = _victim("leader", cluster, topic, rng)
    victim.stop()
    time.sleep(lasts_s)
    start(victim)


def _elect(cluster: Cluster, topic: str, rng: random.Random, lasts_s: float) -> None:
    cluster.elect_preferred_leaders()


_OPERATIONS: dict[str, Callable[[Cluster, str, random.Random, float], None]] = {
    "restart in turn": _restart_in_turn,
    "stop and start one": _stop_and_start,
    "elect preferred leaders": _elect,
}
