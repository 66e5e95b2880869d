"""Scripted conversations with a broker, written down in a form that two brokers can be compared by.

Requests and responses are kept as their fields that are not at their default. Ids that brokers choose, times,
ports and sizes become placeholders, numbered in the order in which they appear.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Awaitable, Callable, ItemsView, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from ottla.protocol.api import ApiKey, RequestHeader, decode_response_header, encode_request, response_class
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import (
    BatchBuilder,
    CorruptRecords,
    iter_records,
    read_end_transaction_marker,
    read_header,
)
from ottla.protocol.records import split_batches as split
from ottla.protocol.schema import Message, Struct

RECORDED: Final = Path(__file__).parent / "recorded"
BOUND_S: Final = 60.0
PAUSE_S: Final = 0.02
_MOST_BYTES: Final = 64
_SIZE: Final = struct.Struct(">i")
_GENERATED: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![\w-])[\w-]{21}[AQgw](?![\w-])"
)
"""The ids that brokers make: a UUID in the long form, or in Kafka's short one."""
_IDS: Final = {
    "producer_id": "producer", "producer_id_filters": "producer", "session_id": "session",
    "subscription_id": "subscription",
}  # fmt: skip
"""Fields of numbers that a broker chooses; two fields with one number stand for the same."""
_ANYTHING: Final = {
    "port": "<port>", "host": "<host>", "client_host": "<host>", "log_dir": "<folder>",
    "partition_size": "<bytes>", "total_bytes": "<bytes>", "usable_bytes": "<bytes>",
    "last_timestamp": "<time>", "transaction_start_time_ms": "<time>", "log_append_time_ms": "<time>",
    "timestamp": "<time>", "finalized_features_epoch": "<epoch>", "push_interval_ms": "<interval>",
}  # fmt: skip
"""Fields that differ from run to run; -1, which means none, does not."""
_SETS: Final = frozenset(
    {
        "topic_partitions", "members", "groups", "config_resources", "transaction_states",
        "supported_features", "finalized_features", "api_keys", "active_producers", "results",
        "responses", "topics", "partitions", "active_tasks", "standby_tasks", "warmup_tasks",
        "assigned_partitions", "partition_indexes", "partition_responses", "requested_metrics",
        "unknown_state_filters", "results_by_transaction", "topic_results", "results_by_partition",
        "partitions_by_user_endpoint", "configs", "subtopologies", "state_changelog_topics",
        "repartition_source_topics", "status", "accepted_compression_types",
    }
)  # fmt: skip
"""Arrays of responses whose order says nothing."""

SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "auto.create.topics.enable": "false",
}
"""The settings of the brokers that conversations are had with, on one broker for all of them."""

Script = Callable[["Conversation"], Awaitable[None]]
Exchange = dict[str, Any]
Changes = dict[str, Any]
"""Fields of a request that are otherwise than in the good one."""
Cases = dict[str, Changes]
"""Requests by their titles."""


class Wire:
    """A connection that sends requests in the version that is asked for, whatever the broker advertises."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._correlation_id = 0
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Message, version: int) -> Message | None:
        """Return the response, or None if the broker closed the connection instead."""
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        self._correlation_id += 1
        header = RequestHeader(request.API_KEY, version, self._correlation_id, "conversation")
        frame = encode_request(header, request)
        writer.write(_SIZE.pack(len(frame)) + frame)
        try:
            async with asyncio.timeout(BOUND_S):
                await writer.drain()
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                body = await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return None
        version = _answered_version(request, version, body)
        _, start = decode_response_header(body, request.API_KEY, version)
        return response_class(request.API_KEY).decode(body[start:], version)

    async def close(self) -> None:
        if self._open is not None:
            writer, self._open = self._open[1], None
            writer.close()
            with suppress(ConnectionError):  # the broker may be faster
                await writer.wait_closed()


def _answered_version(request: Message, version: int, body: bytes) -> int:
    """Return the version of a response: refused versions of ApiVersions are answered in 0 (KIP-511)."""
    if request.API_KEY != ApiKey.API_VERSIONS:
        return version
    refused = int.from_bytes(body[4:6], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
    return 0 if refused else version


class Conversation:
    """One conversation with a broker: the requests of a script and the responses, as they are written down.

    Requests of a script go over one connection, or over others by name, one after the other.
    """

    def __init__(self, port: int) -> None:
        self.exchanges: list[Exchange] = []
        self._port = port
        self._wires: dict[str, Wire] = {}
        self._placeholders: dict[Any, str] = {}
        self._counts: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for wire in self._wires.values():
            await wire.close()

    def name(self, value: object, name: str) -> None:
        """Write a value that a broker has chosen as `<name>`."""
        self._placeholders[value] = f"<{name}>"

    async def disconnect(self, over: str) -> None:
        await self._wires.pop(over).close()

    async def prepare(self, request: Message, version: int | None = None) -> Any:
        """Send a request that is not written down; return the response."""
        return await self._wire("").send(request, request.MAX_VERSION if version is None else version)

    async def ask(self, title: str, request: Message, version: int | None = None, *, over: str = "") -> Any:
        """Send a request, write it down with its response, and return that; None if there is none."""
        version = request.MAX_VERSION if version is None else version
        response = await self._wire(over).send(request, version)
        self._write(title, request, version, response)
        return response

    async def until(
        self,
        title: str,
        request: Message,
        version: int | None,
        is_ready: Callable[[Any], object],
        *,
        over: str = "",
    ) -> Any:
        """Send a request again and again until its response is ready; only the last one is written down."""
        version = request.MAX_VERSION if version is None else version
        response = await self.repeat(request, version, is_ready, over=over)
        self._write(title, request, version, response)
        return response

    async def repeat(
        self, request: Message, version: int | None, is_ready: Callable[[Any], object], *, over: str = ""
    ) -> Any:
        """Send a request until its response is ready; return that, and write nothing down."""
        version = request.MAX_VERSION if version is None else version
        deadline = asyncio.get_running_loop().time() + BOUND_S
        while True:
            response = await self._wire(over).send(request, version)
            if is_ready(response):
                return response
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{request} of version {version} got {response}")
            await asyncio.sleep(PAUSE_S)

    async def coordinators(self) -> None:
        """Wait until the broker has loaded its coordinators of groups, transactions and share groups."""
        from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
        from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
        from ottla.protocol.messages.open_transactions import DescribeTransactionsRequest
        from ottla.protocol.messages.producer_ids import InitProducerIdRequest
        from ottla.protocol.messages.share_state import (
            ReadShareGroupStateSummaryRequest,
            ReadStateSummaryData,
            ReadStateSummaryPartition,
        )

        for key_type, key in enumerate(("group", "id", f"group:{'A' * 21}w:0")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            await self.repeat(request, None, lambda found: found.coordinators[0].error_code == 0)
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group", topics=None)])
        await self.repeat(fetch, 9, lambda found: found.groups[0].error_code == 0)
        first = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        await self.repeat(first, 5, lambda found: found.error_code == 0)  # takes the id 0, a default
        describe = DescribeTransactionsRequest(transactional_ids=["id"])
        await self.repeat(describe, None, lambda found: found.transaction_states[0].error_code == 105)
        state = ReadStateSummaryData(topic_id=UUID(int=7), partitions=[ReadStateSummaryPartition()])
        read = ReadShareGroupStateSummaryRequest(group_id="group", topics=[state])
        loading = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        await self.repeat(read, None, lambda found: found.results[0].partitions[0].error_code not in loading)

    async def topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> UUID:
        """Create a topic, and return its id once the broker leads its partitions."""
        from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
        from ottla.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        wanted = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=wanted)
        made = await self.prepare(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        assert made.topics[0].error_code == 0, made
        topic_id: UUID = made.topics[0].topic_id
        self.name(topic_id, name)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        while True:
            (shown,) = (await self.prepare(asked)).topics
            if len(shown.partitions) == partitions and all(p.leader_id == 1 for p in shown.partitions):
                await self._known_to_groups(name)
                return topic_id
            await asyncio.sleep(PAUSE_S)

    async def _known_to_groups(self, name: str) -> None:
        """Wait until the coordinator of groups gives partitions of a topic, which may hear of it last."""
        from ottla.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

        join = ConsumerGroupHeartbeatRequest(
            group_id=f"probe-{name}", member_id="probe", rebalance_timeout_ms=60_000,
            subscribed_topic_names=[name], topic_partitions=[],
        )  # fmt: skip
        await self.repeat(join, 1, lambda answer: answer.assignment and answer.assignment.topic_partitions)
        leave = ConsumerGroupHeartbeatRequest(group_id=f"probe-{name}", member_id="probe", member_epoch=-1)
        await self.prepare(leave)

    def _wire(self, over: str) -> Wire:
        return self._wires.setdefault(over, Wire(self._port))

    def _write(self, title: str, request: Message, version: int, response: Message | None) -> None:
        assert title not in {exchange["title"] for exchange in self.exchanges}, title
        name = type(request).__name__.removesuffix("Request")
        self.exchanges.append(
            {
                "title": title,
                "request": {f"{name} {version}": self._shown(request, version)},
                "response": "closed" if response is None else self._answer(response, version),
            }
        )

    def _answer(self, response: Message, version: int) -> Any:
        return self._shown(response, version, in_response=True)

    def _shown(self, value: Struct, version: int, *, in_response: bool = False) -> dict[str, Any]:
        found = {}
        for field in value.FIELDS:
            content = getattr(value, field.name)
            if field.name == "throttle_time_ms" or not field.is_in(version):
                continue
            if content != field.new_default():
                found[field.name] = self._field(field.name, content, version, in_response=in_response)
        return found

    def _field(self, name: str, content: Any, version: int, *, in_response: bool) -> Any:
        if isinstance(content, list):
            every = [self._field(name, each, version, in_response=in_response) for each in content]
            return sorted(every, key=json.dumps) if in_response and name in _SETS else every
        if isinstance(content, Struct):
            return self._shown(content, version, in_response=in_response)
        if name == "records":
            return self._batches(b"" if content is None else bytes(content))
        if name.endswith("error_code"):
            return ErrorCode(content).name
        if isinstance(content, int) and content >= 0 and in_response and name in _ANYTHING:
            return _ANYTHING[name]
        if isinstance(content, str) and name in _ANYTHING:
            return _ANYTHING[name]
        return self._plain(name, content)

    def _plain(self, name: str, content: Any) -> Any:
        if isinstance(content, UUID):
            return self._placeholder("id", content)
        if isinstance(content, str):
            return self._text(content)
        if isinstance(content, bytes | memoryview):
            return bytes(content).hex() if len(content) <= _MOST_BYTES else "<many bytes>"
        if name in _IDS and isinstance(content, int) and content not in (0, -1):
            return self._placeholder(_IDS[name], content)
        return content

    def _text(self, text: str) -> str:
        for value, name in self._placeholders.items():
            if isinstance(value, str):
                text = text.replace(value, name)
        return _GENERATED.sub(lambda found: self._placeholder("text", found[0]), text)

    def _placeholder(self, kind: str, value: Any) -> str:
        if value not in self._placeholders:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._placeholders[value] = f"<{kind} {self._counts[kind]}>"
        return self._placeholders[value]

    def _batches(self, records: bytes) -> list[Any]:
        try:
            return [self._batch(bytes(batch)) for batch in split(records)]
        except CorruptRecords:
            return [f"{len(records)} damaged bytes"]

    def _batch(self, batch: bytes) -> dict[str, Any]:
        """Write a batch as its offsets and values, or as the marker that it is."""
        header = read_header(batch)
        shown: dict[str, Any] = {"offsets": [header.base_offset, header.last_offset]}
        if header.producer_id >= 0:
            shown["producer"] = self._placeholder("producer", header.producer_id)
            shown["epoch"] = header.producer_epoch
        marker = read_end_transaction_marker(batch) if header.is_control else None
        if marker is not None:
            return shown | {"marker": marker.type.name}
        values = [record.value for record in iter_records(batch)]
        return shown | {"values": [None if value is None else bytes(value).decode() for value in values]}


def cases(named: Cases) -> ItemsView[str, Changes]:
    """Return requests with their titles, in their order."""
    return named.items()


def batch(*values: str | None, **options: Any) -> bytes:
    """Return a batch with these values."""
    builder = BatchBuilder()
    for value in values:
        builder.append(b"key", None if value is None else value.encode(), 1_700_000_000_000)
    return bytes(builder.build(**options))


async def spoken(script: Script, port: int) -> list[Exchange]:
    """Send the requests of a conversation to the broker at a port; return them with their answers."""
    async with Conversation(port) as conversation:
        await conversation.coordinators()
        await script(conversation)
        return conversation.exchanges


def file_of(name: str) -> Path:
    return RECORDED / f"{name}.json"


def text_of(exchanges: list[Exchange]) -> str:
    """Return a conversation as its file has it: an exchange in three lines."""
    lines = []
    for exchange in exchanges:
        parts = [f' "{key}": {json.dumps(value)}' for key, value in exchange.items()]
        lines.append("{\n" + ",\n".join(parts) + "\n}")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def differences(recorded: list[Exchange], said: list[Exchange]) -> dict[str, str]:
    """Return where two conversations differ: a place, as `title: field`, with the two contents."""
    assert [one["title"] for one in recorded] == [one["title"] for one in said]
    found: dict[str, str] = {}
    for theirs, ours in zip(recorded, said, strict=True):
        for part in ("request", "response"):
            start = theirs["title"] + (" (request)" if part == "request" else "")
            for place, contents in _unlike(theirs[part], ours[part]):
                found[f"{start}: {place}"] = contents
    return found


def _unlike(theirs: Any, ours: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            yield from _unlike(theirs.get(key), ours.get(key), f"{place}.{key}" if place else key)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            yield from _unlike(their, our, f"{place}[{number}]")
    elif theirs != ours and not _says_more(place, theirs, ours):
        yield place, f"recorded {theirs!r}, said {ours!r}"


def _says_more(place: str, theirs: Any, ours: Any) -> bool:
    """Return whether a place is a text for people that we have, in our words, or that Kafka leaves out."""
    return place.endswith(("error_message", "status_detail")) and ours is not None and theirs != ""
