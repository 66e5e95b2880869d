"""DescribeClientQuotas and AlterClientQuotas: Kafka's filters, checks and errors, over znodes in memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.api import alter_client_quotas, describe_client_quotas
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.registration import make_roots
from ottla.broker.config import BrokerConfig
from ottla.broker.quotas.clients import ClientQuotas
from ottla.broker.requests.context import RequestContext
from ottla.broker.runtime.environment import Environment
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlteredEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import ConfigEntity

Names = tuple[tuple[str, str | None], ...]

ALICE: Names = (("user", "alice"),)
ALICES_APP: Names = (("user", "alice"), ("client-id", "app"))
ALICES_DEFAULT: Names = (("user", "alice"), ("client-id", None))
ANY_USER: Names = (("user", None),)
APP: Names = (("client-id", "my app/*"),)
ADDRESS: Names = (("ip", "127.0.0.1"),)


@dataclass
class Parts:
    """The parts that the handlers use."""

    configs: Configs
    client_quotas: ClientQuotas

    async def alter(
        self, names: Names, *, validate_only: bool = False, **quotas: float | None
    ) -> tuple[int, str]:
        entry = AlteredEntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names],
            ops=[
                OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in quotas.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
        response = await alter_client_quotas.handle(self, request, context(ApiKey.ALTER_CLIENT_QUOTAS))
        (outcome,) = response.entries
        assert tuple((of.entity_type, of.entity_name) for of in outcome.entity) == names
        return outcome.error_code, outcome.error_message or ""

    async def describe(
        self, *filters: tuple[str, int, str | None], strict: bool = False
    ) -> DescribeClientQuotasResponse:
        components = [
            ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in filters
        ]
        request = DescribeClientQuotasRequest(components=components, strict=strict)
        return await describe_client_quotas.handle(self, request, context(ApiKey.DESCRIBE_CLIENT_QUOTAS))

    async def found(self, *filters: tuple[str, int, str | None], strict: bool = False) -> dict[Names, Any]:
        response = await self.describe(*filters, strict=strict)
        assert response.entries is not None, response.error_message
        return {
            tuple((of.entity_type, of.entity_name) for of in entry.entity): {
                value.key: value.value for value in entry.values
            }
            for entry in response.entries
        }


def context(api_key: ApiKey) -> RequestContext:
    return RequestContext(RequestHeader(api_key, 1, 0, None), FakeSession(), 0.0)


class Resolver:
    """Knows hosts of the domain example.com, once two are asked for at the same time."""

    def __init__(self) -> None:
        self._asked = 0
        self._are_two = asyncio.Event()

    async def look_up(self, host: str) -> list[str]:
        self._asked += 1
        if self._asked == 2:
            self._are_two.set()
        if not host.endswith(".example.com"):
            raise OSError("unknown")
        async with asyncio.timeout(60):
            await self._are_two.wait()
        return ["10.0.0.1"]


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    async with MemoryEnsemble().session() as session:
        await make_roots(session)
        configs = Configs(session, BrokerConfig(), Environment(), 1)
        yield Parts(configs, ClientQuotas(BrokerConfig(), lambda: 0.0, Resolver().look_up))


async def test_quotas_of_every_kind_of_entity_are_stored_where_kafka_has_them(parts: Parts) -> None:
    stored = {
        ALICE: "users/alice",
        ALICES_APP: "users/alice/clients/app",
        ALICES_DEFAULT: "users/alice/clients/<default>",
        ANY_USER: "users/<default>",
        APP: "clients/my%20app%2F%2A",
    }
    for names in stored:
        assert await parts.alter(names, producer_byte_rate=1024, request_percentage=12.5) == (0, "")
    assert await parts.alter(ADDRESS, connection_creation_rate=10) == (0, "")

    for path in stored.values():
        settings, _ = await parts.configs.client_entities.read(path)
        assert settings == {"producer_byte_rate": "1024", "request_percentage": "12.5"}
    settings, _ = await parts.configs.client_entities.read("ips/127.0.0.1")
    assert settings == {"connection_creation_rate": "10"}
    assert len(await parts.found()) == 6


async def test_a_quota_is_removed_and_an_entity_without_any_is_not_described(parts: Parts) -> None:
    await parts.alter(ALICE, producer_byte_rate=1, consumer_byte_rate=2)
    await parts.alter(ALICE, producer_byte_rate=None)
    assert await parts.found() == {ALICE: {"consumer_byte_rate": 2}}

    await parts.alter(ALICE, consumer_byte_rate=None)

    assert await parts.found() == {}


async def test_the_hosts_of_a_request_are_looked_up_together(parts: Parts) -> None:
    entries = [
        AlteredEntryData(
            entity=[EntityData(entity_type="ip", entity_name=host)],
            ops=[OpData(key="connection_creation_rate", value=1.0, remove=False)],
        )
        for host in ("a.example.com", "b.example.com", "no.such.host")
    ]
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)

    response = await alter_client_quotas.handle(parts, request, context(ApiKey.ALTER_CLIENT_QUOTAS))

    assert [entry.error_code for entry in response.entries] == [0, 0, ErrorCode.INVALID_REQUEST]


async def test_validate_only_stores_nothing(parts: Parts) -> None:
    assert await parts.alter(ALICE, producer_byte_rate=1, validate_only=True) == (0, "")

    assert await parts.found() == {}


async def test_a_quota_and_a_credential_of_one_user_leave_each_other_alone(parts: Parts) -> None:
    node = ConfigEntity("users/alice", {"SCRAM-SHA-512": "salt=x"})
    await parts.configs.client_entities._session.create(node.path, node.encode())

    await parts.alter(ALICE, producer_byte_rate=5)

    settings, _ = await parts.configs.client_entities.read("users/alice")
    assert settings == {"SCRAM-SHA-512": "salt=x", "producer_byte_rate": "5"}
    assert await parts.found() == {ALICE: {"producer_byte_rate": 5}}, "credentials are never described"


@pytest.mark.parametrize(
    ("filters", "strict", "expected"),
    [
        ((), False, {ALICE, ALICES_APP, ALICES_DEFAULT, ANY_USER, APP, ADDRESS}),
        ((("user", 0, "alice"),), False, {ALICE, ALICES_APP, ALICES_DEFAULT}),
        ((("user", 0, "alice"),), True, {ALICE}),
        ((("user", 1, None),), False, {ANY_USER}),
        ((("user", 2, None),), True, {ALICE, ANY_USER}),
        ((("user", 2, None), ("client-id", 2, None)), True, {ALICES_APP, ALICES_DEFAULT}),
        ((("user", 0, "alice"), ("client-id", 1, None)), False, {ALICES_DEFAULT}),
        ((("client-id", 0, "my app/*"),), True, {APP}),
        ((("client-id", 0, "app"),), False, {ALICES_APP}),
        ((("client-id", 0, "app"),), True, set()),
        ((("ip", 2, None),), False, {ADDRESS}),
        ((("ip", 0, "127.0.0.2"),), False, set()),
    ],
)
async def test_a_filter_finds_what_kafkas_finds(
    parts: Parts, filters: tuple[tuple[str, int, str | None], ...], strict: bool, expected: set[Names]
) -> None:
    for names in (ALICE, ALICES_APP, ALICES_DEFAULT, ANY_USER, APP):
        await parts.alter(names, producer_byte_rate=1)
    await parts.alter(ADDRESS, connection_creation_rate=1)

    assert set(await parts.found(*filters, strict=strict)) == expected


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ((("user", 0, "a"), ("user", 1, None)), ErrorCode.INVALID_REQUEST),
        ((("", 0, "a"),), ErrorCode.INVALID_REQUEST),
        ((("group", 0, "a"),), ErrorCode.UNSUPPORTED_VERSION),
        ((("user", 0, "a"), ("ip", 2, None)), ErrorCode.INVALID_REQUEST),
        ((("user", 0, None),), ErrorCode.INVALID_REQUEST),
        ((("user", 3, None),), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_filter_is_refused(
    parts: Parts, filters: tuple[tuple[str, int, str | None], ...], code: ErrorCode
) -> None:
    response = await parts.describe(*filters)

    assert (response.error_code, response.entries) == (code, None)
    assert response.error_message


@pytest.mark.parametrize(
    ("names", "quotas"),
    [
        ((), {"producer_byte_rate": 1}),
        ((("group", "g"),), {"producer_byte_rate": 1}),
        ((("user", ""),), {"producer_byte_rate": 1}),
        ((("user", ".."),), {"producer_byte_rate": 1}),
        ((("user", "a"), ("ip", "127.0.0.1")), {"producer_byte_rate": 1}),
        ((("ip", "no.such.host.invalid"),), {"connection_creation_rate": 1}),
        (ALICE, {"connection_creation_rate": 1}),
        (ALICE, {"SCRAM-SHA-256": 1}),
        (ALICE, {"producer_byte_rate": 0}),
        (ALICE, {"producer_byte_rate": -1}),
        (ALICE, {"producer_byte_rate": math.nan}),
        (ALICE, {"producer_byte_rate": math.inf}),
        (ALICE, {"producer_byte_rate": 1.5}),
        (ALICE, {"producer_byte_rate": 1e30}),
        (ALICE, {"request_percentage": 0}),
        (ALICE, {"request_percentage": math.nan}),
        (ADDRESS, {"producer_byte_rate": 1}),
        (ADDRESS, {"connection_creation_rate": 2.0**31}),
        (ADDRESS, {"connection_creation_rate": -1}),
    ],
)
async def test_an_invalid_change_is_refused_and_stores_nothing(
    parts: Parts, names: Names, quotas: dict[str, float]
) -> None:
    code, message = await parts.alter(names, validate_only=False, **quotas)

    assert code == ErrorCode.INVALID_REQUEST
    assert message
    assert await parts.found() == {}


async def test_an_address_may_be_shut_out_and_the_largest_long_is_a_quota(parts: Parts) -> None:
    assert await parts.alter(ADDRESS, connection_creation_rate=0) == (0, "")
    assert await parts.alter(ALICE, producer_byte_rate=float(2**63 - 1)) == (0, "")

    settings, _ = await parts.configs.client_entities.read("users/alice")
    assert settings == {"producer_byte_rate": str(2**63 - 1)}
