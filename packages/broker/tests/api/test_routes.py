"""Routes: the mistakes they reject, their handlers, and the permissions and quotas of each API."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

import pytest

from ottla.broker.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    controlled_shutdown,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    push_telemetry,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    share_group_offsets,
    share_group_state,
    stop_replica,
    streams_group_describe,
    streams_group_heartbeat,
    streams_group_topology_description_update,
    sync_group,
    txn_offset_commit,
    update_features,
    update_metadata,
    write_txn_markers,
)
from ottla.broker.api.routes import ROUTES, HandlerOf
from ottla.broker.api.services import Services
from ottla.broker.quotas import Quota
from ottla.broker.requests.context import Handler, RequestContext
from ottla.broker.requests.permissions import CLUSTER_ACTION, READ_TOPICS
from ottla.broker.requests.routes import Route, Routes, always
from ottla.protocol.api import ApiKey, request_class, response_class


async def on_a_task(services: None, request: Any, context: RequestContext) -> None: ...


def at_once(services: None, request: Any, context: RequestContext) -> None: ...


def test_a_coroutine_function_cannot_borrow_the_receive_buffer() -> None:
    with pytest.raises(ValueError, match="coroutine function"):
        Route(ApiKey.PRODUCE, 0, 9, on_a_task, borrows_buffer=True)


def test_a_plain_function_may_own_its_request() -> None:
    assert not Route(ApiKey.PRODUCE, 0, 9, at_once).borrows_buffer


def test_two_routes_for_one_api_are_refused() -> None:
    with pytest.raises(ValueError, match="two routes"):
        Routes([Route(ApiKey.PRODUCE, 0, 9, at_once), Route(ApiKey.PRODUCE, 0, 3, at_once)])


def test_only_produce_and_fetch_borrow_the_receive_buffer() -> None:
    assert [route.api_key for route in ROUTES if route.borrows_buffer] == [ApiKey.PRODUCE, ApiKey.FETCH]


def test_a_handler_of_a_rare_api_is_imported_with_its_first_request() -> None:
    program = """if True:
        import asyncio, sys
        from ottla.broker.api.routes import ROUTES
        from ottla.broker.api.testing import FakeSession
        from ottla.broker.requests.context import RequestContext
        from ottla.protocol.api import ApiKey, RequestHeader
        from ottla.protocol.messages.elect_leaders import ElectLeadersRequest

        name = "ottla.broker.api.elect_leaders"
        assert name not in sys.modules
        route = next(route for route in ROUTES if route.api_key is ApiKey.ELECT_LEADERS)
        context = RequestContext(RequestHeader(ApiKey.ELECT_LEADERS, 2, 1, None), FakeSession(), 0.0)
        answer = asyncio.run(route.handler(None, ElectLeadersRequest(election_type=9), context))
        assert answer.error_code and name in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# mypy checks here that each handler accepts the broker's `Services`: the routes name modules only.
HANDLERS: Final[dict[str, Handler[Services]]] = {
    "add_offsets_to_txn": add_offsets_to_txn.handle,
    "add_partitions_to_txn": add_partitions_to_txn.handle,
    "allocate_producer_ids": allocate_producer_ids.handle,
    "alter_client_quotas": alter_client_quotas.handle,
    "alter_configs": alter_configs.handle,
    "alter_partition": alter_partition.handle,
    "alter_partition_reassignments": alter_partition_reassignments.handle,
    "alter_replica_log_dirs": alter_replica_log_dirs.handle,
    "controlled_shutdown": controlled_shutdown.handle,
    "create_partitions": create_partitions.handle,
    "create_topics": create_topics.handle,
    "delete_groups": delete_groups.handle,
    "delete_records": delete_records.handle,
    "delete_topics": delete_topics.handle,
    "describe_client_quotas": describe_client_quotas.handle,
    "describe_cluster": describe_cluster.handle,
    "create_acls": create_acls.handle,
    "delete_acls": delete_acls.handle,
    "describe_acls": describe_acls.handle,
    "describe_configs": describe_configs.handle,
    "consumer_group_describe": consumer_group_describe.handle,
    "consumer_group_heartbeat": consumer_group_heartbeat.handle,
    "describe_groups": describe_groups.handle,
    "describe_log_dirs": describe_log_dirs.handle,
    "describe_producers": describe_producers.handle,
    "describe_topic_partitions": describe_topic_partitions.handle,
    "list_config_resources": list_config_resources.handle,
    "get_telemetry_subscriptions": get_telemetry_subscriptions.handle,
    "push_telemetry": push_telemetry.handle,
    "describe_transactions": describe_transactions.handle,
    "elect_leaders": elect_leaders.handle,
    "end_txn": end_txn.handle,
    "find_coordinator": find_coordinator.handle,
    "heartbeat": heartbeat.handle,
    "alter_user_scram_credentials": alter_user_scram_credentials.handle,
    "describe_user_scram_credentials": describe_user_scram_credentials.handle,
    "sasl_authenticate": sasl_authenticate.handle,
    "sasl_handshake": sasl_handshake.handle,
    "create_delegation_token": create_delegation_token.handle,
    "describe_delegation_token": describe_delegation_token.handle,
    "expire_delegation_token": expire_delegation_token.handle,
    "renew_delegation_token": renew_delegation_token.handle,
    "incremental_alter_configs": incremental_alter_configs.handle,
    "init_producer_id": init_producer_id.handle,
    "join_group": join_group.handle,
    "leader_and_isr": leader_and_isr.handle,
    "leave_group": leave_group.handle,
    "list_groups": list_groups.handle,
    "list_offsets": list_offsets.handle,
    "list_partition_reassignments": list_partition_reassignments.handle,
    "list_transactions": list_transactions.handle,
    "metadata": metadata.handle,
    "offset_commit": offset_commit.handle,
    "offset_delete": offset_delete.handle,
    "offset_fetch": offset_fetch.handle,
    "offset_for_leader_epoch": offset_for_leader_epoch.handle,
    "share_acknowledge": share_acknowledge.handle,
    "share_fetch": share_fetch.handle,
    "share_group_describe": share_group_describe.handle,
    "share_group_heartbeat": share_group_heartbeat.handle,
    "share_group_offsets.describe": share_group_offsets.describe,
    "share_group_offsets.alter": share_group_offsets.alter,
    "share_group_offsets.delete": share_group_offsets.delete,
    "share_group_state.initialize": share_group_state.initialize,
    "share_group_state.read": share_group_state.read,
    "share_group_state.write": share_group_state.write,
    "share_group_state.delete": share_group_state.delete,
    "share_group_state.summarize": share_group_state.summarize,
    "stop_replica": stop_replica.handle,
    "streams_group_describe": streams_group_describe.handle,
    "streams_group_heartbeat": streams_group_heartbeat.handle,
    "streams_group_topology_description_update": streams_group_topology_description_update.handle,
    "sync_group": sync_group.handle,
    "txn_offset_commit": txn_offset_commit.handle,
    "update_features": update_features.handle,
    "update_metadata": update_metadata.handle,
    "write_txn_markers": write_txn_markers.handle,
}


def test_every_handler_that_is_imported_later_is_checked_by_mypy() -> None:
    named = {
        f"{route.handler.module}.{route.handler.name}".removesuffix(".handle"): route.handler
        for route in ROUTES
        if isinstance(route.handler, HandlerOf)
    }

    assert sorted(named) == sorted(HANDLERS)
    for module, handler in named.items():
        assert handler.resolve() is HANDLERS[module]


# Operations on resources that Apache Kafka 3.9 asks for. Its documentation (Security, "Operations and
# Resources on Protocols") also lists IdempotentWrite for Produce and ClusterAction for ElectLeaders. It
# leaves out those that hide names or settings, and Alter for WriteTxnMarkers.
ASKED_FOR: Final = {
    ApiKey.PRODUCE: "Write TransactionalId, Write Topic",
    ApiKey.FETCH: "ClusterAction Cluster, Read Topic",
    ApiKey.LIST_OFFSETS: "Describe Topic",
    ApiKey.METADATA: "Describe Topic, Create Cluster, Create Topic, Describe Cluster",
    ApiKey.LEADER_AND_ISR: "ClusterAction Cluster",
    ApiKey.STOP_REPLICA: "ClusterAction Cluster",
    ApiKey.UPDATE_METADATA: "ClusterAction Cluster",
    ApiKey.CONTROLLED_SHUTDOWN: "ClusterAction Cluster",
    ApiKey.OFFSET_COMMIT: "Read Group, Read Topic",
    ApiKey.OFFSET_FETCH: "Describe Group, Describe Topic",
    ApiKey.FIND_COORDINATOR: "Describe Group, Describe TransactionalId, ClusterAction Cluster",
    ApiKey.JOIN_GROUP: "Read Group",
    ApiKey.HEARTBEAT: "Read Group",
    ApiKey.LEAVE_GROUP: "Read Group",
    ApiKey.SYNC_GROUP: "Read Group",
    ApiKey.DESCRIBE_GROUPS: "Describe Group",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "Read Group, Describe Topic",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "Describe Group, Describe Topic",
    ApiKey.LIST_GROUPS: "Describe Cluster, Describe Group",
    ApiKey.API_VERSIONS: "",
    ApiKey.CREATE_TOPICS: "Create Cluster, Create Topic, DescribeConfigs Topic",
    ApiKey.DELETE_TOPICS: "Delete Topic, Describe Topic",
    ApiKey.DELETE_RECORDS: "Delete Topic",
    ApiKey.INIT_PRODUCER_ID: "Write TransactionalId, IdempotentWrite Cluster, Write Topic",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "ClusterAction Cluster, Describe Topic",
    ApiKey.ADD_PARTITIONS_TO_TXN: "Write TransactionalId, Write Topic, ClusterAction Cluster",
    ApiKey.ADD_OFFSETS_TO_TXN: "Write TransactionalId, Read Group",
    ApiKey.END_TXN: "Write TransactionalId",
    ApiKey.WRITE_TXN_MARKERS: "Alter Cluster, ClusterAction Cluster",
    ApiKey.TXN_OFFSET_COMMIT: "Write TransactionalId, Read Group, Read Topic",
    ApiKey.DESCRIBE_ACLS: "Describe Cluster",
    ApiKey.CREATE_ACLS: "Alter Cluster",
    ApiKey.DELETE_ACLS: "Alter Cluster",
    ApiKey.DESCRIBE_CONFIGS: "DescribeConfigs Cluster, DescribeConfigs Topic, DescribeConfigs Group",
    ApiKey.ALTER_CONFIGS: "AlterConfigs Cluster, AlterConfigs Topic, AlterConfigs Group",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "Alter Cluster",
    ApiKey.DESCRIBE_LOG_DIRS: "Describe Cluster",
    ApiKey.CREATE_PARTITIONS: "Alter Topic",
    ApiKey.DELETE_GROUPS: "Delete Group",
    ApiKey.ELECT_LEADERS: "Alter Cluster",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "AlterConfigs Cluster, AlterConfigs Topic, AlterConfigs Group",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "Alter Cluster",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "Describe Cluster",
    ApiKey.OFFSET_DELETE: "Delete Group, Read Topic",
    ApiKey.ALTER_PARTITION: "ClusterAction Cluster",
    ApiKey.SASL_HANDSHAKE: "",
    ApiKey.CREATE_DELEGATION_TOKEN: "CreateTokens User",
    ApiKey.RENEW_DELEGATION_TOKEN: "",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "Describe DelegationToken, DescribeTokens User",
    ApiKey.SASL_AUTHENTICATE: "",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "Describe Cluster",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "Alter Cluster",
    ApiKey.UPDATE_FEATURES: "Alter Cluster",
    ApiKey.DESCRIBE_PRODUCERS: "Read Topic",
    ApiKey.DESCRIBE_CLUSTER: "Describe Cluster",
    ApiKey.DESCRIBE_TRANSACTIONS: "Describe TransactionalId, Describe Topic",
    ApiKey.LIST_TRANSACTIONS: "Describe TransactionalId",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "DescribeConfigs Cluster",
    ApiKey.ALTER_CLIENT_QUOTAS: "AlterConfigs Cluster",
    ApiKey.ALLOCATE_PRODUCER_IDS: "ClusterAction Cluster",
    ApiKey.SHARE_GROUP_HEARTBEAT: "Read Group, Describe Topic",
    ApiKey.SHARE_GROUP_DESCRIBE: "Describe Group, Describe Topic",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "Describe Group, Describe Topic",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "Read Group, Read Topic",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "Delete Group, Read Topic",
    ApiKey.SHARE_FETCH: "Read Group, Read Topic",
    ApiKey.SHARE_ACKNOWLEDGE: "Read Group, Read Topic",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "ClusterAction Cluster",
    ApiKey.READ_SHARE_GROUP_STATE: "ClusterAction Cluster",
    ApiKey.WRITE_SHARE_GROUP_STATE: "ClusterAction Cluster",
    ApiKey.DELETE_SHARE_GROUP_STATE: "ClusterAction Cluster",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "ClusterAction Cluster",
    ApiKey.LIST_CONFIG_RESOURCES: "DescribeConfigs Cluster",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "",
    ApiKey.PUSH_TELEMETRY: "",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "Describe Topic",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "Read Group, Describe Topic, Create Cluster, Create Topic",
    ApiKey.STREAMS_GROUP_DESCRIBE: "Describe Group, Describe Topic",
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: "Read Group",
}


def camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.api_key.name)
def test_an_api_needs_the_permissions_that_kafka_asks_for(route: Route[Services]) -> None:
    needed = {
        f"{camel_case(permission.operation.name)} {camel_case(permission.type.name)}"
        for permission in route.permissions
    }

    assert needed == set(filter(None, ASKED_FOR[route.api_key].split(", ")))


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if any(permission.is_asked_first for permission in route.permissions)],
    ids=lambda route: route.api_key.name,
)
def test_a_request_that_is_refused_as_a_whole_names_its_resource_and_can_be_answered(
    route: Route[Services],
) -> None:
    for permission in route.permissions:
        if permission.is_asked_first:
            assert isinstance(permission.resource_of(request_class(route.api_key)()).name, str)

    response: Any = response_class(route.api_key)()
    response.error_code = 31
    for version in range(route.min_version, route.max_version + 1):
        response.encode(version)


def test_a_handler_that_borrows_the_buffer_asks_for_permissions_itself() -> None:
    with pytest.raises(ValueError, match="ask for permissions itself"):
        Route(ApiKey.PRODUCE, 0, 9, at_once, (CLUSTER_ACTION,), borrows_buffer=True)

    assert Route(ApiKey.PRODUCE, 0, 9, at_once, (READ_TOPICS,), borrows_buffer=True).borrows_buffer


def test_requests_of_brokers_have_no_quota() -> None:
    quotas = {route.api_key: route.quota for route in ROUTES if route.quota is not Quota.REQUEST}

    assert quotas == {
        ApiKey.PRODUCE: Quota.PRODUCE,
        ApiKey.FETCH: Quota.FETCH,
        ApiKey.CREATE_TOPICS: Quota.CONTROLLER_MUTATION,
        ApiKey.DELETE_TOPICS: Quota.CONTROLLER_MUTATION,
        ApiKey.CREATE_PARTITIONS: Quota.CONTROLLER_MUTATION,
        ApiKey.WRITE_TXN_MARKERS: Quota.EXEMPT,
        ApiKey.SHARE_FETCH: Quota.FETCH,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: Quota.EXEMPT,
        ApiKey.READ_SHARE_GROUP_STATE: Quota.EXEMPT,
        ApiKey.WRITE_SHARE_GROUP_STATE: Quota.EXEMPT,
        ApiKey.DELETE_SHARE_GROUP_STATE: Quota.EXEMPT,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Quota.EXEMPT,
        **{route.api_key: Quota.EXEMPT for route in ROUTES if route.of_brokers is always},
    }
