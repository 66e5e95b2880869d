"""The admin client: topics, partitions, configuration, groups, records, access and the cluster itself.

async with Admin("127.0.0.1:9092") as admin:
    await admin.topics.create("orders", partitions=6)
    print(await admin.groups.list())
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ottla.admin.acls import AclFilter, Acls
from ottla.admin.brokers import (
    Broker,
    Brokers,
    BrokerVersions,
    ClusterDescription,
    Feature,
    LogDir,
    ReplicaOnDisk,
)
from ottla.admin.cluster_health import ClusterState, PartitionHealth, Problem, problems, read_state
from ottla.admin.configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_ID,
    IP,
    TOPIC,
    USER,
    ConfigEntry,
    Configs,
    Quota,
    Quotas,
)
from ottla.admin.group_descriptions import (
    GROUP_TYPES,
    GroupDescription,
    MemberDescription,
    StreamsTasks,
    Subtopology,
)
from ottla.admin.groups import (
    CommittedOffset,
    GroupListing,
    GroupProgress,
    Groups,
    PartitionProgress,
    ShareOffset,
    read_progress,
)
from ottla.admin.offsets import EARLIEST, LATEST, Offsets
from ottla.admin.partitions import Partitions, Reassignment
from ottla.admin.replicas import ReplicaEnd, Replicas, Verified
from ottla.admin.tokens import DelegationToken, Tokens
from ottla.admin.topics import CreatedTopic, Topics
from ottla.admin.transactions import (
    NoSuchTransaction,
    OpenTransaction,
    PartitionProducer,
    TransactionDescription,
    TransactionListing,
    Transactions,
)
from ottla.admin.users import ScramCredential, Users
from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType

__all__ = [
    "BROKER",
    "BROKER_LOGGER",
    "CLIENT_ID",
    "EARLIEST",
    "GROUP_TYPES",
    "IP",
    "LATEST",
    "TOPIC",
    "USER",
    "Acl",
    "AclFilter",
    "Acls",
    "Admin",
    "Broker",
    "BrokerVersions",
    "Brokers",
    "ClusterDescription",
    "ClusterState",
    "CommittedOffset",
    "ConfigEntry",
    "Configs",
    "CreatedTopic",
    "DelegationToken",
    "Feature",
    "GroupDescription",
    "GroupListing",
    "GroupProgress",
    "Groups",
    "LogDir",
    "MemberDescription",
    "NoSuchTransaction",
    "Offsets",
    "OpenTransaction",
    "Operation",
    "PartitionHealth",
    "PartitionProducer",
    "PartitionProgress",
    "Partitions",
    "PatternType",
    "PermissionType",
    "Problem",
    "Quota",
    "Quotas",
    "Reassignment",
    "ReplicaEnd",
    "ReplicaOnDisk",
    "Replicas",
    "ResourceType",
    "ScramCredential",
    "ShareOffset",
    "StreamsTasks",
    "Subtopology",
    "Tokens",
    "Topics",
    "TransactionDescription",
    "TransactionListing",
    "Transactions",
    "Users",
    "Verified",
    "problems",
]


class Admin:
    """Reads and changes a cluster.

    Its parts are `topics`, `partitions`, `configs`, `quotas`, `offsets`, `groups`, `brokers`,
    `replicas`, `transactions`, `acls`, `users` and `tokens`.

    Calls retry retriable errors for `default_api_timeout_ms`, then raise `DeadlineExceeded`; other errors of
    a broker are raised as `KafkaError`.
    """

    def __init__(self, bootstrap_servers: str | Iterable[str], config: ClientConfig | None = None) -> None:
        self.cluster = Cluster(bootstrap_servers, config)
        self.topics = Topics(self.cluster)
        self.configs = Configs(self.cluster)
        self.offsets = Offsets(self.cluster)
        self.groups = Groups(self.cluster, self.offsets)
        self.brokers = Brokers(self.cluster)
        self.partitions = Partitions(self.cluster)
        self.quotas = Quotas(self.cluster)
        self.replicas = Replicas(self.cluster)
        self.transactions = Transactions(self.cluster)
        self.acls = Acls(self.cluster)
        self.users = Users(self.cluster)
        self.tokens = Tokens(self.cluster)

    async def cluster_state(self) -> ClusterState:
        """Return the controller, the brokers, their log directories and all partitions, for `problems`."""
        return await read_state(self.brokers, self.topics, self.configs)

    async def group_progress(self, name: str) -> GroupProgress:
        """Return a group's offset, log end, lag and owner by partition. Raises GroupIdNotFound."""
        return await read_progress(self.groups, self.offsets, self.topics, name)

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cluster.close()
