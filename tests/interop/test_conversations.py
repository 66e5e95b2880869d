"""The recorded conversations, had with Apache Kafka 4.4 once more: it says what the files have of it.

`tests/clients/test_conversations.py` has them with Ottla. A script that is new or changed is recorded by this
test: what was said is in the directory that the failure names, to be looked at and copied.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peers.conversations import SETTINGS, file_of, spoken, text_of
from peers.conversations_of_all import SCRIPTS
from peers.java import compile_program
from peers.kraft_kafka import KraftKafka
from peers.maven import kafka_4_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def test_apache_kafka_4_4_says_what_was_recorded(tmp_path: Path) -> None:
    taker = compile_program(Path(__file__).parent / "java" / "MetricsTaker.java", kafka_4_server())
    settings = SETTINGS | {"metric.reporters": "MetricsTaker"}
    said = tmp_path / "recorded"
    said.mkdir()
    with KraftKafka(tmp_path / "kafka", settings, classes=[taker]) as kafka:
        for name, script in SCRIPTS.items():
            exchanges = asyncio.run(spoken(script, kafka.port))
            (said / file_of(name).name).write_text(text_of(exchanges))

    changed = [
        name
        for name in SCRIPTS
        if not file_of(name).exists() or (said / file_of(name).name).read_text() != file_of(name).read_text()
    ]
    assert changed == [], f"compare {said} with {file_of('').parent}"
