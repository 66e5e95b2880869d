"""A secured cluster under test: certificates, users and rules, as the pages about security have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.admin import Admin
from ottla.broker.server.secure_setup import write_user
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType
from ottla.zookeeper.kazoo_session import KazooSession
from peers.certificates import Authority
from peers.client_access import PROTOCOL, Access

if TYPE_CHECKING:
    from cluster_nodes import KafkaBroker

BOUND_S: Final = 120.0
MECHANISM: Final = "SCRAM-SHA-512"
MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
ADMIN: Final = "admin"
BROKER: Final = "broker"
CLIENT: Final = "client"
SHARED: Final = {
    "security.inter.broker.protocol": PROTOCOL,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "sasl.enabled.mechanisms": MECHANISM,
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": f"User:{ADMIN};User:{BROKER}",
}


def password_of(user: str) -> str:
    """Return the password of a user of tests."""
    return f"{user}-secret"


class ClusterSecurity:
    """All listeners speak SASL_SSL, users log in by SCRAM, and clients may do what rules allow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "certificates"
        self.authority = Authority(self.folder)

    @property
    def admin(self) -> Access:
        """The access of an administrator, who may do everything."""
        return self.access_of(ADMIN)

    @property
    def client(self) -> Access:
        """The access of a client, which may do what `allow` has allowed."""
        return self.access_of(CLIENT)

    def access_of(self, user: str) -> Access:
        """Return the access of a user."""
        return Access(user, password_of(user), str(self.authority.cafile))

    def key_store(self, broker: KafkaBroker) -> Path:
        """Make a certificate for the address of a broker; return the file with it and its key."""
        certificate, key = self.authority.sign(broker.name, f"IP:{broker.host.address}")
        store = self.folder / f"{broker.name}.pem"
        store.touch(mode=0o600)
        store.write_text(key.read_text() + certificate.read_text())
        return store

    def settings_of(self, broker: KafkaBroker) -> Mapping[str, str]:
        """Return the settings of a broker."""
        login = f'{MODULE} required username="{BROKER}" password="{password_of(BROKER)}";'
        return {
            **SHARED,
            "listeners": f"{PROTOCOL}://{broker.address}",
            "ssl.keystore.location": str(self.key_store(broker)),
            "ssl.truststore.location": str(self.authority.cafile),
            f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
        }

    def write_users(self, zookeeper: str) -> None:
        """Create the users in ZooKeeper: brokers log in at each other before they serve anyone."""

        async def write() -> None:
            async with asyncio.timeout(BOUND_S), KazooSession(zookeeper) as session:
                for user in (ADMIN, BROKER, CLIENT):
                    await write_user(session, user, password_of(user))

        asyncio.run(write())

    def allow(self, servers: str, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Allow the client to read and write topics, and to read by groups."""
        topic, group = ResourceType.TOPIC, ResourceType.GROUP
        wanted = [
            (topic, name, operation) for name in topics for operation in (Operation.READ, Operation.WRITE)
        ]
        wanted += [(group, name, Operation.READ) for name in groups]
        rules = [
            Acl(kind, name, PatternType.LITERAL, f"User:{CLIENT}", "*", operation, PermissionType.ALLOW)
            for kind, name, operation in wanted
        ]

        async def create() -> None:
            async with asyncio.timeout(BOUND_S), Admin(servers, self.admin.config()) as admin:
                await admin.acls.create(rules)

        asyncio.run(create())
