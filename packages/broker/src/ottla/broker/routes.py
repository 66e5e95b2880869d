"""The APIs this broker serves: one line each, with the versions it answers and who answers."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ottla.broker.handlers import api_versions, fetch, list_offsets, metadata, produce
from ottla.broker.network.routes import Route
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.handlers.services import Handler, RequestContext, Services


@cache
def _handler_in(module: str) -> Handler:
    handler: Handler = import_module(f"ottla.broker.handlers.{module}").handle
    return handler


def _later(module: str) -> Handler:
    """Name a handler whose module is imported when its first request comes.

    A broker starts a tenth sooner when only what every client asks for is there from the beginning.
    """

    async def handle(services: Services, request: Any, context: RequestContext) -> Any:
        response = _handler_in(module)(services, request, context)
        return await response if inspect.isawaitable(response) else response

    return handle


ROUTES = (
    Route(ApiKey.PRODUCE, 0, 9, produce.handle),
    Route(ApiKey.FETCH, 0, 12, fetch.handle, stops_with_connection=True),
    Route(ApiKey.LIST_OFFSETS, 0, 6, list_offsets.handle),
    Route(ApiKey.METADATA, 0, 11, metadata.handle),
    Route(ApiKey.LEADER_AND_ISR, 0, 5, _later("leader_and_isr")),
    Route(ApiKey.STOP_REPLICA, 0, 3, _later("stop_replica")),
    Route(ApiKey.UPDATE_METADATA, 0, 7, _later("update_metadata")),
    Route(ApiKey.CONTROLLED_SHUTDOWN, 0, 3, _later("controlled_shutdown")),
    Route(ApiKey.OFFSET_COMMIT, 0, 8, _later("offset_commit")),
    Route(ApiKey.OFFSET_FETCH, 0, 7, _later("offset_fetch")),
    Route(ApiKey.FIND_COORDINATOR, 0, 3, _later("find_coordinator")),
    Route(ApiKey.JOIN_GROUP, 0, 7, _later("join_group")),
    Route(ApiKey.HEARTBEAT, 0, 4, _later("heartbeat")),
    Route(ApiKey.LEAVE_GROUP, 0, 4, _later("leave_group")),
    Route(ApiKey.SYNC_GROUP, 0, 5, _later("sync_group")),
    Route(ApiKey.DESCRIBE_GROUPS, 0, 5, _later("describe_groups")),
    Route(ApiKey.LIST_GROUPS, 0, 4, _later("list_groups")),
    Route(ApiKey.API_VERSIONS, 0, 3, api_versions.handle),
    Route(ApiKey.CREATE_TOPICS, 0, 7, _later("create_topics")),
    Route(ApiKey.DELETE_TOPICS, 0, 6, _later("delete_topics")),
    Route(ApiKey.DELETE_RECORDS, 0, 2, _later("delete_records")),
    Route(ApiKey.INIT_PRODUCER_ID, 0, 4, _later("init_producer_id")),
    Route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, _later("offset_for_leader_epoch")),
    Route(ApiKey.DESCRIBE_CONFIGS, 0, 4, _later("describe_configs")),
    Route(ApiKey.ALTER_CONFIGS, 0, 2, _later("alter_configs")),
    Route(ApiKey.DESCRIBE_LOG_DIRS, 0, 2, _later("describe_log_dirs")),
    Route(ApiKey.CREATE_PARTITIONS, 0, 3, _later("create_partitions")),
    Route(ApiKey.DELETE_GROUPS, 0, 2, _later("delete_groups")),
    Route(ApiKey.ELECT_LEADERS, 0, 2, _later("elect_leaders")),
    Route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, _later("incremental_alter_configs")),
    Route(ApiKey.OFFSET_DELETE, 0, 0, _later("offset_delete")),
    Route(ApiKey.ALTER_PARTITION, 0, 0, _later("alter_partition")),
    Route(ApiKey.DESCRIBE_CLUSTER, 0, 1, _later("describe_cluster")),
)
"""Where a range ends below what `ottla.protocol` knows, the rest would promise what is not there."""
