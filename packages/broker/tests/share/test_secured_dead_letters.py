"""Dead letters in a cluster with an authorizer whose brokers connect by TLS: brokers write them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.admin import GROUP, Admin
from ottla.broker.config import broker_config_from
from ottla.broker.security.tls.testing import Authority
from ottla.broker.server.broker import Broker
from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from ottla.consumer import Consumer, ShareConsumer
from ottla.producer import Producer
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.znodes import AclEntry, ResourceAcls

BOUND_S: Final = 60.0
AUTHORITY: Final = Authority()
SETTINGS: Final = {
    "listeners": "SSL://127.0.0.1:0",
    "security.inter.broker.protocol": "SSL",
    "ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/L",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:root",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "num.partitions": "2",
    "auto.create.topics.enable": "false",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}
LETTERS: Final = "dlq.orders"
GIVEN_UP: Final = "records of a share group given up without a dead letter"


def rule(principal: str, kind: ResourceType, name: str, operation: Operation) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{principal}", "*", operation, PermissionType.ALLOW)


OF_MEMBER: Final = (
    rule("anna", ResourceType.TOPIC, "orders", Operation.READ),
    rule("anna", ResourceType.GROUP, "workers", Operation.READ),
)
"""The rules of a member: none about dead letters."""


class Cluster:
    """Two running brokers, and clients of some names."""

    def __init__(self, folder: Path, brokers: list[Broker]) -> None:
        self._folder = folder
        self._servers = brokers[0].address

    def security(self, name: str) -> dict[str, Any]:
        return {
            "security_protocol": "SSL",
            "ssl_cafile": AUTHORITY.write(self._folder / "authority.pem"),
            "ssl_certfile": AUTHORITY.sign(name).write(self._folder / f"{name}.pem"),
        }

    def settings(self, name: str) -> dict[str, Any]:
        return {"bootstrap_servers": self._servers, **self.security(name)}

    def admin(self) -> Admin:
        return Admin(self._servers, config=ClientConfig(security=SecurityConfig(**self.security("root"))))

    async def fill(self) -> None:
        """Make a topic whose two leaders are not those of its letters, with a record in each partition."""
        own = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": LETTERS}
        async with self.admin() as admin:
            await admin.acls.create(OF_MEMBER)
            await admin.topics.create("orders", assignments={0: [1], 1: [2]})
            await admin.configs.alter(GROUP, "workers", own)
        async with Producer(**self.settings("root")) as producer:
            for partition in (0, 1):
                await producer.send_and_wait("orders", b"order", partition=partition)

    async def reject_all(self) -> None:
        """Reject both records as a member that may read them; return once the group has finished them."""
        async with asyncio.timeout(BOUND_S):
            async with ShareConsumer("orders", group_id="workers", **self.settings("anna")) as consumer:
                for _ in range(2):
                    await (await consumer.getone()).reject()
            async with self.admin() as admin:
                starts: list[int | None] = []
                while starts != [1, 1]:
                    starts = [found.start_offset for found in await admin.groups.share_offsets("workers")]
                    await asyncio.sleep(0.05)  # the coordinator learns it from the leader

    async def lags(self) -> list[int | None]:
        async with self.admin() as admin:
            return [found.lag for found in await admin.groups.share_offsets("workers")]

    async def letters(self) -> list[int]:
        """Return the partitions of the records that both letters are about."""
        async with Consumer(LETTERS, auto_offset_reset="earliest", **self.settings("root")) as consumer:
            async with asyncio.timeout(BOUND_S):
                found: list[Any] = [await consumer.getone() for _ in range(2)]
        return sorted(int(dict(letter.headers)["__dlq.errors.partition"]) for letter in found)


async def permit_brokers(servers: str) -> None:
    """Permit what brokers do among themselves, before any of them starts."""
    entry = AclEntry("User:broker", "ALLOW", "CLUSTER_ACTION", "*")
    node = ResourceAcls("CLUSTER", "kafka-cluster", "LITERAL", (entry,))
    async with KazooSession(servers) as session:
        await session.create(node.path, node.encode(), make_parents=True)


@asynccontextmanager
async def secured(folder: Path, **settings: str) -> AsyncIterator[Cluster]:
    """Start two brokers that may do nothing but what brokers do, unless settings make them super users."""
    stores = {
        "ssl.keystore.location": AUTHORITY.sign("broker").write(folder / "broker.pem"),
        "ssl.truststore.location": AUTHORITY.write(folder / "trusted.pem"),
    }
    async with EmbeddedCoordinator() as coordinator, AsyncExitStack() as stack:
        await permit_brokers(coordinator.connect_string)
        of_both = SETTINGS | stores | settings | {"zookeeper.connect": coordinator.connect_string}
        brokers = [
            await stack.enter_async_context(
                Broker(
                    broker_config_from(
                        of_both | {"broker.id": f"{number}", "log.dirs": str(folder / f"{number}")}
                    )
                )
            )
            for number in (1, 2)
        ]
        yield Cluster(folder, brokers)


async def test_brokers_that_are_super_users_create_the_topic_and_write_letters(tmp_path: Path) -> None:
    async with secured(tmp_path, **{"super.users": "User:root;User:broker"}) as cluster:
        await cluster.fill()

        await cluster.reject_all()

        assert await cluster.letters() == [0, 1]
        assert await cluster.lags() == [0, 0]


async def test_brokers_that_may_write_to_the_topic_write_letters_at_each_other(tmp_path: Path) -> None:
    async with secured(tmp_path) as cluster:
        await cluster.fill()
        async with cluster.admin() as admin:
            await admin.acls.create([rule("broker", ResourceType.TOPIC, LETTERS, Operation.WRITE)])
            enabled = {"errors.deadletterqueue.group.enable": "true"}
            await admin.topics.create(LETTERS, assignments={0: [2], 1: [1]}, configs=enabled)

        await cluster.reject_all()

        assert await cluster.letters() == [0, 1]
        assert sorted(await cluster.lags(), key=str) == [
            0,
            None,
        ]  # of the partition that another broker leads


async def test_letters_that_brokers_may_not_write_are_given_up_and_the_log_names_the_rule(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with secured(tmp_path) as cluster:
        await cluster.fill()
        async with cluster.admin() as admin:
            enabled = {"errors.deadletterqueue.group.enable": "true"}
            await admin.topics.create(LETTERS, assignments={0: [2], 1: [1]}, configs=enabled)

        await cluster.reject_all()

    reasons = {vars(record)["reason"] for record in caplog.records if record.message == GIVEN_UP}
    assert reasons == {
        f"TOPIC_AUTHORIZATION_FAILED: this broker may not WRITE to {LETTERS} at broker {leader}: "
        "add the brokers to super.users, or allow them by an ACL"
        for leader in (1, 2)
    }
