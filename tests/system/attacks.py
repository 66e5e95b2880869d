"""Attacks on a broker without logins: requests of strangers, long lists, half-sent frames, bombs."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from pathlib import Path

from attack_costs import ATTACKS, Attack, MadeAttack, attack
from attack_frames import LISTS, distinct_topics, framed, list_frame
from random_frames import RandomFrames

from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from ottla.protocol.messages.controller_requests import ControlledShutdownRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.records import BatchBuilder, Codec

ANSWER_TIMEOUT_S = 60.0
STEADY = "crowd"  # the topic of the well-behaved client
BOMBS = "bombs"


# --- what attackers do


def connected(broker: BrokerProcess) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), timeout=ANSWER_TIMEOUT_S)


def answer_to(link: socket.socket, frame: bytes) -> bytes | None:
    """Send a frame and return its answer, or None when the broker closes the connection."""
    try:
        link.sendall(frame)
        return read_answer(link)
    except (ConnectionError, BrokenPipeError):
        return None


def read_answer(link: socket.socket) -> bytes | None:
    head = _read(link, 4)
    return None if head is None else _read(link, int.from_bytes(head, "big"))


def _read(link: socket.socket, size: int) -> bytes | None:
    with link.makefile("rb", buffering=0) as file:
        data = b""
        while len(data) < size:
            if not (more := file.read(size - len(data))):
                return None
            data += more
    return data


def send_once(broker: BrokerProcess, frame: bytes) -> bytes | None:
    with connected(broker) as link:
        return answer_to(link, frame)


def _at_once(broker: BrokerProcess, frame: bytes, connections: int, *, leaves: int = 0) -> None:
    """Send a frame on several connections; some close at once, the others wait for their answer."""
    links = [connected(broker) for _ in range(connections)]
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(frame)
    for link in links[:leaves]:
        link.close()
    for link in links[leaves:]:
        with contextlib.suppress(OSError):
            read_answer(link)
        link.close()


def brokers_named(broker: BrokerProcess) -> int:
    answer = send_once(broker, framed(ApiKey.METADATA, 1, MetadataRequest(topics=[]).encode(1)))
    assert answer is not None
    return len(MetadataResponse.decode(answer[4:], 1).brokers)


@attack("none: the machine itself")
def nothing(broker: BrokerProcess) -> None:
    time.sleep(5)


@attack("inter-broker requests of a stranger")
def removes_brokers(broker: BrokerProcess) -> None:
    requests = [
        (ApiKey.UPDATE_METADATA, 4, UpdateMetadataRequest(controller_id=0, controller_epoch=10_000)),
        (ApiKey.LEADER_AND_ISR, 2, LeaderAndIsrRequest(controller_id=0, controller_epoch=10_000)),
        (ApiKey.STOP_REPLICA, 1, StopReplicaRequest(controller_id=0, controller_epoch=10_000)),
        (ApiKey.CONTROLLED_SHUTDOWN, 1, ControlledShutdownRequest(broker_id=0)),
    ]
    for key, version, request in requests:
        send_once(broker, framed(key, version, request.encode(version)))
        if (named := brokers_named(broker)) != 1:
            raise AssertionError(f"after {key.name} of a stranger Metadata names {named} brokers")


@attack("a stranger that fetches as a follower")
def moves_high_watermark(broker: BrokerProcess) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(
        replica_id=7, max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=STEADY, partitions=[partition])]
    )
    for _ in range(1_000):
        answer = send_once(broker, framed(ApiKey.FETCH, 6, request.encode(6)))
        if (
            answer is not None
            and not FetchResponse.decode(answer[4:], 6).responses[0].partitions[0].error_code
        ):
            raise AssertionError("a stranger is served as follower 7")


def _long_list(name: str, count: int) -> Attack:
    def send(broker: BrokerProcess) -> None:
        frame = list_frame(name, STEADY, count)
        with contextlib.suppress(TimeoutError):
            send_once(broker, frame)
        if count <= 100_000:  # what is served: four at once, and one that leaves while it is served
            _at_once(broker, frame, 5, leaves=1)

    return send


for _name in LISTS:
    ATTACKS[f"{_name} of 10,000 elements"] = MadeAttack(_long_list(_name, 10_000))
    ATTACKS[f"{_name} of 99,999 elements"] = MadeAttack(_long_list(_name, 99_999))
    ATTACKS[f"{_name} of 2,000,000 elements"] = MadeAttack(_long_list(_name, 2_000_000))


@attack("30,000 topics made by Metadata")
def auto_created(broker: BrokerProcess) -> None:
    send_once(broker, distinct_topics(ApiKey.METADATA, 30_000))


@attack("30,000 topics in one CreateTopics")
def created(broker: BrokerProcess) -> None:
    send_once(broker, distinct_topics(ApiKey.CREATE_TOPICS, 30_000))


@attack("100,000 topics in one DeleteTopics")
def deleted(broker: BrokerProcess) -> None:
    send_once(broker, distinct_topics(ApiKey.DELETE_TOPICS, 100_000))


@attack("20 half-sent frames of 100 MB")
def half_sent(broker: BrokerProcess) -> None:
    links = [connected(broker) for _ in range(20)]
    chunk = framed(ApiKey.PRODUCE, 7, b"")[4:] + bytes(1 << 20)
    with contextlib.ExitStack() as stack:
        for link in links:
            stack.enter_context(link)
            link.sendall((100_000_000).to_bytes(4, "big"))
            link.settimeout(1)
        for _ in range(95):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(chunk)
        time.sleep(2)


@attack("200 connections with 2,000 fetches whose answers nobody reads")
def never_read(broker: BrokerProcess) -> None:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=STEADY, partitions=[partition])],
    )
    frame = framed(ApiKey.FETCH, 6, request.encode(6)) * 2_000
    _hold(broker, frame, connections=200, for_s=8)


@attack("38,400 long polls on 64 connections")
def long_polls(broker: BrokerProcess) -> None:
    _hold(broker, _long_poll() * 600, connections=64, for_s=8)


@attack("12,000 connections that wait for a record")
def parked(broker: BrokerProcess) -> None:
    _hold(broker, _long_poll(), connections=12_000, for_s=8)


def _long_poll() -> bytes:
    partition = FetchPartition(partition=9, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=STEADY, partitions=[partition])],
    )
    return framed(ApiKey.FETCH, 6, request.encode(6))


def _hold(broker: BrokerProcess, frame: bytes, connections: int, for_s: float) -> None:
    """Send bytes on many connections as far as they are taken, read nothing, and close all after a while."""
    with contextlib.ExitStack() as stack:
        for _ in range(connections):
            link = stack.enter_context(connected(broker))
            link.setblocking(False)
            with contextlib.suppress(OSError):
                link.send(frame)
        time.sleep(for_s)


@attack("six zstd bombs onto a topic of gzip")
def recompressed_bombs(broker: BrokerProcess) -> None:
    make_topic(broker, BOMBS, {"compression.type": "gzip"})
    frame = _bomb_frame(Codec.ZSTD, 250)
    _at_once(broker, frame, 6)


@attack("gzip bombs that old clients fetch")
def converted_bombs(broker: BrokerProcess) -> None:
    make_topic(broker, BOMBS, {})
    for _ in range(4):
        send_once(broker, _bomb_frame(Codec.GZIP, 100))
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=BOMBS, partitions=[partition])]
    )
    _at_once(broker, framed(ApiKey.FETCH, 0, request.encode(0)), 6)


def _bomb_frame(codec: Codec, size_mib: int) -> bytes:
    builder = BatchBuilder(1 << 30, codec=codec)
    for _ in range(size_mib):
        builder.append(None, bytes(1 << 20), 1)
    data = PartitionProduceData(index=0, records=builder.build())
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=BOMBS, partition_data=[data])]
    )
    return framed(ApiKey.PRODUCE, 7, request.encode(7))


def make_topic(broker: BrokerProcess, name: str, configs: dict[str, str]) -> None:
    wanted = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=wanted)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    send_once(broker, framed(ApiKey.CREATE_TOPICS, 2, request.encode(2)))


@attack("no descriptor left to accept with")
def no_descriptors(broker: BrokerProcess) -> None:
    used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    _, most = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 50, most))
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex((broker.host, broker.port))
        time.sleep(5)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (most, most))
    size = broker.log_file.stat().st_size
    if size > 100_000:
        raise AssertionError(f"the log has {size:,} bytes after 5 s without descriptors")


@attack("100,000 frames that cannot be read")
def bad_frames(broker: BrokerProcess) -> None:
    frames = RandomFrames(1, [ApiKey.FETCH, ApiKey.PRODUCE, ApiKey.METADATA])
    lines_before = broker.log_file.read_text(errors="replace").count("\n")
    ends = time.monotonic() + 15
    for _ in range(100_000):
        if time.monotonic() > ends:
            break
        with contextlib.suppress(OSError), connected(broker) as link:
            link.sendall(frames.frame())
    lines = broker.log_file.read_text(errors="replace").count("\n") - lines_before
    if lines > 500:
        raise AssertionError(f"{lines:,} lines in the log")
