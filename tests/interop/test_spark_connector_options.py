"""Our list of the options of Spark's own connector, beside the classes of its jar and Kafka's clients."""

from __future__ import annotations

import re
import struct
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.pipeline.connector_options import CLIENTS, CONFIGURATION, CONNECTOR, CONSUMER, OPTIONS, PRODUCER
from peers.maven import kafka_clients, missing_tools, spark_connector

pytestmark = [pytest.mark.java, pytest.mark.skipif(bool(missing_tools()), reason=str(missing_tools()))]

PROVIDER = "org/apache/spark/sql/kafka010/KafkaSourceProvider$.class"
SETTINGS = "org/apache/spark/sql/kafka010/package$.class"
TOKENS = "org/apache/spark/kafka010/KafkaTokenSparkConf$.class"
_CONFIGS = {"consumer.ConsumerConfig": CONSUMER, "producer.ProducerConfig": PRODUCER}
_WIDE = {
    3: 5,
    4: 5,
    5: 9,
    6: 9,
    7: 3,
    8: 3,
    9: 5,
    10: 5,
    11: 5,
    12: 5,
    15: 4,
    16: 3,
    17: 5,
    18: 5,
    19: 3,
    20: 3,
}
"""The sizes of the entries of a class file's constant pool, by their tags (JVM specification, 4.4)."""
WORDS = {
    "latest",
    "earliest",
    "source",
    "executor",
    "false",
    "none",
    "spark-kafka-source",
    "spark-kafka-relation",
}
"""Values, and parts of names, among the texts of the class."""


def texts(jar: Path, name: str) -> Iterator[str]:
    """Yield the string constants of a class."""
    code = zipfile.ZipFile(jar).read(name)
    (count,) = struct.unpack_from(">H", code, 8)
    at, number, utf8, wanted = 10, 1, dict[int, str](), list[int]()
    while number < count:
        tag = code[at]
        (short,) = struct.unpack_from(">H", code, at + 1)
        if tag == 1:
            utf8[number] = code[at + 3 : at + 3 + short].decode(errors="replace")
            at += 3 + short
        else:
            if tag == 8:
                wanted.append(short)
            at += _WIDE[tag]
            number += tag in (5, 6)  # of eight bytes, they take two numbers
        number += 1
    for index in wanted:
        yield utf8[index]


def jar(part: str) -> Path:
    (found,) = (Path(entry) for entry in spark_connector().split(":") if part in entry.rpartition("/")[2])
    return found


def test_the_options_are_those_of_the_connectors_classes() -> None:
    connector = jar("spark-sql-kafka")
    words = {text for text in texts(connector, PROVIDER) if re.fullmatch(r"[a-z.-]{5,}", text)}
    kafkas = CONSUMER | PRODUCER

    options = {word for word in words - WORDS if word.removeprefix("kafka.") not in kafkas} - {"kafka."}

    assert options == {name.lower() for name in OPTIONS}
    assert f"-{CONNECTOR}.jar" in connector.name


def test_the_settings_of_spark_are_those_of_the_connectors_classes() -> None:
    found = {text for text in texts(jar("spark-sql-kafka"), SETTINGS) if re.fullmatch(r"spark\.[\w.]+", text)}
    found |= {text for text in texts(jar("token-provider"), TOKENS) if re.fullmatch(r"spark\.[\w.]+", text)}

    assert found == set(CONFIGURATION)


@pytest.mark.parametrize("config", list(_CONFIGS))
def test_the_settings_are_those_of_kafkas_clients(config: str) -> None:
    done = subprocess.run(
        ["java", "-Xmx64m", "-cp", kafka_clients(CLIENTS), f"org.apache.kafka.clients.{config}"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip

    found = re.findall(r'<h4><a id="([^"]+)"', done.stdout)

    assert {name.rpartition("_")[2] for name in found} == _CONFIGS[config]
