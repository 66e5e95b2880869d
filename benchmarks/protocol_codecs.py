"""Encoding and decoding of messages, paired with kio and kafka-python.

python benchmarks/protocol_codecs.py [--rounds 15]

All contenders encode the same message to the same bytes, which is checked first. Each round runs every
contender once, in turn, so that other load affects all alike. The figures are CPU time: the median over the
rounds, and the median of the ratios within a round; above 1 the other is slower than ours.
"""

import argparse
import io
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from uuid import UUID

import kio.serial

from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.schema import Message

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer

RECORDS = bytes(16_384)
KAFKA_PYTHON = (kafka.protocol.metadata, kafka.protocol.producer, kafka.protocol.consumer)


@dataclass(frozen=True)
class Case:
    """One message to encode and decode; `build` creates it anew, as a broker or client has to."""

    title: str
    version: int
    build: Callable[[], Message]
    times: int


def api_versions() -> ApiVersionsResponse:
    keys = [ApiVersion(api_key=key, min_version=0, max_version=9) for key in range(56)]
    return ApiVersionsResponse(api_keys=keys)


def metadata() -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"broker-{n}.local", port=9092) for n in range(3)],
        cluster_id="lkc-12345",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{topic}",
                topic_id=UUID(int=topic + 1),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=partition,
                        leader_id=partition % 3,
                        leader_epoch=5,
                        replica_nodes=[0, 1, 2],
                        isr_nodes=[0, 1, 2],
                    )
                    for partition in range(10)
                ],
            )
            for topic in range(10)
        ],
    )


def produce() -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=RECORDS)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=[partition])]
    )


def fetch() -> FetchResponse:
    partition = PartitionData(
        high_watermark=1000,
        last_stable_offset=1000,
        log_start_offset=0,
        aborted_transactions=None,
        records=RECORDS,
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[partition])])


def join_group() -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="billing",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id="consumer-1-6f1b1f0c",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=bytes(40)) for name in ("range", "sticky")],
    )


def offset_commit() -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=12_345, committed_leader_epoch=5, committed_metadata=""
        )
        for index in range(10)
    ]
    return OffsetCommitRequest(
        group_id="billing",
        generation_id_or_member_epoch=7,
        member_id="consumer-1-6f1b1f0c",
        topics=[OffsetCommitRequestTopic(name="orders", partitions=partitions)],
    )


CASES = (
    Case("ApiVersions response v3, 56 keys", 3, api_versions, 200),
    Case("Metadata response v12, 10 topics of 10 partitions", 12, metadata, 40),
    Case("Produce request v9, 16 KB", 9, produce, 3000),
    Case("Fetch response v12, 16 KB", 12, fetch, 2000),
    Case("JoinGroup request v7", 7, join_group, 2000),
    Case("OffsetCommit request v8, 10 partitions", 8, offset_commit, 1000),
)


def kio_class(message: Message, version: int) -> Any:
    api = type(message).__module__.rpartition(".")[2]
    part = "request" if type(message).__name__.endswith("Request") else "response"
    return getattr(import_module(f"kio.schema.{api}.v{version}.{part}"), type(message).__name__)


def kafka_python_class(message: Message) -> Any:
    name = type(message).__name__
    return next(getattr(module, name) for module in KAFKA_PYTHON if hasattr(module, name))


def contenders(case: Case) -> tuple[Mapping[str, Callable[[], object]], Mapping[str, Callable[[], object]]]:
    """Return the encoders and the decoders of the case, ours first; all agree on the bytes."""
    message, version = case.build(), case.version
    written = message.encode(version)
    peer_of_kio = kio_class(message, version)
    kio_read, kio_write = kio.serial.entity_reader(peer_of_kio), kio.serial.entity_writer(peer_of_kio)
    kio_message, _ = kio_read(written, 0)
    kafka_python = kafka_python_class(message)
    kafka_python_message = kafka_python.decode(written, version=version)
    kafka_python_message._header = None

    def write_with_kio() -> bytes:
        buffer = io.BytesIO()
        kio_write(buffer, kio_message)
        return buffer.getvalue()

    encoders: dict[str, Callable[[], object]] = {
        "ottla": lambda: message.encode(version),
        "kio": write_with_kio,
        "kafka-python": lambda: kafka_python_message.encode(version=version),
        "ottla, built and encoded": lambda: case.build().encode(version),
    }
    decoders: dict[str, Callable[[], object]] = {
        "ottla": lambda: type(message).decode(written, version),
        "kio (Rust)": lambda: kio_read(written, 0),
        "kafka-python": lambda: kafka_python.decode(written, version=version),
    }
    for name, encode in encoders.items():
        if encode() != written:
            raise AssertionError(f"{name} writes {case.title} to other bytes")
    return encoders, decoders


def seconds_of(call: Callable[[], object], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


def compare(title: str, calls: Mapping[str, Callable[[], object]], *, rounds: int, times: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds_of(call, times))
    ours = next(iter(taken.values()))
    print(f"  {title}")
    for name, values in taken.items():
        ratio = statistics.median(value / own for value, own in zip(values, ours, strict=True))
        print(f"    {name:<28}{statistics.median(values) * 1e6:10.2f} us   x {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for case in CASES:
        print(f"\n{case.title}")
        encoders, decoders = contenders(case)
        compare("encode", encoders, rounds=rounds, times=case.times)
        compare("decode", decoders, rounds=rounds, times=case.times)


if __name__ == "__main__":
    main()
