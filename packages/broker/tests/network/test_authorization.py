"""An authorizer is asked before the handler, with principal, host, operation and resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from ottla.broker.api.testing import FakeSession
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.testing import Client, heartbeat, leave, server_of
from ottla.broker.requests.authorization import RequestAuthorization
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CLUSTER_ACTION, READ_GROUP, READ_GROUPS
from ottla.broker.requests.routes import Route, Routes, always
from ottla.broker.security.authorizer import AllowAll, Decision, Operation, Resource, ResourceType
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.errors import ErrorCode, GroupAuthorizationFailed
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.schema import Message

BOUND_S = 30
GROUP = ResourceType.GROUP


class Asked(NamedTuple):
    """One question to the authorizer."""

    principal: Principal
    host: str
    operation: Operation
    resource: Resource


class OnlyGroups(AllowAll):
    """An authorizer that allows groups by name."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = {Resource(GROUP, name) for name in allowed}
        self.asked: list[Asked] = []
        self.decisions: list[Decision] = []

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        self.asked.append(Asked(principal, host, operation, resource))
        return resource in self.allowed

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return any(resource.type is resource_type for resource in self.allowed)

    def audit(self, decision: Decision) -> None:
        self.decisions.append(decision)


class Handlers:
    """Heartbeat, whose group the dispatcher asks for, and LeaveGroup, which asks itself."""

    def __init__(self) -> None:
        self.served: list[str] = []

    async def heartbeat(
        self, services: None, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse:
        self.served.append(request.group_id)
        return HeartbeatResponse()

    async def leave(
        self, services: None, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        if not context.allows(READ_GROUPS, Resource(GROUP, request.group_id)):
            raise GroupAuthorizationFailed
        self.served.append(request.group_id)
        return LeaveGroupResponse()

    def routes(self, **facts: Any) -> Routes[None]:
        return Routes(
            [
                Route(ApiKey.HEARTBEAT, 0, 0, self.heartbeat, (READ_GROUP,), **facts),
                Route(ApiKey.LEAVE_GROUP, 0, 0, self.leave, (READ_GROUPS,)),
            ]
        )


@asynccontextmanager
async def client_of(routes: Routes[None], access: RequestAuthorization) -> AsyncIterator[Client]:
    server = server_of(routes, dispatcher=Dispatcher(routes, None, access=access))
    async with asyncio.timeout(BOUND_S), server:
        reader, writer = await asyncio.open_connection(*await server.listen("PLAINTEXT", "127.0.0.1", 0))
        try:
            yield Client(reader, writer)
        finally:
            writer.close()


async def test_the_dispatcher_asks_before_the_handler() -> None:
    handlers, authorizer = Handlers(), OnlyGroups("mine")
    async with client_of(handlers.routes(), RequestAuthorization(authorizer=authorizer)) as client:
        client.send(heartbeat(1, "mine"), heartbeat(2, "yours"))

        assert await client.answers(2) == [(1, 0), (2, ErrorCode.GROUP_AUTHORIZATION_FAILED)]

    assert handlers.served == ["mine"]
    assert authorizer.asked == [
        Asked(ANONYMOUS, "127.0.0.1", Operation.READ, Resource(GROUP, name)) for name in ("mine", "yours")
    ]


async def test_a_handler_asks_for_what_the_dispatcher_cannot_name() -> None:
    handlers, authorizer = Handlers(), OnlyGroups("mine")
    async with client_of(handlers.routes(), RequestAuthorization(authorizer=authorizer)) as client:
        client.send(leave(1, "mine"), leave(2, "yours"))

        assert await client.answers(2) == [(1, 0), (2, ErrorCode.GROUP_AUTHORIZATION_FAILED)]

    assert handlers.served == ["mine"]
    assert [(asked.operation, asked.resource.name) for asked in authorizer.asked] == [
        (Operation.READ, "mine"),
        (Operation.READ, "yours"),
    ]


async def test_without_an_authorizer_everything_is_allowed() -> None:
    handlers = Handlers()
    async with client_of(handlers.routes(), RequestAuthorization()) as client:
        client.send(heartbeat(1, "a"), leave(2, "b"))

        assert await client.answers(2) == [(1, 0), (2, 0)]

    assert handlers.served == ["a", "b"]


async def test_an_error_that_the_version_has_no_place_for_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def failing(services: None, request: ElectLeadersRequest, context: RequestContext) -> Message:
        raise GroupAuthorizationFailed

    routes = Routes([Route(ApiKey.ELECT_LEADERS, 0, 0, failing)])
    async with client_of(routes, RequestAuthorization()) as client:
        client.send(encode_request(RequestHeader(ApiKey.ELECT_LEADERS, 0, 1, None), ElectLeadersRequest()))

        assert await client.is_closed()

    assert not [record for record in caplog.records if record.exc_info]


async def test_a_request_of_brokers_is_refused_to_clients_before_the_handler() -> None:
    handlers = Handlers()
    async with client_of(handlers.routes(of_brokers=always), RequestAuthorization()) as client:
        client.send(heartbeat(1, "a"))

        assert await client.answers(1) == [(1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]

    assert handlers.served == []


def test_an_operation_on_the_cluster_names_kafkas_only_cluster() -> None:
    assert CLUSTER_ACTION.resource_of(None) == Resource(ResourceType.CLUSTER, "kafka-cluster")


def context_of(authorizer: OnlyGroups) -> RequestContext:
    header = RequestHeader(ApiKey.LIST_GROUPS, 0, 1, "client")
    return RequestContext(header, FakeSession(), 0.0, authorizer=authorizer)


def test_a_decision_about_a_named_resource_is_audited_and_a_filter_is_not() -> None:
    authorizer = OnlyGroups("mine")
    context = context_of(authorizer)

    assert context.allows(READ_GROUPS, Resource(GROUP, "mine"))
    assert not context.allows(READ_GROUPS, Resource(GROUP, "yours"))
    assert not context.allows(READ_GROUPS, Resource(GROUP, "listed"), is_asked_for=False)

    host = context.session.client_host
    assert authorizer.decisions == [
        Decision(ANONYMOUS, host, Operation.READ, Resource(GROUP, name), "LIST_GROUPS", is_allowed)
        for name, is_allowed in (("mine", True), ("yours", False))
    ]


def test_a_permission_on_any_resource_of_a_type_is_audited_without_a_name() -> None:
    authorizer = OnlyGroups("mine")
    context = context_of(authorizer)

    assert context.allows_any(READ_GROUPS)
    assert not context.allows_any(CLUSTER_ACTION)

    assert [(found.resource.name, found.is_allowed) for found in authorizer.decisions] == [
        ("<any>", True),
        ("<any>", False),
    ]
