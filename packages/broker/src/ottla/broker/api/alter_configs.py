"""AlterConfigs: replace all settings of a topic or a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.broker.api.describe_configs import BROKER, CLIENT_METRICS, GROUP, TOPIC, named_group, refusal
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER_CONFIGS, ALTER_TOPIC_CONFIGS
from ottla.protocol.errors import ErrorCode, InvalidConfig, InvalidRequest, KafkaError
from ottla.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.broker_settings import Permit
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.config import BrokerConfig
    from ottla.broker.telemetry.client_metrics import ClientMetrics

Settings = dict[str, str]


class Resource(Protocol):
    """A resource with settings: a topic or a broker."""

    resource_type: int
    resource_name: str


_R = TypeVar("_R", bound=Resource)
_A = TypeVar("_A")


class Needs(Protocol):
    """The parts of the broker that AlterConfigs uses."""

    configs: Configs
    inter_broker: InterBrokerAccess

    @property
    def client_metrics(self) -> Callable[[], ClientMetrics]:
        """Return the telemetry of clients, which the first call makes."""
        ...


async def handle(
    services: Needs, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace the settings of each resource; a failure of one does not affect the others."""
    return AlterConfigsResponse(
        responses=await alter_each(
            services,
            context,
            request.resources,
            _check,
            _replacement,
            AlterConfigsResourceResponse,
            validate_only=request.validate_only,
        )
    )


def _check(resource: AlterConfigsResource) -> None:
    if missing := [config.name for config in resource.configs if config.value is None]:
        raise InvalidRequest(f"Null value not supported for : {', '.join(missing)}")


def _replacement(resource: AlterConfigsResource, _: dict[str, str]) -> dict[str, str]:
    return {config.name: config.value or "" for config in resource.configs}


async def alter_each(
    services: Needs,
    context: RequestContext,
    resources: Iterable[_R],
    check: Callable[[_R], None],
    change: Callable[[_R, Settings], Settings],
    answer: Callable[..., _A],
    *,
    validate_only: bool,
) -> list[_A]:
    """Change the settings of each resource as its entry in the request says; return their responses.

    `check` raises InvalidRequest for an entry that is wrong whatever its resource: before the client is asked
    for its permission, as Kafka does it.
    """
    answers = []
    async for resource in context.paced(resources):
        error, message = await _alter(
            services,
            context,
            resource,
            partial(check, resource),
            partial(change, resource),
            validate_only=validate_only,
        )
        answers.append(
            answer(
                error_code=error,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return answers


async def _alter(
    services: Needs,
    context: RequestContext,
    resource: Resource,
    check: Callable[[], None],
    change: Callable[[Settings], Settings],
    *,
    validate_only: bool,
) -> tuple[int, str | None]:
    kind, name = resource.resource_type, resource.resource_name
    try:
        check()
        if error := refusal(context, kind, name, ALTER_TOPIC_CONFIGS, ALTER_CONFIGS):
            raise error
        with zookeeper_errors(InvalidConfig):
            if kind == TOPIC:
                await services.configs.alter_topic(name, change, validate_only=validate_only)
            elif kind == GROUP:
                await services.configs.alter_group(named_group(name), change, validate_only=validate_only)
            elif kind == BROKER:
                permit = _permitted if context.has_authorizer else _by_address(services, context)
                await services.configs.alter_broker(name, change, permit=permit, validate_only=validate_only)
            elif kind == CLIENT_METRICS:
                subscriptions = services.client_metrics().subscriptions
                await subscriptions.alter(name, change, validate_only=validate_only)
            else:
                raise InvalidRequest(f"AlterConfigs is only supported for topics and brokers, not {kind}")
    except KafkaError as error:
        return error.code, str(error)
    return ErrorCode.NONE, None


def _by_address(services: Needs, context: RequestContext) -> Permit:
    return partial(services.inter_broker.check_move, context.session)


async def _permitted(before: BrokerConfig, after: BrokerConfig) -> None:
    """Permit a change of the hosts that a broker is advertised at: an authorizer does not go by addresses."""
