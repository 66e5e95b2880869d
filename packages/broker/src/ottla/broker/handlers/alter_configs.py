"""AlterConfigs: replaces all settings of a topic or a broker by those given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.broker.handlers.describe_configs import BROKER, TOPIC
from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

Change = Callable[[dict[str, str]], dict[str, str]]


async def handle(
    services: Services, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace the settings of each resource; one that fails leaves the others alone."""
    responses = []
    for resource in request.resources:
        error, message = await alter(
            services,
            resource.resource_type,
            resource.resource_name,
            partial(_replacement, resource),
            validate_only=request.validate_only,
        )
        responses.append(
            AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return AlterConfigsResponse(responses=responses)


def _replacement(resource: AlterConfigsResource, _: dict[str, str]) -> dict[str, str]:
    if missing := [config.name for config in resource.configs if config.value is None]:
        raise InvalidRequest(f"Null value not supported for : {', '.join(missing)}")
    return {config.name: config.value or "" for config in resource.configs}


async def alter(
    services: Services, resource_type: int, name: str, change: Change, *, validate_only: bool
) -> tuple[int, str | None]:
    """Change one resource's settings; return the error code and its message."""
    try:
        if resource_type == TOPIC:
            await services.configs.alter_topic(name, change, validate_only=validate_only)
        elif resource_type == BROKER:
            await services.configs.alter_broker(name, change, validate_only=validate_only)
        else:
            raise InvalidRequest(
                f"AlterConfigs is only supported for topics and brokers, not {resource_type}"
            )
    except KafkaError as error:
        return error.code, str(error)
    return ErrorCode.NONE, None
