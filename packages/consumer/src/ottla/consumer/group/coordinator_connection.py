"""A member's requests to its group's coordinator, on a connection that is not shared.

A JoinGroup is answered when all members joined, which may take minutes, and brokers answer in order: on a
shared connection all other responses would wait for it.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ottla.client.api_versions import choose_version
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.rebalance_events import (
    Event,
    Heartbeat,
    Join,
    Joined,
    Leave,
    MemberMetadata,
    Refused,
    Sync,
    Synced,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ottla.protocol.schema import Message

R = TypeVar("R", bound=Message)

PROTOCOL_TYPE = "consumer"
# The first versions with static members (KIP-345).
JOIN_WITH_INSTANCES, SYNC_WITH_INSTANCES, HEARTBEAT_WITH_INSTANCES = 5, 3, 3
LEAVE_WITH_SEVERAL = 3

JOIN_MARGIN_MS = 5_000
MIN_HEARTBEAT_TIMEOUT_MS = 1_000


class CoordinatorConnection:
    """One connection to the group's coordinator, opened on demand, and again after a move or an error."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.group_id = group_id
        self.cluster = cluster
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def send(
        self,
        request: Message,
        response: type[R],
        *,
        timeout_s: float | None = None,
        min_version: int | None = None,
    ) -> R:
        """Send a request to the coordinator and return the response, whose error codes the caller reads.

        Raises the errors of finding and reaching the coordinator, which is looked up again then.
        """
        try:
            connection = await self._connected()
            return await connection.send(request, response, timeout_s=timeout_s, min_version=min_version)
        except ClientError:
            self.forget()
            raise

    async def version(self, request: type[Message]) -> int:
        """Return the version in which a request would be sent. Raises as `send`."""
        try:
            return choose_version(request, (await self._connected()).versions)
        except ClientError:
            self.forget()
            raise

    def forget(self) -> None:
        """Find the coordinator again before the next request."""
        self.cluster.forget_coordinator(self.group_id)

    async def close(self) -> None:
        """Close the connection; outstanding requests fail. The next request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> Connection:
        async with self._lock:
            node_id = await self.cluster.coordinator(self.group_id)
            address = self.cluster.nodes[node_id].address
            present = self._connection
            if present is not None and present.is_open and present.address == address:
                return present
            await self.close()
            connection = Connection(address, self.cluster.config)
            await connection.connect()
            self._connection = connection
            return connection


class GroupRequests:
    """Sends a member's requests. Error codes are returned as events; errors of the connection are raised."""

    def __init__(self, coordinator: CoordinatorConnection, config: GroupConfig) -> None:
        self._coordinator = coordinator
        self._config = config

    async def join(self, effect: Join) -> Event:
        """Send JoinGroup; the response arrives when all members joined."""
        config = self._config
        request = JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=effect.member_id,
            group_instance_id=config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in effect.protocols],
            reason=effect.reason,
        )
        answer = await self._coordinator.send(
            request,
            JoinGroupResponse,
            timeout_s=self._join_timeout_s,
            min_version=self._since(JOIN_WITH_INSTANCES),
        )
        if answer.error_code != ErrorCode.NONE:
            return Refused(effect.token, answer.error_code, answer.member_id)
        return Joined(
            token=effect.token,
            member_id=answer.member_id,
            generation=answer.generation_id,
            protocol_name=answer.protocol_name or "",
            leader_id=answer.leader,
            members=tuple(
                MemberMetadata(member.member_id, member.group_instance_id, bytes(member.metadata))
                for member in answer.members
            ),
            skip_assignment=answer.skip_assignment,
        )

    async def sync(self, effect: Sync) -> Event:
        """Send SyncGroup; the response arrives when the leader sent the assignments."""
        request = SyncGroupRequest(
            group_id=self._config.group_id,
            generation_id=effect.generation,
            member_id=effect.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=effect.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in effect.assignments.items()
            ],
        )
        answer = await self._coordinator.send(
            request,
            SyncGroupResponse,
            timeout_s=self._join_timeout_s,
            min_version=self._since(SYNC_WITH_INSTANCES),
        )
        if answer.error_code != ErrorCode.NONE:
            return Refused(effect.token, answer.error_code)
        return Synced(effect.token, bytes(answer.assignment))

    async def beat(self, effect: Heartbeat) -> int | None:
        """Send Heartbeat; return the error code of its response, None without a response."""
        request = HeartbeatRequest(
            group_id=self._config.group_id,
            generation_id=effect.generation,
            member_id=effect.member_id,
            group_instance_id=self._config.group_instance_id,
        )
        timeout_ms = max(self._config.session_timeout_ms / 3, MIN_HEARTBEAT_TIMEOUT_MS)
        try:
            answer = await self._coordinator.send(
                request,
                HeartbeatResponse,
                timeout_s=timeout_ms / 1_000,
                min_version=self._since(HEARTBEAT_WITH_INSTANCES),
            )
        except ClientError:
            return None
        except KafkaError as error:  # the coordinator was not found
            return error.code
        return answer.error_code

    async def leave(self, effect: Leave) -> None:
        """Send LeaveGroup."""
        several = await self._coordinator.version(LeaveGroupRequest) >= LEAVE_WITH_SEVERAL
        identity = MemberIdentity(member_id=effect.member_id, reason=effect.reason)
        request = LeaveGroupRequest(
            group_id=self._config.group_id,
            member_id="" if several else effect.member_id,
            members=[identity] if several else [],
        )
        await self._coordinator.send(request, LeaveGroupResponse)

    @property
    def _join_timeout_s(self) -> float:
        request_ms = self._coordinator.cluster.config.request_timeout_ms
        return max(request_ms, self._config.max_poll_interval_ms + JOIN_MARGIN_MS) / 1_000

    def _since(self, version: int) -> int | None:
        return version if self._config.group_instance_id is not None else None
