"""The APIs this broker serves: one line each, with the versions and the handler.

The modules of most handlers are imported with their first request: a broker starts a tenth sooner. mypy sees
ordinary imports, and checks that every handler accepts the broker's `Services`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api import api_versions
from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.inter_broker_requests import brokers_only, from_follower
from ottla.broker.api.produce import general as produce
from ottla.broker.requests.routes import Route, always
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from types import ModuleType

    from ottla.broker.api import (
        add_offsets_to_txn,
        add_partitions_to_txn,
        allocate_producer_ids,
        alter_configs,
        alter_partition,
        alter_partition_reassignments,
        alter_replica_log_dirs,
        controlled_shutdown,
        create_partitions,
        create_topics,
        delete_groups,
        delete_records,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_groups,
        describe_log_dirs,
        describe_producers,
        describe_transactions,
        elect_leaders,
        end_txn,
        find_coordinator,
        heartbeat,
        incremental_alter_configs,
        init_producer_id,
        join_group,
        leader_and_isr,
        leave_group,
        list_groups,
        list_offsets,
        list_partition_reassignments,
        list_transactions,
        metadata,
        offset_commit,
        offset_delete,
        offset_fetch,
        offset_for_leader_epoch,
        stop_replica,
        sync_group,
        txn_offset_commit,
        update_features,
        update_metadata,
        write_txn_markers,
    )
    from ottla.broker.api.services import Services
    from ottla.broker.requests.context import RequestContext
else:

    class _Later:
        """A module of `ottla.broker.api` that is imported when its handler is first called."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._module: ModuleType | None = None

        def handle(self, services: Services, request: Any, context: RequestContext) -> Any:
            if self._module is None:
                self._module = import_module(f"ottla.broker.api.{self._name}")
            return self._module.handle(services, request, context)

    allocate_producer_ids = _Later("allocate_producer_ids")
    add_offsets_to_txn = _Later("add_offsets_to_txn")
    add_partitions_to_txn = _Later("add_partitions_to_txn")
    alter_configs = _Later("alter_configs")
    alter_partition = _Later("alter_partition")
    alter_partition_reassignments = _Later("alter_partition_reassignments")
    alter_replica_log_dirs = _Later("alter_replica_log_dirs")
    controlled_shutdown = _Later("controlled_shutdown")
    create_partitions = _Later("create_partitions")
    create_topics = _Later("create_topics")
    delete_groups = _Later("delete_groups")
    delete_records = _Later("delete_records")
    delete_topics = _Later("delete_topics")
    describe_cluster = _Later("describe_cluster")
    describe_configs = _Later("describe_configs")
    describe_groups = _Later("describe_groups")
    describe_log_dirs = _Later("describe_log_dirs")
    describe_producers = _Later("describe_producers")
    describe_transactions = _Later("describe_transactions")
    elect_leaders = _Later("elect_leaders")
    end_txn = _Later("end_txn")
    find_coordinator = _Later("find_coordinator")
    heartbeat = _Later("heartbeat")
    incremental_alter_configs = _Later("incremental_alter_configs")
    init_producer_id = _Later("init_producer_id")
    join_group = _Later("join_group")
    leader_and_isr = _Later("leader_and_isr")
    leave_group = _Later("leave_group")
    list_groups = _Later("list_groups")
    list_offsets = _Later("list_offsets")
    list_partition_reassignments = _Later("list_partition_reassignments")
    list_transactions = _Later("list_transactions")
    metadata = _Later("metadata")
    offset_commit = _Later("offset_commit")
    offset_delete = _Later("offset_delete")
    offset_fetch = _Later("offset_fetch")
    offset_for_leader_epoch = _Later("offset_for_leader_epoch")
    stop_replica = _Later("stop_replica")
    sync_group = _Later("sync_group")
    update_features = _Later("update_features")
    txn_offset_commit = _Later("txn_offset_commit")
    update_metadata = _Later("update_metadata")
    write_txn_markers = _Later("write_txn_markers")


ROUTES: Final[tuple[Route[Services], ...]] = (
    Route(
        ApiKey.PRODUCE,
        0,
        11,
        produce.handle,
        borrows_buffer=True,
        appends=True,
        fast_path=lambda services: services.produce_fast_path,
    ),
    Route(
        ApiKey.FETCH,
        0,
        17,
        fetch.handle,
        stops_with_connection=True,
        borrows_buffer=True,
        from_brokers=from_follower,
        fast_path=lambda services: services.fetch_fast_path,
    ),
    Route(ApiKey.LIST_OFFSETS, 0, 9, list_offsets.handle, from_brokers=from_follower),
    Route(ApiKey.METADATA, 0, 12, metadata.handle),
    Route(ApiKey.LEADER_AND_ISR, 0, 7, brokers_only(leader_and_isr.handle), from_brokers=always),
    Route(ApiKey.STOP_REPLICA, 0, 4, brokers_only(stop_replica.handle), from_brokers=always),
    Route(ApiKey.UPDATE_METADATA, 0, 8, brokers_only(update_metadata.handle), from_brokers=always),
    Route(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, brokers_only(controlled_shutdown.handle), from_brokers=always),
    Route(ApiKey.OFFSET_COMMIT, 0, 9, offset_commit.handle),
    Route(ApiKey.OFFSET_FETCH, 0, 9, offset_fetch.handle),
    Route(ApiKey.FIND_COORDINATOR, 0, 6, find_coordinator.handle),
    Route(ApiKey.JOIN_GROUP, 0, 9, join_group.handle, waits_for_clients=True),
    Route(ApiKey.HEARTBEAT, 0, 4, heartbeat.handle),
    Route(ApiKey.LEAVE_GROUP, 0, 5, leave_group.handle),
    Route(ApiKey.SYNC_GROUP, 0, 5, sync_group.handle, waits_for_clients=True),
    Route(ApiKey.DESCRIBE_GROUPS, 0, 5, describe_groups.handle),
    Route(ApiKey.LIST_GROUPS, 0, 5, list_groups.handle),
    Route(
        ApiKey.API_VERSIONS,
        0,
        4,
        api_versions.handle,
        before_login=True,
        unsupported=api_versions.unsupported,
    ),
    Route(ApiKey.CREATE_TOPICS, 0, 7, create_topics.handle),
    Route(ApiKey.DELETE_TOPICS, 0, 6, delete_topics.handle),
    Route(ApiKey.DELETE_RECORDS, 0, 2, delete_records.handle),
    Route(ApiKey.INIT_PRODUCER_ID, 0, 5, init_producer_id.handle),
    Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, offset_for_leader_epoch.handle, from_brokers=from_follower),
    Route(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, add_partitions_to_txn.handle),
    Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, add_offsets_to_txn.handle),
    Route(ApiKey.END_TXN, 0, 4, end_txn.handle),
    Route(ApiKey.WRITE_TXN_MARKERS, 0, 1, write_txn_markers.handle),
    Route(ApiKey.TXN_OFFSET_COMMIT, 0, 4, txn_offset_commit.handle),
    Route(ApiKey.DESCRIBE_CONFIGS, 0, 4, describe_configs.handle),
    Route(ApiKey.ALTER_CONFIGS, 0, 2, alter_configs.handle),
    Route(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, alter_replica_log_dirs.handle),
    Route(ApiKey.DESCRIBE_LOG_DIRS, 0, 4, describe_log_dirs.handle),
    Route(ApiKey.CREATE_PARTITIONS, 0, 3, create_partitions.handle),
    Route(ApiKey.DELETE_GROUPS, 0, 2, delete_groups.handle),
    Route(ApiKey.ELECT_LEADERS, 0, 2, elect_leaders.handle),
    Route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, incremental_alter_configs.handle),
    Route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, alter_partition_reassignments.handle),
    Route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, list_partition_reassignments.handle),
    Route(ApiKey.OFFSET_DELETE, 0, 0, offset_delete.handle),
    Route(ApiKey.ALTER_PARTITION, 0, 3, brokers_only(alter_partition.handle), from_brokers=always),
    Route(ApiKey.UPDATE_FEATURES, 0, 1, update_features.handle),
    Route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, describe_producers.handle),
    Route(ApiKey.DESCRIBE_CLUSTER, 0, 1, describe_cluster.handle),
    Route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, describe_transactions.handle),
    Route(ApiKey.LIST_TRANSACTIONS, 0, 1, list_transactions.handle),
    Route(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        0,
        0,
        brokers_only(allocate_producer_ids.handle),
        from_brokers=always,
    ),
)
"""A range that ends below the newest version in `ottla.protocol` leaves out versions with features that the
broker does not have."""
