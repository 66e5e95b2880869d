"""Messages as two other implementations read and write them: kio and kafka-python.

Both are given bytes of ours, must find the same values under the same names, and write them to the same
bytes.
"""

from __future__ import annotations

import datetime
import importlib
import io
import math
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.schema import Field, Message, Struct
from ottla.protocol.stored_messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.testing import api_messages, instances, version_id

kio_serial = pytest.importorskip("kio.serial")
pytest.importorskip("kafka.protocol.api_message")

PAYLOADS: tuple[type[Message], ...] = (ConsumerProtocolSubscription, ConsumerProtocolAssignment)


def plain_values(field: Field) -> st.SearchStrategy[Any] | None:
    """Choose values both peers can hold: kio turns times and codes into types of its own."""
    if field.kind == "int32" and field.name.endswith("authorized_operations"):
        return st.integers(0, 2**16 - 1)  # kafka-python turns it into a set of bits
    if field.name == "error_code" or field.name.endswith("_error_code"):
        return st.sampled_from([int(code) for code in ErrorCode if code < 120])
    if field.kind == "float64":
        return st.floats(allow_nan=False, allow_infinity=False)  # kio has finite ones only
    if field.kind == "int64" and ("timestamp" in field.name or field.name.endswith("_ms")):
        return st.integers(0, 2**41)
    if field.name.endswith("_ms"):
        return st.integers(0, 2**31 - 1)
    return None


def kio_class(cls: type[Message], version: int) -> Any:
    """Return kio's class of a message in a version, or None."""
    name = "" if cls in PAYLOADS else ApiKey(cls.API_KEY).name.lower()
    part = "request" if cls.__name__.endswith("Request") else "response"
    if cls in PAYLOADS:
        name = "consumer_protocol_" + cls.__name__.removeprefix("ConsumerProtocol").lower()
        part = "data"
    try:
        module = importlib.import_module(f"kio.schema.{name}.v{version}.{part}")
    except ModuleNotFoundError:
        return None
    return getattr(module, cls.__name__)


def kafka_python_class(cls: type[Message], version: int) -> Any:
    """Return kafka-python's class of a message where it has the version, or None."""
    for module in ("producer", "consumer", "metadata", "admin", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{module}"), cls.__name__, None)
        if found is not None:
            return found if found.min_version <= version <= found.max_version else None
    return None


def versions_with(peer: Any) -> list[tuple[type[Message], int]]:
    return [
        (cls, version)
        for cls in (*api_messages(), *PAYLOADS)
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)
        if peer(cls, version) is not None
    ]


def assert_same(ours: Any, theirs: Any, where: str, version: int) -> None:
    """Compare a value of ours with a peer's, struct by struct and name by name."""
    if isinstance(ours, Struct):
        for field in ours.FIELDS:
            if field.is_in(version):
                value = getattr(ours, field.name)
                assert_same(value, peer_value(theirs, field), f"{where}.{field.name}", version)
        return
    if isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{index}]", version)
        return
    assert plain(ours) == plain(theirs), where


def peer_value(theirs: Any, field: Field) -> Any:
    """Return a peer's value of a field.

    kio's times have no unit in their names, and it has the name of a field before a later one took it;
    kafka-python calls all permitted operations the same.
    """
    shorter = (field.name.removesuffix("_ms"), field.name.removesuffix("_legacy"))
    for name in (field.name, *shorter, "authorized_operations"):
        if hasattr(theirs, name):
            return getattr(theirs, name)
    raise AssertionError(f"{type(theirs).__name__} has no {field.name}")


def plain(value: Any) -> Any:
    """Turn a peer's notion of a value into the number, text or bytes it stands for."""
    match value:
        case datetime.timedelta():
            return value // datetime.timedelta(milliseconds=1)
        case datetime.datetime():
            epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
            return (value - epoch) // datetime.timedelta(milliseconds=1)
        case UUID() if value == ZERO_UUID:
            return None
        case set():
            return sum(1 << bit for bit in value)
        case memoryview():
            return bytes(value)
        case float() if math.isnan(value):
            return "nan"
        case _:
            return value


@pytest.mark.parametrize(("cls", "version"), versions_with(kio_class), ids=version_id)
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_kio_reads_and_writes_the_same_bytes(cls: type[Message], version: int, data: st.DataObject) -> None:
    ours = data.draw(instances(cls, version, plain_values))
    written = ours.encode(version)
    peer = kio_class(cls, version)

    theirs, size = kio_serial.entity_reader(peer)(written, 0)
    again = io.BytesIO()
    kio_serial.entity_writer(peer)(again, theirs)

    assert size == len(written)
    assert_same(ours, theirs, cls.__name__, version)
    assert again.getvalue() == written
    assert cls.decode(again.getvalue(), version) == ours


@pytest.mark.parametrize(("cls", "version"), versions_with(kafka_python_class), ids=version_id)
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_kafka_python_reads_and_writes_the_same_bytes(
    cls: type[Message], version: int, data: st.DataObject
) -> None:
    ours = data.draw(instances(cls, version, plain_values))
    if isinstance(ours, ApiVersionsResponse):
        ours.error_code = 0  # any other it reads as version 0
    written = ours.encode(version)
    peer = kafka_python_class(cls, version)

    if cls in PAYLOADS:
        theirs = peer.decode(written, version=version, header=False)
        again = theirs.encode(version=version, header=False)
    else:
        theirs = peer.decode(written, version=version)
        theirs._header = None  # its decoder leaves this unset, and its encoder asks for it
        again = theirs.encode(version=version)

    assert_same(ours, theirs, cls.__name__, version)
    assert again == written


def test_both_peers_have_most_versions() -> None:
    assert len(versions_with(kio_class)) > 300
    assert len(versions_with(kafka_python_class)) > 300
