"""The APIs this broker serves, an entry for each: versions, handler, permissions, quota, and its behaviour.

The modules of most handlers are imported with their first request: a broker starts a tenth sooner. That every
handler accepts the broker's `Services` is checked by mypy in `tests/api/test_routes.py`.

A range of versions that ends below the newest in `ottla.protocol` leaves out versions with features that the
broker does not have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api import api_versions
from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.produce import general as produce
from ottla.broker.quotas import Quota
from ottla.broker.requests.authorization import from_follower
from ottla.broker.requests.permissions import (
    ALTER,
    ALTER_CONFIGS,
    ALTER_GROUP_CONFIGS,
    ALTER_TOPIC_CONFIGS,
    ALTER_TOPICS,
    CLUSTER_ACTION,
    CREATE,
    CREATE_TOKENS,
    CREATE_TOPICS,
    DELETE_GROUP,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_TOKEN,
    DESCRIBE_TOKENS,
    DESCRIBE_TOPIC_CONFIGS,
    DESCRIBE_TOPICS,
    DESCRIBE_TXNS,
    IDEMPOTENT_WRITE,
    READ_GROUP,
    READ_GROUPS,
    READ_TOPICS,
    WRITE_TOPICS,
    WRITE_TXN,
    WRITE_TXNS,
)
from ottla.broker.requests.routes import RawTokens, Route, always
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.api.services import Services
    from ottla.broker.requests.context import Handler, RequestContext
    from ottla.protocol.schema import Message

EXEMPT: Final = Quota.EXEMPT
MUTATION: Final = Quota.CONTROLLER_MUTATION


class HandlerOf:
    """The handler of a module of `ottla.broker.api`, which is imported when it is first called."""

    def __init__(self, module: str, name: str = "handle") -> None:
        """`name` is that of the function, in a module of several APIs."""
        self.module = module
        self.name = name
        self._handle: Handler[Services] | None = None

    def resolve(self) -> Handler[Services]:
        """Import the module and return its handler."""
        handle: Handler[Services] = getattr(import_module(f"ottla.broker.api.{self.module}"), self.name)
        return handle

    def __call__(self, services: Services, request: Any, context: RequestContext) -> Any:
        if self._handle is None:
            self._handle = self.resolve()
        return self._handle(services, request, context)


of = HandlerOf


def _request_of_token(token: bytes) -> Message:
    from ottla.protocol.messages.sasl import SaslAuthenticateRequest

    return SaslAuthenticateRequest(auth_bytes=token)


def _token_of_response(response: Any) -> bytes | None:
    return None if response.error_code else bytes(response.auth_bytes)


ROUTES: Final[tuple[Route[Services], ...]] = (
    Route(
        ApiKey.PRODUCE, 0, 13, produce.handle, (WRITE_TXNS, WRITE_TOPICS),
        Quota.PRODUCE, borrows_buffer=True, appends=True,
        fast_path=lambda services: services.produce_fast_path,
    ),
    Route(
        ApiKey.FETCH, 0, 18, fetch.handle, (CLUSTER_ACTION.in_handler, READ_TOPICS), Quota.FETCH,
        stops_with_connection=True, borrows_buffer=True, of_brokers=from_follower,
        fast_path=lambda services: services.fetch_fast_path,
    ),
    Route(ApiKey.LIST_OFFSETS, 0, 11, of("list_offsets"), (DESCRIBE_TOPICS,), of_brokers=from_follower),
    Route(
        ApiKey.METADATA, 0, 13, of("metadata"),
        (DESCRIBE_TOPICS, CREATE.in_handler, CREATE_TOPICS, DESCRIBE.in_handler),
    ),
    Route(ApiKey.LEADER_AND_ISR, 0, 7, of("leader_and_isr"), (CLUSTER_ACTION,), of_brokers=always),
    Route(ApiKey.STOP_REPLICA, 0, 4, of("stop_replica"), (CLUSTER_ACTION,), of_brokers=always),
    Route(ApiKey.UPDATE_METADATA, 0, 8, of("update_metadata"), (CLUSTER_ACTION,), of_brokers=always),
    Route(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, of("controlled_shutdown"), (CLUSTER_ACTION,), of_brokers=always),
    Route(ApiKey.OFFSET_COMMIT, 0, 10, of("offset_commit"), (READ_GROUPS, READ_TOPICS)),
    Route(ApiKey.OFFSET_FETCH, 0, 10, of("offset_fetch"), (DESCRIBE_GROUPS, DESCRIBE_TOPICS)),
    Route(
        ApiKey.FIND_COORDINATOR, 0, 6, of("find_coordinator"),
        (DESCRIBE_GROUPS, DESCRIBE_TXNS, CLUSTER_ACTION.in_handler),
    ),
    Route(ApiKey.JOIN_GROUP, 0, 9, of("join_group"), (READ_GROUP,), waits_for_clients=True),
    Route(ApiKey.HEARTBEAT, 0, 4, of("heartbeat"), (READ_GROUP,)),
    Route(ApiKey.LEAVE_GROUP, 0, 5, of("leave_group"), (READ_GROUP,)),
    Route(ApiKey.SYNC_GROUP, 0, 5, of("sync_group"), (READ_GROUPS,), waits_for_clients=True),
    Route(ApiKey.DESCRIBE_GROUPS, 0, 6, of("describe_groups"), (DESCRIBE_GROUPS,)),
    Route(ApiKey.LIST_GROUPS, 0, 5, of("list_groups"), (DESCRIBE.in_handler, DESCRIBE_GROUPS)),
    Route(
        ApiKey.API_VERSIONS, 0, 5, api_versions.handle, before_login=True,
        unsupported=api_versions.unsupported,
    ),
    Route(ApiKey.SASL_HANDSHAKE, 0, 1, of("sasl_handshake"), before_login=True),
    Route(
        ApiKey.SASL_AUTHENTICATE, 0, 2, of("sasl_authenticate"), before_login=True,
        raw_tokens=RawTokens(_request_of_token, _token_of_response),
    ),
    Route(
        ApiKey.CREATE_TOPICS, 0, 7, of("create_topics"),
        (CREATE.in_handler, CREATE_TOPICS, DESCRIBE_TOPIC_CONFIGS), MUTATION,
    ),
    Route(ApiKey.DELETE_TOPICS, 0, 6, of("delete_topics"), (DELETE_TOPICS, DESCRIBE_TOPICS), MUTATION),
    Route(ApiKey.DELETE_RECORDS, 0, 2, of("delete_records"), (DELETE_TOPICS,)),
    Route(
        ApiKey.INIT_PRODUCER_ID, 0, 5, of("init_producer_id"),
        (WRITE_TXNS, IDEMPOTENT_WRITE.in_handler, WRITE_TOPICS),
    ),
    Route(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, of("offset_for_leader_epoch"),
        (CLUSTER_ACTION.in_handler, DESCRIBE_TOPICS), of_brokers=from_follower,
    ),
    Route(
        ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, of("add_partitions_to_txn"),
        (WRITE_TXNS, WRITE_TOPICS, CLUSTER_ACTION.in_handler),
    ),
    Route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, of("add_offsets_to_txn"), (WRITE_TXN, READ_GROUP)),
    Route(ApiKey.END_TXN, 0, 5, of("end_txn"), (WRITE_TXN,)),
    Route(
        ApiKey.WRITE_TXN_MARKERS, 0, 2, of("write_txn_markers"),
        (ALTER.in_handler, CLUSTER_ACTION.in_handler), EXEMPT,
    ),
    Route(
        ApiKey.TXN_OFFSET_COMMIT, 0, 6, of("txn_offset_commit"),
        (WRITE_TXNS, READ_GROUPS, READ_TOPICS),
    ),
    Route(ApiKey.DESCRIBE_ACLS, 0, 3, of("describe_acls"), (DESCRIBE,)),
    Route(ApiKey.CREATE_ACLS, 0, 3, of("create_acls"), (ALTER.in_handler,)),
    Route(ApiKey.DELETE_ACLS, 0, 3, of("delete_acls"), (ALTER.in_handler,)),
    Route(
        ApiKey.DESCRIBE_CONFIGS, 0, 4, of("describe_configs"),
        (DESCRIBE_CONFIGS.in_handler, DESCRIBE_TOPIC_CONFIGS, DESCRIBE_GROUP_CONFIGS),
    ),
    Route(
        ApiKey.ALTER_CONFIGS, 0, 2, of("alter_configs"),
        (ALTER_CONFIGS.in_handler, ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS),
    ),
    Route(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2, of("alter_replica_log_dirs"), (ALTER.in_handler,)),
    Route(ApiKey.DESCRIBE_LOG_DIRS, 0, 5, of("describe_log_dirs"), (DESCRIBE,)),
    Route(ApiKey.CREATE_PARTITIONS, 0, 3, of("create_partitions"), (ALTER_TOPICS,), MUTATION),
    Route(ApiKey.CREATE_DELEGATION_TOKEN, 0, 3, of("create_delegation_token"), (CREATE_TOKENS,)),
    Route(ApiKey.RENEW_DELEGATION_TOKEN, 0, 2, of("renew_delegation_token")),
    Route(ApiKey.EXPIRE_DELEGATION_TOKEN, 0, 2, of("expire_delegation_token")),
    Route(
        ApiKey.DESCRIBE_DELEGATION_TOKEN, 0, 3, of("describe_delegation_token"),
        (DESCRIBE_TOKEN, DESCRIBE_TOKENS),
    ),
    Route(ApiKey.DELETE_GROUPS, 0, 3, of("delete_groups"), (DELETE_GROUPS,)),
    Route(ApiKey.ELECT_LEADERS, 0, 2, of("elect_leaders"), (ALTER.in_handler,)),
    Route(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, of("incremental_alter_configs"),
        (ALTER_CONFIGS.in_handler, ALTER_TOPIC_CONFIGS, ALTER_GROUP_CONFIGS),
    ),
    Route(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, of("alter_partition_reassignments"), (ALTER.in_handler,)
    ),
    Route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, of("list_partition_reassignments"), (DESCRIBE,)),
    Route(ApiKey.OFFSET_DELETE, 0, 0, of("offset_delete"), (DELETE_GROUP, READ_TOPICS)),
    Route(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, of("describe_client_quotas"), (DESCRIBE_CONFIGS,),
    ),
    Route(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, of("alter_client_quotas"), (ALTER_CONFIGS.in_handler,)),
    Route(ApiKey.ALTER_PARTITION, 0, 3, of("alter_partition"), (CLUSTER_ACTION,), of_brokers=always),
    Route(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, of("describe_user_scram_credentials"), (DESCRIBE,)
    ),
    Route(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, of("alter_user_scram_credentials"), (ALTER.in_handler,)),
    Route(ApiKey.UPDATE_FEATURES, 0, 2, of("update_features"), (ALTER,)),
    Route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, of("describe_producers"), (READ_TOPICS,)),
    Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, of("describe_cluster"), (DESCRIBE.in_handler,)),
    Route(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, of("get_telemetry_subscriptions")),
    Route(ApiKey.PUSH_TELEMETRY, 0, 0, of("push_telemetry")),
    Route(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, of("list_config_resources"), (DESCRIBE_CONFIGS,)),
    Route(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, of("describe_topic_partitions"), (DESCRIBE_TOPICS,)),
    Route(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, of("describe_transactions"), (DESCRIBE_TXNS, DESCRIBE_TOPICS)
    ),
    Route(ApiKey.LIST_TRANSACTIONS, 0, 2, of("list_transactions"), (DESCRIBE_TXNS,)),
    Route(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, of("consumer_group_heartbeat"), (READ_GROUPS, DESCRIBE_TOPICS)
    ),
    Route(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, of("consumer_group_describe"),
        (DESCRIBE_GROUPS, DESCRIBE_TOPICS),
    ),
    Route(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, of("share_group_heartbeat"), (READ_GROUPS, DESCRIBE_TOPICS)),
    Route(
        ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, of("share_group_describe"), (DESCRIBE_GROUPS, DESCRIBE_TOPICS)
    ),
    Route(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, of("share_group_offsets", "describe"),
        (DESCRIBE_GROUPS, DESCRIBE_TOPICS),
    ),
    Route(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, of("share_group_offsets", "alter"), (READ_GROUPS, READ_TOPICS)
    ),
    Route(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, of("share_group_offsets", "delete"),
        (DELETE_GROUPS, READ_TOPICS),
    ),
    Route(
        ApiKey.SHARE_FETCH, 1, 2, of("share_fetch"), (READ_GROUPS, READ_TOPICS), Quota.FETCH,
        stops_with_connection=True, waits_for_clients=True,
    ),
    Route(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, of("share_acknowledge"), (READ_GROUPS, READ_TOPICS)),
    Route(
        ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, of("share_group_state", "initialize"),
        (CLUSTER_ACTION.in_handler,), EXEMPT,
    ),
    Route(
        ApiKey.READ_SHARE_GROUP_STATE, 0, 0, of("share_group_state", "read"),
        (CLUSTER_ACTION.in_handler,), EXEMPT,
    ),
    Route(
        ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, of("share_group_state", "write"),
        (CLUSTER_ACTION.in_handler,), EXEMPT,
    ),
    Route(
        ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, of("share_group_state", "delete"),
        (CLUSTER_ACTION.in_handler,), EXEMPT,
    ),
    Route(
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, of("share_group_state", "summarize"),
        (CLUSTER_ACTION.in_handler,), EXEMPT,
    ),
    Route(
        ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, of("streams_group_heartbeat"),
        (READ_GROUPS, DESCRIBE_TOPICS, CREATE.in_handler, CREATE_TOPICS),
    ),
    Route(
        ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, of("streams_group_describe"), (DESCRIBE_GROUPS, DESCRIBE_TOPICS)
    ),
    Route(
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0,
        of("streams_group_topology_description_update"), (READ_GROUPS,),
    ),
    Route(
        ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, of("allocate_producer_ids"), (CLUSTER_ACTION,), of_brokers=always
    ),
)  # fmt: skip
