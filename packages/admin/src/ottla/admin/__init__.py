"""The admin client: topics, partitions, configuration, groups, records, access and the cluster itself.

async with Admin("127.0.0.1:9092") as admin:
    await admin.topics.create("orders", partitions=6)
    print(await admin.groups.list())
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.client.cluster import Cluster

if TYPE_CHECKING:
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
    from ottla.admin.cluster_health import ClusterState, PartitionHealth, Problem, problems
    from ottla.admin.configs import (
        BROKER,
        BROKER_LOGGER,
        CLIENT_ID,
        CLIENT_METRICS,
        GROUP,
        IP,
        TOPIC,
        USER,
        ConfigEntry,
        Configs,
        Quota,
        Quotas,
    )
    from ottla.admin.features import Change, ClusterFeatures, FeatureLevel, Features
    from ottla.admin.group_descriptions import (
        GROUP_TYPES,
        GroupDescription,
        MemberDescription,
        StreamsTasks,
        Subtopology,
    )
    from ottla.admin.group_errors import CommitsNoOffsets, NoSuchGroup
    from ottla.admin.groups import (
        CommittedOffset,
        GroupListing,
        GroupProgress,
        Groups,
        PartitionProgress,
        ShareOffset,
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
    from ottla.client.config import ClientConfig
    from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType

__all__ = [
    "BROKER",
    "BROKER_LOGGER",
    "CLIENT_ID",
    "CLIENT_METRICS",
    "EARLIEST",
    "GROUP",
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
    "Change",
    "ClusterDescription",
    "ClusterFeatures",
    "ClusterState",
    "CommitsNoOffsets",
    "CommittedOffset",
    "ConfigEntry",
    "Configs",
    "CreatedTopic",
    "DelegationToken",
    "Feature",
    "FeatureLevel",
    "Features",
    "GroupDescription",
    "GroupListing",
    "GroupProgress",
    "Groups",
    "LogDir",
    "MemberDescription",
    "NoSuchGroup",
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

_DEFINED_IN = {
    "ottla.admin.acls": "AclFilter Acls",
    "ottla.admin.brokers": "Broker BrokerVersions Brokers ClusterDescription Feature LogDir ReplicaOnDisk",
    "ottla.admin.cluster_health": "ClusterState PartitionHealth Problem problems",
    "ottla.admin.configs": (
        "BROKER BROKER_LOGGER CLIENT_ID CLIENT_METRICS GROUP IP TOPIC USER ConfigEntry Configs Quota Quotas"
    ),
    "ottla.admin.features": "Change ClusterFeatures FeatureLevel Features",
    "ottla.admin.group_descriptions": (
        "GROUP_TYPES GroupDescription MemberDescription StreamsTasks Subtopology"
    ),
    "ottla.admin.group_errors": "CommitsNoOffsets NoSuchGroup",
    "ottla.admin.groups": ("CommittedOffset GroupListing GroupProgress Groups PartitionProgress ShareOffset"),
    "ottla.admin.offsets": "EARLIEST LATEST Offsets",
    "ottla.admin.partitions": "Partitions Reassignment",
    "ottla.admin.replicas": "ReplicaEnd Replicas Verified",
    "ottla.admin.tokens": "DelegationToken Tokens",
    "ottla.admin.topics": "CreatedTopic Topics",
    "ottla.admin.transactions": (
        "NoSuchTransaction OpenTransaction PartitionProducer TransactionDescription TransactionListing "
        "Transactions"
    ),
    "ottla.admin.users": "ScramCredential Users",
    "ottla.client.config": "ClientConfig",
    "ottla.protocol.acls": "Acl Operation PatternType PermissionType ResourceType",
}
"""The modules that define the names above: each is imported with the first use of one of its names.

A command uses one part of the client, and all modules together take longer to import than it takes to run.
"""

if not TYPE_CHECKING:  # a type checker follows the imports above

    def __getattr__(name: str) -> Any:
        """Import a name that this module offers."""
        module = next((module for module, names in _DEFINED_IN.items() if name in names.split()), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(module), name)
        return found


class Admin:
    """Reads and changes a cluster.

    Its parts are `topics`, `partitions`, `configs`, `quotas`, `offsets`, `groups`, `brokers`,
    `features`, `replicas`, `transactions`, `acls`, `users` and `tokens`.

    Calls retry retriable errors for `default_api_timeout_ms`, then raise `DeadlineExceeded`; other errors of
    a broker are raised as `KafkaError`.
    """

    def __init__(self, bootstrap_servers: str | Iterable[str], config: ClientConfig | None = None) -> None:
        self.cluster = Cluster(bootstrap_servers, config)

    @cached_property
    def topics(self) -> Topics:
        """Creates, lists, changes and deletes topics."""
        from ottla.admin.topics import Topics

        return Topics(self.cluster)

    @cached_property
    def configs(self) -> Configs:
        """Reads and changes the configuration of topics and brokers."""
        from ottla.admin.configs import Configs

        return Configs(self.cluster)

    @cached_property
    def offsets(self) -> Offsets:
        """Finds offsets in partitions."""
        from ottla.admin.offsets import Offsets

        return Offsets(self.cluster)

    @cached_property
    def groups(self) -> Groups:
        """Lists, describes, changes and deletes groups."""
        from ottla.admin.groups import Groups

        return Groups(self.cluster, self.offsets)

    @cached_property
    def brokers(self) -> Brokers:
        """Describes the cluster and its brokers."""
        from ottla.admin.brokers import Brokers

        return Brokers(self.cluster)

    @cached_property
    def features(self) -> Features:
        """Describes and changes the feature levels of the cluster."""
        from ottla.admin.features import Features

        return Features(self.cluster, self.brokers)

    @cached_property
    def partitions(self) -> Partitions:
        """Deletes records, elects leaders, moves replicas."""
        from ottla.admin.partitions import Partitions

        return Partitions(self.cluster)

    @cached_property
    def quotas(self) -> Quotas:
        """Reads and changes quotas."""
        from ottla.admin.configs import Quotas

        return Quotas(self.cluster)

    @cached_property
    def replicas(self) -> Replicas:
        """Compares and describes replicas."""
        from ottla.admin.replicas import Replicas

        return Replicas(self.cluster)

    @cached_property
    def transactions(self) -> Transactions:
        """Lists, describes and aborts transactions."""
        from ottla.admin.transactions import Transactions

        return Transactions(self.cluster)

    @cached_property
    def acls(self) -> Acls:
        """Lists, adds and removes rules of access."""
        from ottla.admin.acls import Acls

        return Acls(self.cluster)

    @cached_property
    def users(self) -> Users:
        """Lists and changes the credentials of SCRAM."""
        from ottla.admin.users import Users

        return Users(self.cluster)

    @cached_property
    def tokens(self) -> Tokens:
        """Creates, lists, renews and expires delegation tokens."""
        from ottla.admin.tokens import Tokens

        return Tokens(self.cluster)

    async def cluster_state(self) -> ClusterState:
        """Return the controller, the brokers, their log directories and all partitions, for `problems`."""
        from ottla.admin.cluster_health import read_state

        return await read_state(self.brokers, self.topics, self.configs)

    async def group_progress(self, name: str) -> GroupProgress:
        """Return a group's offset, log end, lag and owner by partition. Raises GroupIdNotFound."""
        from ottla.admin.groups import read_progress

        return await read_progress(self.groups, self.offsets, self.topics, name)

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cluster.close()
