"""IncrementalAlterConfigs: set or delete a setting, append to or subtract from a list (KIP-339)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ottla.broker.api.alter_configs import Needs, alter_each
from ottla.broker.api.describe_configs import CLIENT_METRICS, GROUP, TOPIC
from ottla.broker.config import BrokerConfig, Setting, find_key, topic_keys
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import InvalidConfig, InvalidRequest
from ottla.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


async def handle(
    services: Needs, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Apply the operations to each resource; a failure of one does not affect the others."""
    return IncrementalAlterConfigsResponse(
        responses=await alter_each(
            services,
            context,
            request.resources,
            _check,
            _apply,
            AlterConfigsResourceResponse,
            validate_only=request.validate_only,
        )
    )


def _check(resource: IncrementalAlterConfigsResource) -> None:
    times = Counter(config.name for config in resource.configs)
    if repeated := [name for name, count in times.items() if count > 1]:
        raise InvalidRequest(f"Error due to duplicate config keys: {', '.join(repeated)}")
    for config in resource.configs:
        if config.config_operation != DELETE and config.value is None:
            raise InvalidRequest(f"Null value not supported for : {config.name}")


def _apply(resource: IncrementalAlterConfigsResource, present: dict[str, str]) -> dict[str, str]:
    for config in resource.configs:
        _operate(config, _key(resource.resource_type, config.name), present)
    return present


def _key(resource_type: int, name: str) -> Setting | None:
    if resource_type == TOPIC:
        return topic_keys().get(name)
    if resource_type == CLIENT_METRICS:
        from ottla.broker.telemetry.subscriptions import KEYS

        return KEYS.get(name)
    if resource_type == GROUP:
        from ottla.broker.config.group import group_keys

        return group_keys().get(name)
    return find_key(BrokerConfig, name)


def _operate(config: IncrementalAlterableConfig, key: Setting | None, present: dict[str, str]) -> None:
    if config.config_operation == DELETE:
        present.pop(config.name, None)
        return
    if config.config_operation == SET:
        present[config.name] = config.value or ""
    elif config.config_operation in (APPEND, SUBTRACT):
        present[config.name] = _with_items(config, key, present)
    else:
        raise InvalidRequest(f"Unknown operation {config.config_operation} for config {config.name}")


def _with_items(config: IncrementalAlterableConfig, key: Setting | None, present: dict[str, str]) -> str:
    if key is None or key.type != "list":
        verb = "append" if config.config_operation == APPEND else "subtract"
        raise InvalidConfig(f"Config value {verb} is not allowed for config key: {config.name}")
    items = list(key.parse(present[config.name]) if config.name in present else key.default or ())
    given = [item.strip() for item in (config.value or "").split(",") if item.strip()]
    if config.config_operation == APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)
