"""Registries of one topic on Apache Kafka: concurrent writers, and one that ends without a goodbye."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from ottla.client.config import ClientConfig
from ottla.registry.server.questions import GivenSchema
from ottla.registry.server.service import RegistryService
from ottla.registry.server.serving import RegistrySettings, opened_registry
from peers.kraft_kafka import KraftKafka

ROUNDS = 8


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftKafka]:
    with KraftKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def schema(name: str) -> GivenSchema:
    return GivenSchema("AVRO", json.dumps({"type": "enum", "name": "E", "symbols": [name]}))


async def register(service: RegistryService, subject: str, name: str) -> tuple[str, int, int]:
    value = await service.register(subject, schema(name), normalize=False)
    return name, value.id, value.version


@pytest.mark.java
@pytest.mark.timeout(400)
async def test_no_id_and_no_version_is_given_twice(kafka: KraftKafka) -> None:
    client = ClientConfig(bootstrap_servers=kafka.bootstrap_servers)
    settings = RegistrySettings(client=client, topic="shared-schemas")
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(opened_registry(settings)) for _ in range(3)]
        await services[0].set_level("", {"compatibility": "NONE"})
        found: list[tuple[str, int, int]] = []
        for number in range(ROUNDS):
            found += await asyncio.gather(
                *(register(service, "s", f"S{number}_{index}") for index, service in enumerate(services)),
                register(services[number % 3], "s", f"S{number}_same"),
                register(services[(number + 1) % 3], "s", f"S{number}_same"),
            )

        ids = {name: schema_id for name, schema_id, _ in found}
        versions = {name: version for name, _, version in found}
        assert sorted(ids.values()) == list(range(1, 4 * ROUNDS + 1))
        assert sorted(versions.values()) == list(range(1, 4 * ROUNDS + 1))
        assert all((ids[name], versions[name]) == (schema_id, version) for name, schema_id, version in found)
        for service in services:
            await service.catch_up()
            assert {value.version: value.id for value in service.state.versions("s")} == {
                versions[name]: ids[name] for name in ids
            }

    async with opened_registry(settings) as again:
        assert len(again.state.versions("s")) == 4 * ROUNDS
