"""Throttles of a reassignment (KIP-73): settings of topics and brokers, set before it and removed after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ottla.admin.configs import BROKER, TOPIC, Configs
from ottla.protocol.topics import TopicPartition

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LOG_DIR_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

Replicas = Mapping[TopicPartition, Sequence[int]]


def throttled_replicas(current: Replicas, target: Replicas) -> dict[str, dict[str, str]]:
    """Return the throttle settings of each topic: leaders send from all replicas, new ones receive."""
    leaders: dict[str, list[str]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    for partition, replicas in sorted(target.items()):
        before = current[partition]
        added = [replica for replica in replicas if replica not in before]
        if added:
            leaders[partition.topic] += [f"{partition.partition}:{replica}" for replica in before]
            followers[partition.topic] += [f"{partition.partition}:{replica}" for replica in added]
    return {
        topic: {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        for topic in leaders
    }


async def set_throttles(
    configs: Configs, brokers: Iterable[int], topics: Mapping[str, Mapping[str, str]], rate: int
) -> None:
    """Bound replication of the throttled replicas to `rate` bytes per second on each broker."""
    for topic, values in topics.items():
        await configs.alter(TOPIC, topic, values)
    for broker in sorted(brokers):
        await configs.alter(BROKER, str(broker), {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)})


async def set_log_dir_throttle(configs: Configs, brokers: Iterable[int], rate: int) -> None:
    """Bound the moves between log directories to `rate` bytes per second on each broker."""
    for broker in sorted(brokers):
        await configs.alter(BROKER, str(broker), {LOG_DIR_RATE: str(rate)})


async def remove_throttles(configs: Configs, brokers: Iterable[int], topics: Iterable[str]) -> list[str]:
    """Remove the throttles of brokers and topics; return the names of those that had some."""
    of_topics = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
    of_brokers = (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)
    return [
        *[f"topic {topic}" for topic in sorted(topics) if await _remove(configs, TOPIC, topic, of_topics)],
        *[
            f"broker {broker}"
            for broker in sorted(brokers)
            if await _remove(configs, BROKER, str(broker), of_brokers)
        ],
    ]


async def _remove(configs: Configs, kind: int, name: str, keys: Sequence[str]) -> bool:
    """Unset those of the keys that are set, so that a broker that knows none of them is left alone."""
    own = "topic" if kind == TOPIC else "broker"
    present = [entry.name for entry in await configs.describe(kind, name) if entry.source == own]
    wanted = [key for key in keys if key in present]
    if wanted:
        await configs.alter(kind, name, dict.fromkeys(wanted))
    return bool(wanted)
