"""DescribeConfigs: the settings of topics and brokers, with their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.broker_settings import DEFAULT, Entry
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_CONFIGS, DESCRIBE_TOPIC_CONFIGS, Permission
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.protocol.topics import why_illegal_topic_name

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.telemetry.client_metrics import ClientMetrics

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32


class Needs(Protocol):
    """The parts of the broker that DescribeConfigs uses."""

    config: BrokerConfig
    configs: Configs
    metadata: MetadataCache

    @property
    def client_metrics(self) -> Callable[[], ClientMetrics]:
        """Return the telemetry of clients, which the first call makes."""
        ...


async def handle(
    services: Needs, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Describe each resource once; an unknown one has its own error. Those that are refused come last."""
    asked = {
        (resource.resource_type, resource.resource_name): resource
        async for resource in context.paced(request.resources)
    }
    limit = services.config.request_max_described_resources
    if len(asked) > limit:
        error = InvalidRequest(
            f"{len(asked)} resources are asked for, more than request.max.described.resources ({limit})"
        )
        results = [_failed(resource, error) async for resource in context.paced(asked.values())]
    else:
        shown, refused = await _shown_and_refused(asked.values(), context)
        if any(resource.resource_type == CLIENT_METRICS for resource in shown):
            with zookeeper_errors():
                await services.client_metrics().refresh()
        results = [
            _describe(services, resource, request, context.api_version)
            async for resource in context.paced(shown)
        ]
        results += [_failed(resource, error) for resource, error in refused]
    return DescribeConfigsResponse(results=results)


async def _shown_and_refused(
    asked: Iterable[DescribeConfigsResource], context: RequestContext
) -> tuple[list[DescribeConfigsResource], list[tuple[DescribeConfigsResource, KafkaError]]]:
    shown: list[DescribeConfigsResource] = []
    refused: list[tuple[DescribeConfigsResource, KafkaError]] = []
    async for resource in context.paced(asked):
        kind, name = resource.resource_type, resource.resource_name
        error = refusal(context, kind, name, DESCRIBE_TOPIC_CONFIGS, DESCRIBE_CONFIGS)
        if error is None:
            shown.append(resource)
        else:
            refused.append((resource, error))
    return shown, refused


def refusal(
    context: RequestContext, kind: int, name: str, on_topic: Permission, on_cluster: Permission
) -> KafkaError | None:
    """Return the error of a client without the permission on a resource with settings, or None.

    A type of resource that has none is refused by what looks it up.
    """
    if kind == TOPIC:
        allowed = context.allows(on_topic, Resource(ResourceType.TOPIC, name))
        return None if allowed else TopicAuthorizationFailed()
    if kind == GROUP:
        on_group = on_topic._replace(type=ResourceType.GROUP)
        allowed = context.allows(on_group, Resource(ResourceType.GROUP, name))
        return None if allowed else GroupAuthorizationFailed()
    if kind in (BROKER, BROKER_LOGGER, CLIENT_METRICS) and not context.allows(on_cluster, CLUSTER):
        return ClusterAuthorizationFailed()
    return None


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error.code,
        error_message=str(error),
    )


def _describe(
    services: Needs, resource: DescribeConfigsResource, request: DescribeConfigsRequest, version: int
) -> DescribeConfigsResult:
    try:
        entries = _entries(services, resource.resource_type, resource.resource_name)
    except KafkaError as error:
        return _failed(resource, error)
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
    result.configs = [_result(e, request, version) for e in entries if wanted is None or e.name in wanted]
    return result


def _entries(services: Needs, resource_type: int, name: str) -> Sequence[Entry]:
    if resource_type == TOPIC:
        if why := why_illegal_topic_name(name):
            raise InvalidTopicException(f"Topic name is illegal: {why}.")
        if name not in services.metadata:
            raise UnknownTopicOrPartition
        return services.configs.describe_topic(name)
    if resource_type == BROKER:
        own = str(services.metadata.broker_id)
        if name not in ("", own):
            raise InvalidRequest(f"Unexpected broker id, expected {own} or empty string, but received {name}")
        return services.configs.describe_broker(name)
    if resource_type == GROUP:
        return services.configs.describe_group(named_group(name))
    if resource_type == BROKER_LOGGER:
        return ()
    if resource_type == CLIENT_METRICS:
        return services.client_metrics().subscriptions.describe(name)
    raise InvalidRequest(f"Unsupported resource type: {resource_type}")


def named_group(name: str) -> str:
    """Return the id of a group. Raises InvalidRequest for an empty one."""
    if not name:
        raise InvalidRequest("Group name must not be empty.")
    return name


def _result(entry: Entry, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=version == 0 and entry.source == DEFAULT,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
