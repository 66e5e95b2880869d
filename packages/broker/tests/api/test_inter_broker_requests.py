"""Requests that only brokers send, while nobody can tell who is a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.api.inter_broker_requests import brokers_only, refusal_of_replica
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.inter_broker_access import Addresses, InterBrokerAccess
from ottla.broker.config import BrokerConfig
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.protocol.errors import ClusterAuthorizationFailed
from ottla.protocol.headers import RequestHeader
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.zookeeper.errors import ConnectionLoss

UPDATE_METADATA = 6


@dataclass
class Services:
    """The services of `brokers_only`; the registrations can be read after `failures` failures."""

    failures: int
    addresses: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        config = BrokerConfig(zookeeper_connect="elsewhere:2181")
        self.inter_broker = InterBrokerAccess(config, self._read, lambda: 0.0, between_looks_ms=0)

    async def _read(self) -> Addresses:
        if self.failures:
            self.failures -= 1
            raise ConnectionLoss
        return Addresses(self.addresses, are_complete=True)


def from_session() -> RequestContext:
    return RequestContext(RequestHeader(UPDATE_METADATA, 7, 1, "controller"), FakeSession(), 0.0)


@brokers_only
async def handle(services: Services, request: Any, context: RequestContext) -> UpdateMetadataResponse:
    return UpdateMetadataResponse()


async def test_a_controller_loses_its_connection_where_it_cannot_be_told_from_a_stranger() -> None:
    """An error in the answer would end the matter for it: also an Apache controller repeats none."""
    services = Services(failures=1, addresses=frozenset({FakeSession().client_host}))

    with pytest.raises(CloseConnection):
        await handle(services, UpdateMetadataRequest(), from_session())

    assert (await handle(services, UpdateMetadataRequest(), from_session())).error_code == 0


async def test_a_stranger_is_refused_once_the_registrations_are_read() -> None:
    services = Services(failures=1)
    with pytest.raises(CloseConnection):
        await handle(services, UpdateMetadataRequest(), from_session())

    with pytest.raises(ClusterAuthorizationFailed):
        await handle(services, UpdateMetadataRequest(), from_session())


async def test_a_follower_loses_its_connection_where_it_cannot_be_told_from_a_stranger() -> None:
    with pytest.raises(CloseConnection):
        await refusal_of_replica(Services(failures=1), FetchRequest(replica_id=2), from_session())
