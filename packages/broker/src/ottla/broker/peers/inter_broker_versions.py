"""The versions of requests between brokers: those of inter.broker.protocol.version 2.8.

A neighbour may advertise more, as Apache Kafka 3.9 does. What a cluster speaks between its brokers is its
setting, not what each of them could: a later LeaderAndIsr, for example, leaves out the addresses and
fields that brokers of the earlier level need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.protocol.api import ApiKey

LEVEL: Final = "2.8"

MOST: Final[Mapping[int, int]] = {
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.LEADER_AND_ISR: 5,
    ApiKey.STOP_REPLICA: 3,
    ApiKey.UPDATE_METADATA: 7,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ALTER_PARTITION: 0,
}
"""The newest version of each API at that level."""

ADVICE: Final = f"set inter.broker.protocol.version={LEVEL} on it and restart it"


def beyond_level(api_key: int, version: int) -> str:
    """Say what to change where a broker sends a version above the level; empty for any other request."""
    if version <= MOST.get(api_key, version):
        return ""
    return f": if a broker sent it, {ADVICE}"
