"""Requests that only brokers send, while it is unknown which senders are brokers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.inter_broker_access import Addresses, InterBrokerAccess
from ottla.broker.config import BrokerConfig
from ottla.broker.requests.authorization import RequestAuthorization, refusal_of_replica
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import ClusterAuthorizationFailed
from ottla.protocol.messages.fetch import FetchRequest
from ottla.zookeeper.errors import ConnectionLoss

UPDATE_METADATA = 6


@dataclass
class Services:
    """Knows the brokers once their registrations could be read, after `failures` failures."""

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


async def test_a_controller_loses_its_connection_where_it_cannot_be_told_from_a_stranger() -> None:
    """An error in the answer would end the matter for it: also an Apache controller repeats none."""
    services = Services(failures=1, addresses=frozenset({FakeSession().client_host}))

    access = RequestAuthorization(services.inter_broker)

    with pytest.raises(CloseConnection):
        await access.check_broker(from_session())

    await access.check_broker(from_session())
    assert await access.is_broker(from_session())


async def test_a_stranger_is_refused_once_the_registrations_are_read() -> None:
    access = RequestAuthorization(Services(failures=1).inter_broker)
    with pytest.raises(CloseConnection):
        await access.check_broker(from_session())

    with pytest.raises(ClusterAuthorizationFailed):
        await access.check_broker(from_session())


async def test_a_follower_loses_its_connection_where_it_cannot_be_told_from_a_stranger() -> None:
    with pytest.raises(CloseConnection):
        await refusal_of_replica(Services(failures=1), FetchRequest(replica_id=2), from_session())
