"""Every message in every version, read and written again by Apache Kafka's own generated classes.

The only outside check for what brokers say among themselves: no client library has those messages.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol import stored_groups
from ottla.protocol.messages.transactions import TxnOffsetCommitRequest
from ottla.protocol.schema import Field, Message, Struct
from ottla.protocol.testing import instances, message_versions, version_id
from peers.java import compile_program
from peers.maven import kafka_3_server, kafka_4_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "java" / "MessageEcho.java"
GROUP_PACKAGE = "org.apache.kafka.coordinator.group.generated"
TRANSACTION_PACKAGE = "org.apache.kafka.coordinator.transaction.generated"
SHARE_PACKAGE = "org.apache.kafka.coordinator.share.generated"

NAMED_LATER: Final[dict[type[Message], dict[str, str]]] = {
    TxnOffsetCommitRequest: {"generationidormemberepoch": "generationid"}
}
"""Fields that Kafka 4 has under another name than Kafka 3, whose name is ours."""


class Echo:
    """A Java process that answers one line per line."""

    def __init__(self, class_path: str) -> None:
        classes = compile_program(PROGRAM, class_path)
        self._process = subprocess.Popen(
            ["java", "-Xmx256m", "-cp", f"{classes}{os.pathsep}{class_path}", "MessageEcho"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )

        self._versions: dict[str, range] = {}

    def has(self, name: str, version: int) -> bool:
        """Return whether this Kafka has the message in the version."""
        if name not in self._versions:
            first, _, rest = self._line(f"versions {name}").partition(" ")
            self._versions[name] = range(0) if first == "error" else range(int(first), int(rest) + 1)
        return version in self._versions[name]

    def ask(self, name: str, version: int, data: bytes) -> tuple[bytes, dict[str, Any]]:
        """Return the bytes Java writes for what it read in `data`, and that as JSON."""
        first, _, rest = self._line(f"{name} {version} {data.hex()}").partition(" ")
        assert first != "error", rest
        return bytes.fromhex(first), json.loads(rest)

    def _line(self, question: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    """Kafka 3.9."""
    running = Echo(kafka_3_server())
    yield running
    running.close()


@pytest.fixture(scope="module")
def echo_of_4() -> Iterator[Echo]:
    """Kafka 4.4."""
    running = Echo(kafka_4_server())
    yield running
    running.close()


def java_class(cls: type[Message]) -> str:
    is_stored = not cls.__module__.startswith("ottla.protocol.messages.")
    if not is_stored or cls.__name__.startswith("ConsumerProtocol"):
        return f"org.apache.kafka.common.message.{cls.__name__}{'' if is_stored else 'Data'}"
    if cls.__name__.startswith(("ShareSnapshot", "ShareUpdate")):
        return f"{SHARE_PACKAGE}.{cls.__name__}"
    return f"{TRANSACTION_PACKAGE if 'Transaction' in cls.__name__ else GROUP_PACKAGE}.{cls.__name__}"


def java_version(cls: type[Message], version: int) -> int:
    """Return the version that Kafka 4 gives a message: it does not count the kind of a key as one."""
    return 0 if issubclass(cls, stored_groups.GroupKey) else version


def as_json(value: Any, version: int) -> Any:
    """Return a value as Kafka's JSON converters write it."""
    match value:
        case Struct():
            present = [one for one in value.FIELDS if one.is_in(version) and one.kind != "records"]
            return {plain_name(one.name): as_json(getattr(value, one.name), version) for one in present}
        case list():
            return [as_json(one, version) for one in value]
        case UUID():
            return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value


def plain_name(name: str) -> str:
    """Reduce a name to letters and digits: ours are in snake case, Kafka's in camel case."""
    return name.replace("_", "").lower()


def plain_names(understood: Any) -> Any:
    match understood:
        case dict():
            # Of a record set its size is shown, or nothing.
            kept = {key: value for key, value in understood.items() if not key.endswith("SizeInBytes")}
            return {plain_name(key): plain_names(value) for key, value in kept.items() if key != "records"}
        case list():
            return [plain_names(one) for one in understood]
        case _:
            return understood


def without_defaults(cls: type[Struct], shown: Any, version: int) -> Any:
    """Drop tagged fields at their default: Java's JSON leaves them out, as the bytes do."""
    if not isinstance(shown, dict):
        return shown
    values = {one: shown_field(one, shown, version) for one in cls.FIELDS if plain_name(one.name) in shown}
    return {one.name: value for one, value in values.items() if not is_default(one, value, version)}


def shown_field(field: Field, shown: dict[str, Any], version: int) -> Any:
    value = shown.get(plain_name(field.name))
    if field.kind == "struct":
        return without_defaults(field.element, value, version)
    if field.kind == "array" and isinstance(field.element, type) and isinstance(value, list):
        return [without_defaults(field.element, one, version) for one in value]
    return value


def is_default(field: Field, value: Any, version: int) -> bool:
    if not field.is_tagged(version):
        return False
    default = as_json(field.new_default(), version)
    if isinstance(default, dict):
        default = without_defaults(field.element, default, version)
    return bool(value == default)


@pytest.mark.parametrize(("cls", "version"), message_versions(), ids=version_id)
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_apache_kafka_reads_and_writes_the_same_message(
    echo: Echo, echo_of_4: Echo, cls: type[Message], version: int, data: st.DataObject
) -> None:
    ours = data.draw(instances(cls, version))
    written = ours.encode(version)
    name, number = java_class(cls), java_version(cls, version)
    java = echo_of_4 if echo_of_4.has(name, number) else echo

    again, understood = java.ask(name, number, written)

    names = NAMED_LATER.get(cls, {})
    understood = {names.get(key, key): value for key, value in plain_names(understood).items()}
    assert again == written
    assert without_defaults(cls, understood, version) == without_defaults(
        cls, as_json(ours, version), version
    )
    assert cls.decode(again, version) == ours
