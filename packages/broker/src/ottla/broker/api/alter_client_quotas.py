"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.describe_client_quotas import CLIENT_ID, IP, USER
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.quotas.clients import QUOTA_KEYS, encoded_name
from ottla.broker.quotas.connections import CONNECTION_RATE, DEFAULT, is_address
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER_CONFIGS
from ottla.broker.security.authorizer import CLUSTER
from ottla.client.config_definition import MAX_INT, MAX_LONG
from ottla.protocol.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    EntityDataResponse,
    EntryDataResponse,
    OpData,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.quotas.clients import ClientQuotas

_EPSILON: Final = 1e-6
_WHOLE: Final[Mapping[str, tuple[str, int]]] = {
    "producer_byte_rate": ("LONG", MAX_LONG),
    "consumer_byte_rate": ("LONG", MAX_LONG),
    CONNECTION_RATE: ("INT", MAX_INT),
}
"""The keys of whole numbers, with Kafka's name of their type and the largest."""


class Needs(Protocol):
    """The part of the broker that AlterClientQuotas uses."""

    configs: Configs
    client_quotas: ClientQuotas


async def handle(
    services: Needs, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    """Change each entity by itself; respond with the outcome of each."""
    is_allowed = context.allows(ALTER_CONFIGS, CLUSTER)
    unknown = await _unknown_hosts(services, request, context) if is_allowed else frozenset[str]()
    outcomes = []
    async for entry in context.paced(request.entries):
        try:
            if not is_allowed:
                raise ClusterAuthorizationFailed
            await _alter(services, entry, unknown, validate_only=request.validate_only)
        except KafkaError as error:
            outcomes.append(_outcome(entry, error))
        else:
            outcomes.append(_outcome(entry, None))
    return AlterClientQuotasResponse(entries=outcomes)


async def _unknown_hosts(
    services: Needs, request: AlterClientQuotasRequest, context: RequestContext
) -> frozenset[str]:
    """Return the hosts in a request that have no address: looked up together, for each takes time."""
    hosts: set[str] = set()
    async for entry in context.paced(request.entries):
        hosts.update(of.entity_name for of in entry.entity if of.entity_type == IP and of.entity_name)
    named = [host for host in hosts if not is_address(host)]
    addresses = await services.client_quotas.address_rates.addresses_of(named)
    return frozenset(host for host, address in addresses.items() if address is None)


async def _alter(
    services: Needs, entry: AlteredEntryData, unknown_hosts: Collection[str], *, validate_only: bool
) -> None:
    names = {of.entity_type: of.entity_name for of in entry.entity}
    path = entity_path(names)
    if (address := names.get(IP)) in unknown_hosts:
        raise InvalidRequest(f"{address} is not a valid IP or resolvable host.")
    changes = {op.key: checked_value(op, is_of_address=IP in names) for op in entry.ops}
    if validate_only:
        return

    def change(settings: dict[str, str]) -> dict[str, str]:
        changed = {**settings, **changes}
        return {key: value for key, value in changed.items() if value is not None}

    with zookeeper_errors():
        await services.configs.client_entities.alter(path, change)


def entity_path(names: Mapping[str, str | None]) -> str:
    """Return the path of an entity below `/config`, from its names by type; raises InvalidRequest."""
    if not names:
        raise InvalidRequest("Invalid empty client quota entity")
    if unknown := [kind for kind in names if kind not in (USER, CLIENT_ID, IP)]:  # one may be an empty text
        raise InvalidRequest(f"Unhandled client quota entity type: {unknown[0]}")
    if empty := next((kind for kind, name in names.items() if name == ""), None):
        raise InvalidRequest(f"Empty {empty} not supported")
    if IP in names and len(names) > 1:
        raise InvalidRequest(
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity."
        )
    encoded = {kind: DEFAULT if name is None else _encoded(name) for kind, name in names.items()}
    if IP in encoded:
        return f"ips/{encoded[IP]}"
    if USER not in encoded:
        return f"clients/{encoded[CLIENT_ID]}"
    return f"users/{encoded[USER]}" + (f"/clients/{encoded[CLIENT_ID]}" if CLIENT_ID in encoded else "")


def _encoded(name: str) -> str:
    if name in (".", ".."):
        raise InvalidRequest(f"'{name}' cannot be the name of a znode")
    return encoded_name(name)


def checked_value(op: OpData, *, is_of_address: bool) -> str | None:
    """Return the text of a quota for its znode, None to remove it; raises InvalidRequest.

    As in Kafka's newer controllers a quota is above 0; only addresses may be shut out by a rate of 0.
    """
    if op.key not in ((CONNECTION_RATE,) if is_of_address else QUOTA_KEYS):
        if op.remove:
            return None
        raise InvalidRequest(f"Invalid configuration key {op.key}")
    if op.remove:
        return None
    value = op.value
    if not math.isfinite(value):
        raise InvalidRequest(f"Quota {op.key} must be a number")
    if value < 0 or (value == 0 and not is_of_address):
        raise InvalidRequest(f"Quota {op.key} must be greater than 0")
    if op.key not in _WHOLE:
        return repr(value)
    type_, most = _WHOLE[op.key]
    whole = int(value + _EPSILON)
    if abs(whole - value) > _EPSILON:
        raise InvalidRequest(f"Configuration {op.key} must be a {type_} value")
    if whole > most and value > float(most):
        raise InvalidRequest(f"Proposed value for {op.key} is too large for a {type_}.")
    return str(min(whole, most))


def _outcome(entry: AlteredEntryData, error: KafkaError | None) -> EntryDataResponse:
    return EntryDataResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else str(error),
        entity=[
            EntityDataResponse(entity_type=of.entity_type, entity_name=of.entity_name) for of in entry.entity
        ],
    )
