"""The parts of one broker, each made from those before it. Nothing starts in here: `Broker` does that."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from ottla.broker.api.current_leaders import LeaderSources, tell_producer
from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
from ottla.broker.api.fetch.fast_path import FetchFastPath
from ottla.broker.api.fetch.sessions import FetchSessions, measure_fetch_sessions
from ottla.broker.api.produce.fast_path import ProduceFastPath
from ottla.broker.api.routes import ROUTES
from ottla.broker.api.services import Services
from ottla.broker.api.topic_metrics import TopicMetrics
from ottla.broker.cluster.client_entities import CLIENTS, IPS, USERS
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.features import DEAD_LETTERS, SHARE, TRANSACTION, Features
from ottla.broker.cluster.inter_broker_access import InterBrokerAccess, OtherBrokers
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.cluster.topics import Topics
from ottla.broker.controller.controller import Controller
from ottla.broker.controller.zookeeper_store import read_leadership
from ottla.broker.coordinators.internal_topic_log import ReplicatedStore
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.peers.active_controller import ActiveController
from ottla.broker.peers.client import Peers
from ottla.broker.quotas.clients import ClientQuotas
from ottla.broker.quotas.replication import ReplicationQuotas
from ottla.broker.replication.alter_partition_requests import AlterPartitionRequests
from ottla.broker.replication.followers import Followers
from ottla.broker.replication.log_moves import LogMoves
from ottla.broker.replication.read_replicas import ReadReplicas
from ottla.broker.replication.replicas import Replicas
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.threads import RecordThreads
from ottla.broker.security.authorizer import ALLOW_ALL
from ottla.broker.server.leadership_handover import LeadershipHandover
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.marker_destinations import MarkerDestinations
from ottla.broker.transactions.markers import PartitionMarkers
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.verification import RemoteCoordinators, Verification
from ottla.protocol.records import Codec
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ottla.broker.cluster.acls import Acls
    from ottla.broker.cluster.delegation_tokens import DelegationTokens
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.channels import Sender, Spawn
    from ottla.broker.controller.controller_context import LiveBroker
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.security.authorizer import Authorizer
    from ottla.broker.security.tls.listeners import TlsOfListeners
    from ottla.broker.share.parts import ShareParts
    from ottla.broker.telemetry.client_metrics import ClientMetrics
    from ottla.broker.telemetry.otlp_export import OtlpExport
    from ottla.zookeeper.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one broker: those that handlers act on, and those that only the broker itself uses."""

    services: Services
    peers: Peers
    active_controller: ActiveController
    handover: LeadershipHandover
    alter_partition_requests: AlterPartitionRequests
    followers: Followers
    share_connections: AsyncExitStack
    """Closes those of share groups to other brokers."""
    share_tasks: BackgroundTasks
    """Those of share groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Makes the parts of a broker whose id and cluster are known.

    `register`, `connect` and `spawn` are the controller's: see `Controller`.
    """

    config: BrokerConfig
    environment: Environment
    metrics: Metrics
    broker_id: int
    cluster_id: str
    zookeeper: Session
    logs: LogRegistry
    tls: TlsOfListeners
    register: Callable[[], Awaitable[int]]
    connect: Callable[[LiveBroker], Sender]
    spawn: Spawn

    def compose(self) -> Parts:
        """Make all parts, each from those above it."""
        config, environment, broker_id = self.config, self.environment, self.broker_id
        metadata = MetadataCache(broker_id)
        peers = Peers(metadata, config, self.tls.to_brokers)
        configs = Configs(self.zookeeper, config, environment, broker_id)
        controller = self._controller(metadata, configs)
        active_controller = ActiveController(controller, metadata, peers, config.controller_socket_timeout_ms)
        requests = AlterPartitionRequests(
            broker_id,
            active_controller.ask,
            lambda: controller.broker_epoch,
            partial(read_leadership, self.zookeeper),
            self.metrics.meter("kafka.server", "ReplicaManager", "FailedIsrUpdatesPerSec").mark,
        )
        quotas = ReplicationQuotas(broker_id, config, environment.clock.monotonic_ms, self.metrics)
        followers = self._followers(peers, quotas)
        replicas = self._replicas(metadata, configs, requests, followers)
        services = self._services(metadata, peers, configs, controller, replicas, quotas)
        share_connections, share_tasks = AsyncExitStack(), BackgroundTasks(self.metrics, environment.clock)
        services.share = cache(partial(self._share, services, peers, share_tasks, share_connections))
        return Parts(
            services=services,
            peers=peers,
            active_controller=active_controller,
            handover=LeadershipHandover(
                config, metadata, controller, active_controller, self.zookeeper, broker_id
            ),
            alter_partition_requests=requests,
            followers=followers,
            share_connections=share_connections,
            share_tasks=share_tasks,
        )

    def _controller(self, metadata: MetadataCache, configs: Configs) -> Controller:
        controller = Controller(
            broker_id=self.broker_id,
            session=self.zookeeper,
            environment=self.environment,
            metrics=self.metrics,
            register=self.register,
            connect=self.connect,
            spawn=self.spawn,
            unclean_topics=configs.read_unclean_topics,
            inter_broker_listener=self.config.interbroker_listener,
        )
        controller.on_active_controller_change.append(metadata.wake)
        return controller

    def _followers(self, peers: Peers, quotas: ReplicationQuotas) -> Followers:
        return Followers(
            broker_id=self.broker_id,
            config=self.config,
            environment=self.environment,
            connect=partial(
                peers.broker,
                purpose="fetcher",
                timeout_ms=self.config.replica_socket_timeout_ms,
                receive_buffer_bytes=self.config.replica_socket_receive_buffer_bytes,
            ),
            metrics=self.metrics,
            quota=quotas.follower,
        )

    def _replicas(
        self,
        metadata: MetadataCache,
        configs: Configs,
        requests: AlterPartitionRequests,
        followers: Followers,
    ) -> Replicas:
        return Replicas(
            broker_id=self.broker_id,
            config=self.config,
            environment=self.environment,
            logs=self.logs,
            log_config=configs.log_config,
            metrics=self.metrics,
            propose_isr=requests.propose,
            followers=followers,
            is_known=metadata.may_exist,
            is_alive=metadata.is_alive,
        )

    def _services(
        self,
        metadata: MetadataCache,
        peers: Peers,
        configs: Configs,
        controller: Controller,
        replicas: Replicas,
        quotas: ReplicationQuotas,
    ) -> Services:
        """Make what handlers act on; it has over 50 lines because each part has one."""
        config, environment, zookeeper, logs = self.config, self.environment, self.zookeeper, self.logs
        topic_metrics = TopicMetrics(self.metrics)
        delayed_fetches = DelayedFetches(config.max_delayed_fetches, environment.budget)
        topics = Topics(zookeeper, config, environment, metadata, logs.room)
        groups = self._groups(replicas, metadata, topics, configs)
        markers = PartitionMarkers(replicas, environment, config.request_timeout_ms, groups.transaction_ended)
        features = Features(zookeeper, lambda: controller.active_controller_id)
        transactions = self._transactions(replicas, metadata, peers, markers, features)
        acls = self._acls()
        return Services(
            config=config,
            environment=environment,
            zookeeper=zookeeper,
            cluster_id=self.cluster_id,
            api_ranges=[(int(route.api_key), route.min_version, route.max_version) for route in ROUTES],
            logs=logs,
            replicas=replicas,
            read_replicas=ReadReplicas(config.replica_selector_class, replicas, metadata.rack_of),
            replication_quotas=quotas,
            log_moves=LogMoves(logs, replicas, environment.clock.now_ms, quotas.log_moves),
            metadata=metadata,
            peers=peers,
            features=features,
            inter_broker=self._inter_broker(ALLOW_ALL if acls is None else acls.authorizer),
            topics=topics,
            configs=configs,
            delegation_tokens=self._delegation_tokens(),
            acls=acls,
            client_metrics=cache(self._client_metrics),
            client_quotas=self._client_quotas(configs),
            controller=controller,
            groups=groups,
            transactions=transactions,
            markers=markers,
            verification=self._verification(metadata, peers, configs, transactions),
            topic_metrics=topic_metrics,
            record_threads=RecordThreads(),
            fetch_sessions=self._fetch_sessions(),
            delayed_fetches=delayed_fetches,
            produce_fast_path=_produce_fast_path(topic_metrics, metadata, replicas),
            fetch_fast_path=FetchFastPath(topic_metrics, delayed_fetches, config.fetch_max_bytes),
        )

    def _client_metrics(self) -> ClientMetrics:
        from ottla.broker.telemetry.client_metrics import ClientMetrics

        return ClientMetrics(
            self.zookeeper,
            self.environment,
            self.metrics,
            max_bytes=self.config.telemetry_max_bytes,
            broker_id=self.broker_id,
            export=self._otlp_export(),
        )

    def _otlp_export(self) -> OtlpExport | None:
        """Start to hand pushed metrics on, if a collector is configured."""
        config = self.config
        if config.telemetry_otlp_endpoint is None:
            return None
        from ottla.broker.telemetry.otlp_export import HttpCollector, OtlpExport

        export = OtlpExport(
            partial(HttpCollector, config),
            self.environment,
            self.metrics,
            max_bytes=config.telemetry_otlp_queue_bytes,
        )
        self.spawn(export.run(), "otlp-export")
        return export

    def _share(
        self, services: Services, peers: Peers, tasks: BackgroundTasks, connections: AsyncExitStack
    ) -> ShareParts:
        """Make the parts for share groups; a broker that has none starts without their modules."""
        from ottla.broker.api.produce.own_batches import append_own
        from ottla.broker.share.parts import ShareSources, make_share_parts

        return make_share_parts(
            ShareSources(
                config=lambda: services.configs.broker,
                group_settings=services.configs.group_settings,
                log_config=services.configs.log_config,
                has_dead_letters=lambda: services.features.level(SHARE) >= DEAD_LETTERS,
                append_own=partial(append_own, services, self.config.request_timeout_ms),
                environment=self.environment,
                metrics=self.metrics,
                replicas=services.replicas,
                metadata=services.metadata,
                topics=services.topics,
                peers=peers,
                record_threads=services.record_threads,
                tasks=tasks,
                connections=connections,
                session_id=lambda: self.zookeeper.session_id,
            )
        )

    def _client_quotas(self, configs: Configs) -> ClientQuotas:
        client_quotas = ClientQuotas(self.config, self.environment.clock.monotonic_ms)
        for kind in (USERS, CLIENTS):
            configs.client_entities.subscribe(kind, client_quotas.entity_changed)
        configs.client_entities.subscribe(IPS, client_quotas.address_rates.follow)
        self.metrics.families.append(client_quotas.samples)
        return client_quotas

    def _delegation_tokens(self) -> DelegationTokens | None:
        if self.config.token_key is None:
            return None
        from ottla.broker.cluster.delegation_tokens import DelegationTokens

        return DelegationTokens(self.zookeeper, self.config, self.environment)

    def _fetch_sessions(self) -> FetchSessions:
        sessions = FetchSessions(
            self.config.max_incremental_fetch_session_cache_slots,
            lambda: self.environment.random.randrange(1, 2**31),
            max_partitions=self.config.max_incremental_fetch_session_cache_partitions,
        )
        measure_fetch_sessions(sessions, self.metrics)
        return sessions

    def _inter_broker(self, authorizer: Authorizer) -> InterBrokerAccess:
        addresses = OtherBrokers(self.zookeeper, lambda: self.broker_id).addresses
        now_ms = self.environment.clock.monotonic_ms
        return InterBrokerAccess(self.config, addresses, now_ms, authorizer=authorizer)

    def _acls(self) -> Acls | None:
        """Make the authorizer that is configured. A broker without one starts without its modules."""
        if not self.config.authorizer_class_name:
            return None
        from ottla.broker.cluster.acls import Acls
        from ottla.broker.security.acls.authorizer import AclAuthorizer
        from ottla.broker.security.acls.bindings import parse_super_users

        authorizer = AclAuthorizer(
            parse_super_users(self.config.super_users),
            allow_everyone_if_no_acl_found=self.config.allow_everyone_if_no_acl_found,
            now_ms=self.environment.clock.monotonic_ms,
        )
        return Acls(self.zookeeper, authorizer, self.environment.clock)

    def _groups(
        self, replicas: Replicas, metadata: MetadataCache, topics: Topics, configs: Configs
    ) -> GroupCoordinator:
        store = ReplicatedStore(
            replicas,
            GROUP_METADATA_TOPIC,
            lambda: (
                metadata.partition_count(GROUP_METADATA_TOPIC) or self.config.offsets_topic_num_partitions
            ),
            codec=Codec(self.config.offsets_topic_compression_codec),
            read_bytes=self.config.offsets_load_buffer_size,
        )
        groups = GroupCoordinator(
            config=self.config,
            environment=self.environment,
            metrics=self.metrics,
            store=store,
            metadata=metadata,
            topics=topics,
            group_settings=configs.group_settings,
        )
        replicas.subscribe(groups)
        return groups

    def _transactions(
        self,
        replicas: Replicas,
        metadata: MetadataCache,
        peers: Peers,
        markers: PartitionMarkers,
        features: Features,
    ) -> TransactionCoordinator:
        config = self.config
        store = ReplicatedStore(
            replicas,
            TRANSACTION_STATE_TOPIC,
            lambda: (
                metadata.partition_count(TRANSACTION_STATE_TOPIC)
                or config.transaction_state_log_num_partitions
            ),
            read_bytes=config.transaction_state_log_load_buffer_size,
            # The markers of a decision that the next leader does not know would contradict its own.
            commit_wait_ms=config.request_timeout_ms,
        )
        connect = partial(peers.broker, purpose="txn-marker-sender", timeout_ms=config.request_timeout_ms)
        transactions = TransactionCoordinator(
            config=config,
            environment=self.environment,
            metrics=self.metrics,
            store=store,
            cluster=MarkerDestinations(metadata, connect, self.zookeeper, markers.write),
            producer_ids=ProducerIds(self.zookeeper, self.broker_id),
            level=lambda: features.level(TRANSACTION),
        )
        replicas.subscribe(transactions)
        return transactions

    def _verification(
        self,
        metadata: MetadataCache,
        peers: Peers,
        configs: Configs,
        transactions: TransactionCoordinator,
    ) -> Verification:
        connect = partial(
            peers.broker,
            purpose="transaction-verification",
            timeout_ms=self.config.request_timeout_ms,
        )
        return Verification(
            metadata=metadata,
            here=transactions,
            coordinators=RemoteCoordinators(connect),
            is_enabled=lambda: configs.broker.transaction_partition_verification_enable,
            metrics=self.metrics,
            clock=self.environment.clock,
        )


def _produce_fast_path(
    topic_metrics: TopicMetrics, metadata: MetadataCache, replicas: Replicas
) -> ProduceFastPath:
    return ProduceFastPath(topic_metrics, partial(tell_producer, LeaderSources(metadata, replicas)))
