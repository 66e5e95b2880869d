"""The recorded conversations with Apache Kafka 4.4, had again with Ottla: the same requests and responses.

`tests/interop/test_conversations.py` has them with Apache Kafka and compares them with the files.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Final

import pytest

from ottla.broker.testing import BrokerCluster
from peers.conversations import SETTINGS, differences, file_of, spoken
from peers.conversations_of_all import SCRIPTS

pytestmark = pytest.mark.timeout(600)

ARGUED: Final = (
    (
        r".*: a group is described twice: groups",
        "A group that is named twice is described once: a short request cannot ask for a long response.",
    ),
    (
        r"(consumer|share|streams)_groups.*: .*heartbeat_interval_ms",
        "Members of a group in motion are told a shorter interval, so that a rebalance takes less time.",
    ),
    (
        r"consumer_groups_1: an expression that grows: .*",
        "RE2 in C++ bounds the program of an expression, RE2 in Java does not: ours refuses it.",
    ),
    (
        r"streams_groups_\d: (two subtopologies with one name|a topology with a negative epoch): error_code",
        "Apache Kafka finds no name for its own exception; ours says that the topology is invalid.",
    ),
    (
        r"share_groups: offsets of a group without a name are described, \d: .*",
        "Apache Kafka finds no name for its own exception; ours knows no offsets of it.",
    ),
    (
        r"share_groups: offsets of (a topic|all topics) are described, \d: .*(start_offset|lag)",
        "Ottla writes where a group began as its members leave; Apache Kafka forgets it with the leader.",
    ),
    (
        r"share_sessions_2: a mode that there is not: error_code",
        "Apache Kafka finds no name for its own exception; ours says that the request is invalid.",
    ),
    (
        r"share_state: a range that ends before it begins is written, \d: .*error_code",
        "Apache Kafka keeps a damaged range, or fails on it when it is merged; ours refuses it.",
    ),
    (
        r"logs: fetched: an isolation that there is not, \d+: .*",
        "Apache Kafka finds no name for its own exception; ours reads all records, as for all but 1.",
    ),
    (
        r"(logs: records of an unknown producer are written, 13|transactions: a record that came before): "
        r".*log_append_time_ms",
        "Apache Kafka gives a duplicate's own time, in a topic that has no append time.",
    ),
    (
        r"transactions: a sequence that was left out: .*log_start_offset",
        "Of a refused batch, clients read it with UNKNOWN_PRODUCER_ID alone, which neither broker answers.",
    ),
    (
        r"transactions: a marker of an epoch of the past is written, \d: .*error_code",
        "Apache Kafka finds no name for its own exception; ours says that the epoch is invalid.",
    ),
    (
        r"cluster: features: .*results\[\d\].error_message",
        "Apache Kafka writes the text NONE where there is no error.",
    ),
    (
        r"cluster: versions .*: api_keys",
        "Ottla serves the versions of old clients too; tests/interop/test_api_versions.py compares them.",
    ),
    (
        r"cluster: versions .*: (supported|finalized)_features",
        "Features of the Raft quorum mean nothing with ZooKeeper.",
    ),
    (
        r"telemetry: .*: delta_temporality",
        "Ottla asks for sums since the start of the client, which Prometheus adds up by itself.",
    ),
    (
        r"telemetry: a push that unfolds to 64 MiB: error_code",
        "Apache Kafka raises TELEMETRY_TOO_LARGE, and answers what ends all pushes of a client.",
    ),
    (
        r"telemetry: a push that is no metrics: .*",
        "Apache Kafka hands what is pushed to a plugin unread; Ottla reads it.",
    ),
)
"""The places where Ottla answers otherwise, each with the reason; texts for people are Ottla's own."""


def test_ottla_answers_as_apache_kafka_4_4_has_answered(tmp_path: Path) -> None:
    settings = SETTINGS | {"inter.broker.networks": "127.0.0.0/8"}
    with BrokerCluster(tmp_path, settings, size=1) as cluster:
        said = {
            name: asyncio.run(spoken(script, cluster.brokers[1].port)) for name, script in SCRIPTS.items()
        }

    found = {
        f"{name}: {place}": contents
        for name, exchanges in said.items()
        for place, contents in differences(json.loads(file_of(name).read_text()), exchanges).items()
    }
    patterns = [pattern for pattern, _ in ARGUED]
    assert {place: seen for place, seen in found.items() if not _is_matched(place, patterns)} == {}
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, place) for place in found)] == []


def _is_matched(place: str, patterns: list[str]) -> bool:
    return any(re.fullmatch(pattern, place) for pattern in patterns)
