"""DescribeClientQuotas: the quotas of users, client ids and addresses that match a filter (KIP-546)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.cluster.client_entities import CLIENTS, IPS, USERS
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.quotas.clients import QUOTA_KEYS, encoded_name
from ottla.broker.quotas.connections import CONNECTION_RATE, DEFAULT
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import InvalidRequest, KafkaError, UnsupportedVersion
from ottla.protocol.messages.client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from ottla.zookeeper import paths

if TYPE_CHECKING:
    from ottla.broker.cluster.client_entities import ClientEntities
    from ottla.broker.cluster.configs import Configs

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
EXACT, DEFAULT_NAME, ANY = range(3)
"""The match types of a filter's component."""
_TYPES: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    (USERS,): (USER,),
    (CLIENTS,): (CLIENT_ID,),
    (USERS, CLIENTS): (USER, CLIENT_ID),
    (IPS,): (IP,),
}


class Needs(Protocol):
    """The part of the broker that DescribeClientQuotas uses."""

    configs: Configs


class Entity(NamedTuple):
    """An entity with the encoded name of each of its types."""

    path: str
    names: Mapping[str, str]


async def handle(
    services: Needs, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Read the entities that may match from ZooKeeper, and respond with those that match and have quotas."""
    try:
        wanted = checked_filter(request.components)
        with zookeeper_errors():
            entries = await _entries(services.configs.client_entities, wanted, request, context)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


async def _entries(
    entities: ClientEntities,
    wanted: Mapping[str, str | None],
    request: DescribeClientQuotasRequest,
    context: RequestContext,
) -> list[EntryData]:
    kinds = [
        kind
        for kind, types in ((USERS, (USER, CLIENT_ID)), (CLIENTS, (CLIENT_ID, USER)), (IPS, (IP,)))
        if not wanted or any(of in wanted for of in types)
    ]
    found = [path for kind in kinds for path in await entities.paths_of(kind)]
    matching = []
    async for path in context.paced(found):
        entity = entity_of(path)
        if matches(entity.names, wanted, is_strict=request.strict):
            matching.append(entity)
    settings = await asyncio.gather(*(entities.read(entity.path) for entity in matching))
    return [
        _entry(entity, quotas)
        for entity, (read, _) in zip(matching, settings, strict=True)
        if (quotas := quotas_in(read))
    ]


def checked_filter(components: list[ComponentData]) -> dict[str, str | None]:
    """Return the encoded name that is wanted of each type, None for any; raises for an invalid filter."""
    wanted: dict[str, str | None] = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise InvalidRequest("Unexpected empty filter component entity type")
        if kind not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersion(f"Custom entity type '{kind}' not supported")
        if kind in wanted:
            raise InvalidRequest(f"Duplicate {kind} filter component entity type")
        wanted[kind] = _wanted_name(component)
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination, IP filter component should not be used with "
            "user or clientId filter component."
        )
    return wanted


def _wanted_name(component: ComponentData) -> str | None:
    match component.match_type:
        case 0:
            if component.match is None:
                raise InvalidRequest("A filter by name needs a name")
            return encoded_name(component.match)
        case 1:
            return DEFAULT
        case 2:
            return None
    raise InvalidRequest(f"Unexpected match type: {component.match_type}")


def entity_of(path: str) -> Entity:
    """Return the entity of a path below `/config`."""
    steps = path.split("/")
    return Entity(path, dict(zip(_TYPES[tuple(steps[::2])], steps[1::2], strict=True)))


def matches(names: Mapping[str, str], wanted: Mapping[str, str | None], *, is_strict: bool) -> bool:
    """Return whether an entity has every type of the filter by the name that is wanted, or by any.

    A strict filter matches no entity with a type that it does not name.
    """
    if is_strict and set(names) - set(wanted):
        return False
    return all(kind in names and (name is None or names[kind] == name) for kind, name in wanted.items())


def quotas_in(settings: Mapping[str, str]) -> dict[str, float]:
    """Return the quotas among the settings of an entity: never the credentials of a user."""
    quotas: dict[str, float] = {}
    for key, text in settings.items():
        if key in QUOTA_KEYS or key == CONNECTION_RATE:
            try:
                quotas[key] = float(text)
            except ValueError:
                continue
    return quotas


def _entry(entity: Entity, quotas: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=[
            EntityData(entity_type=kind, entity_name=None if name == DEFAULT else paths.desanitized(name))
            for kind, name in entity.names.items()
        ],
        values=[ValueData(key=key, value=value) for key, value in quotas.items()],
    )
