"""The parts of one broker that handlers act on. The `Needs` of each handler names the parts that it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
    from ottla.broker.api.fetch.fast_path import FetchFastPath
    from ottla.broker.api.fetch.sessions import FetchSessions
    from ottla.broker.api.produce.fast_path import ProduceFastPath
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.cluster.acls import Acls
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.delegation_tokens import DelegationTokens
    from ottla.broker.cluster.features import Features
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.peers.client import Peers
    from ottla.broker.quotas.clients import ClientQuotas
    from ottla.broker.quotas.replication import ReplicationQuotas
    from ottla.broker.replication.log_moves import LogMoves
    from ottla.broker.replication.read_replicas import ReadReplicas
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.share.parts import ShareParts
    from ottla.broker.telemetry.client_metrics import ClientMetrics
    from ottla.broker.transactions.coordinator import TransactionCoordinator
    from ottla.broker.transactions.markers import PartitionMarkers
    from ottla.broker.transactions.verification import Verification
    from ottla.zookeeper.session import Session


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Services:
    """All parts; `composition.py` puts them together."""

    config: BrokerConfig
    environment: Environment
    zookeeper: Session
    cluster_id: str
    api_ranges: Sequence[tuple[int, int, int]]
    """Key, first and last version of every API that is served."""
    logs: LogRegistry
    replicas: Replicas
    read_replicas: ReadReplicas
    replication_quotas: ReplicationQuotas
    log_moves: LogMoves
    metadata: MetadataCache
    peers: Peers
    features: Features
    inter_broker: InterBrokerAccess
    topics: Topics
    configs: Configs
    delegation_tokens: DelegationTokens | None
    acls: Acls | None
    """None without an authorizer."""
    client_metrics: Callable[[], ClientMetrics]
    """Made by the first request that needs them."""
    client_quotas: ClientQuotas
    controller: Controller
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: PartitionMarkers
    verification: Verification
    topic_metrics: TopicMetrics
    record_threads: RecordThreads
    fetch_sessions: FetchSessions
    delayed_fetches: DelayedFetches
    produce_fast_path: ProduceFastPath
    fetch_fast_path: FetchFastPath
    share: Callable[[], ShareParts] = field(init=False)
    """Returns the parts for share groups, which are made with its first call."""
