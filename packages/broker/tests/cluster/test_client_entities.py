"""Users, client ids and addresses in ZooKeeper: read, changed and followed, over an ensemble in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import pytest

from ottla.broker.cluster.client_entities import CLIENTS, USERS
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.registration import make_roots
from ottla.broker.cluster.scram_credentials import shared_unknown_users
from ottla.broker.config import BrokerConfig
from ottla.broker.runtime.environment import Environment
from ottla.broker.security.sasl.scram import SHA_256
from ottla.zookeeper import paths
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import ConfigChange, ConfigEntity

SECRET = "salt=MTIz,stored_key=a,server_key=b,iterations=4096"


class Followed:
    """A broker's configuration, followed while it is entered."""

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.configs = Configs(session, BrokerConfig(), Environment(), 1)
        self.entities = self.configs.client_entities
        self.told: dict[str, dict[str, str]] = {}
        for kind in (USERS, CLIENTS):
            self.entities.subscribe(kind, self._changed)

    def _changed(self, path: str, settings: Mapping[str, str]) -> None:
        self.told[path] = dict(settings)

    async def write(self, path: str, **settings: str) -> None:
        node = ConfigEntity(path, settings)
        await self.session.create(node.path, node.encode(), make_parents=True)

    async def content(self, path: str) -> Mapping[str, str]:
        data, _ = await self.session.get(paths.config_of(path))
        return ConfigEntity.decode(path, data).config


@asynccontextmanager
async def followed(ensemble: MemoryEnsemble) -> AsyncIterator[Followed]:
    async with ensemble.session() as session:
        await make_roots(session)
        made = Followed(session)
        await made.configs.load()
        following = asyncio.ensure_future(made.configs.follow())
        yield made
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_entities_of_all_kinds_are_read_at_the_start() -> None:
    async with followed(MemoryEnsemble()) as made:
        await made.write("users/alice", producer_byte_rate="1")
        await made.write("users/%3Cdefault%3E/clients/app", producer_byte_rate="2")
        await made.write("clients/<default>", consumer_byte_rate="3")

        await made.configs.load()

        assert made.told == {
            "users/alice": {"producer_byte_rate": "1"},
            "users/%3Cdefault%3E": {},
            "users/%3Cdefault%3E/clients/app": {"producer_byte_rate": "2"},
            "clients/<default>": {"consumer_byte_rate": "3"},
        }


async def test_a_change_on_one_broker_reaches_the_others() -> None:
    ensemble = MemoryEnsemble()
    async with followed(ensemble) as one, followed(ensemble) as other:
        await one.entities.alter("users/alice/clients/app", lambda _: {"request_percentage": "50.0"})
        assert one.told == {"users/alice/clients/app": {"request_percentage": "50.0"}}
        await settle()

        assert other.told == one.told


async def test_an_entity_that_went_away_while_the_broker_did_not_look_has_nothing_any_more() -> None:
    async with followed(MemoryEnsemble()) as made:
        await made.write("clients/app", producer_byte_rate="1")
        await made.configs.load()
        await made.session.delete(paths.config_of("clients/app"))

        await made.configs.load()

        assert made.told == {"clients/app": {}}


async def test_a_change_keeps_the_keys_that_it_does_not_name() -> None:
    async with followed(MemoryEnsemble()) as made:
        node = ConfigEntity("users/alice", {"SCRAM-SHA-256": SECRET})
        await made.session.create(node.path, node.encode())

        await made.entities.alter("users/alice", lambda present: {**present, "producer_byte_rate": "7"})

        assert await made.content("users/alice") == {"SCRAM-SHA-256": SECRET, "producer_byte_rate": "7"}


async def test_a_writer_that_was_slower_starts_again_from_what_the_other_wrote() -> None:
    async with followed(MemoryEnsemble()) as made:
        seen: list[dict[str, str]] = []

        def change(present: dict[str, str]) -> dict[str, str]:
            seen.append(dict(present))
            return {**present, "b": "2"}

        await asyncio.gather(
            made.entities.alter("users/alice", lambda present: {**present, "a": "1"}),
            made.entities.alter("users/alice", change),
        )

        assert await made.content("users/alice") == {"a": "1", "b": "2"}
        assert seen == [{}, {"a": "1"}]


async def test_a_damaged_entity_and_a_strange_notification_stop_nothing_and_show_no_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with followed(MemoryEnsemble()) as made:
        await made.session.create("/config/users/bob", f'{{"version":1,"config":{SECRET}'.encode())
        for path in ("users/bob", "users/..", "users/a/b/c/d", "clients/"):
            announced = ConfigChange(path)
            await made.session.create(announced.path, announced.encode(), sequential=True)
        await made.entities.alter("clients/app", lambda _: {"producer_byte_rate": "1"})
        await settle()

        assert made.told == {"users/bob": {}, "clients/app": {"producer_byte_rate": "1"}}
        assert "stored_key" not in caplog.text


@pytest.mark.parametrize("fault", ["request", "reply"])
@pytest.mark.parametrize("steps", range(3))
async def test_the_secret_of_unknown_users_is_read_again_after_a_lost_connection(
    fault: str, steps: int
) -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session, ensemble.session() as other:
        await make_roots(session)
        reading = asyncio.ensure_future(shared_unknown_users(session, Random(1)))
        for _ in range(2 * steps):  # the read, the creation, the read of what was created
            await asyncio.sleep(0)
        lose = ensemble.lose_next_request if fault == "request" else ensemble.lose_next_reply
        lose(session)

        found = await asyncio.wait_for(reading, 60)

        expected = await shared_unknown_users(other, Random(2))
        assert found.credential(SHA_256, "anna").salt == expected.credential(SHA_256, "anna").salt
