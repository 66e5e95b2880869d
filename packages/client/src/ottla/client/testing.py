"""A scripted broker for tests: real sockets, responses by functions of the test.

async with ScriptedBroker() as broker:
    broker.on(MetadataRequest, lambda request: broker.metadata("orders", partitions=3))
    async with Cluster(broker.bootstrap_servers) as cluster: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from ottla.protocol.api import ApiKey, decode_request_header, request_class, response_header
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import Message

Q = TypeVar("Q", bound=Message)
Responder = Callable[[Q], Message | None]

NODE_ID = 1


class ScriptedBroker:
    """Answers each API with a function of the request; a function that returns None closes the connection.

    `requests` keeps received requests with their versions. The broker serves the APIs that have functions, in
    all versions or within `versions`.
    """

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.requests: list[tuple[Message, int]] = []
        self.connections = 0
        self.features: dict[str, int] = {}
        """The levels of the cluster's features; those of connections that are open stay as they were."""
        self.features_epoch = 0
        self._limits = versions or {}
        self._responders: dict[int, Callable[[Message], Message | None]] = {}
        self._ignored: set[int] = set()
        self._held: list[tuple[asyncio.StreamWriter, bytes]] | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.on(ApiVersionsRequest, lambda _: self.api_versions())

    @property
    def open_connections(self) -> int:
        """How many connections clients hold open."""
        return len(self._writers)

    @property
    def clients(self) -> list[tuple[str, int]]:
        """The addresses that open connections come from."""
        return [writer.get_extra_info("peername")[:2] for writer in self._writers]

    @property
    def bootstrap_servers(self) -> str:
        """Its address, as a client's setting."""
        return f"{self.host}:{self.port}"

    def on(self, kind: type[Q], respond: Responder[Q]) -> None:
        """Answer requests of a kind with a function, also if they were ignored until now."""
        self._ignored.discard(kind.API_KEY)
        self._responders[kind.API_KEY] = respond  # type: ignore[assignment]

    def ignore(self, kind: type[Message]) -> None:
        """Receive requests of a kind, and never answer them."""
        self._ignored.add(kind.API_KEY)

    def hold(self) -> None:
        """Receive requests, and keep the answers back until `release`."""
        self._held = []

    def release(self) -> None:
        """Send the answers that were kept back, in the order of their requests."""
        held, self._held = self._held or [], None
        for writer, response in held:
            writer.write(response)

    def seen(self, kind: type[Q]) -> list[Q]:
        """Return the received requests of a kind, in order."""
        return [request for request, _ in self.requests if isinstance(request, kind)]

    def api_versions(self) -> ApiVersionsResponse:
        """Make a response that lists the APIs with functions."""
        ranges = {key: self._range(key) for key in sorted(self._responders)}
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()
        ]
        features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in self.features.items()
        ]
        return ApiVersionsResponse(
            api_keys=keys, finalized_features_epoch=self.features_epoch, finalized_features=features
        )

    def metadata(self, *topics: str, partitions: int = 1, leader: int = NODE_ID) -> MetadataResponse:
        """Make a response in which this broker leads all partitions of the topics."""
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=NODE_ID, host=self.host, port=self.port)],
            cluster_id="scripted",
            controller_id=NODE_ID,
            topics=[
                MetadataResponseTopic(name=name, partitions=_partitions(partitions, leader))
                for name in topics
            ],
        )

    def lacking(self, *topics: str) -> MetadataResponse:
        """Make a response in which the topics do not exist."""
        response = self.metadata(*topics)
        for topic in response.topics:
            topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
        return response

    def drop_connections(self) -> None:
        """Close all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()

    def _range(self, key: int) -> tuple[int, int]:
        kind = request_class(key)
        return self._limits.get(key, (kind.MIN_VERSION, kind.MAX_VERSION))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while (response := await self._next_response(reader)) is not None:
                framed = len(response).to_bytes(4, "big") + response
                if self._held is None:
                    writer.write(framed)
                else:
                    self._held.append((writer, framed))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _next_response(self, reader: asyncio.StreamReader) -> bytes | None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(size)
        header, position = decode_request_header(frame)
        key, version = header.api_key, header.api_version
        if key == ApiKey.API_VERSIONS and version > self._range(key)[1]:
            refusal = self.api_versions()
            refusal.error_code = 35
            return response_header(header.correlation_id, key, 0) + refusal.encode(0)
        request = request_class(key).decode(memoryview(frame)[position:], version)
        self.requests.append((request, version))
        if key in self._ignored:
            return await self._next_response(reader)
        response = self._responders[key](request)
        if response is None:
            return None
        return response_header(header.correlation_id, key, version) + response.encode(version)


def _partitions(count: int, leader: int) -> list[MetadataResponsePartition]:
    replicas: Sequence[int] = [NODE_ID]
    return [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=leader,
            leader_epoch=0,
            replica_nodes=list(replicas),
            isr_nodes=list(replicas),
        )
        for index in range(count)
    ]
