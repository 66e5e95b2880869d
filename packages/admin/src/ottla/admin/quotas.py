"""Quotas of clients and users: bytes and request time that brokers allow them (KIP-13, KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.cluster import Cluster, raise_for
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_EXACT, _DEFAULT = 0, 1

Entity = Mapping[str, str | None]
"""The entity of a quota: names by USER, CLIENT_ID or IP; None is the default for those without their own."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of one entity: limits by key, such as `producer_byte_rate`."""

    entity: Mapping[str, str | None]
    limits: Mapping[str, float]


class Quotas:
    """Quotas of clients; brokers since 2.6 serve these requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, entity: Entity | None = None, *, strict: bool = False) -> list[Quota]:
        """Return the quotas of the entities that have these names, or of all.

        With `strict` an entity has no further parts: not a client id beside the user.
        """
        components = [
            ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
            for kind, name in (entity or {}).items()
        ]
        request = DescribeClientQuotasRequest(components=components, strict=strict)

        async def ask() -> list[Quota]:
            response = await self._cluster.ask_any(request, DescribeClientQuotasResponse)
            raise_for(response.error_code, response.error_message)
            return [
                Quota(
                    {part.entity_type: part.entity_name for part in entry.entity},
                    {value.key: value.value for value in entry.values},
                )
                for entry in response.entries or ()
            ]

        return await self._cluster.retry("reading quotas", ask)

    async def alter(
        self, entity: Entity, limits: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set limits of an entity; None removes a limit. Other limits stay as they are.

        Raises InvalidRequest for keys and entities that brokers do not know.
        """
        entry = AlteredEntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                for key, value in limits.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)

        async def ask() -> None:
            response = await self._cluster.send_to_controller(request, AlterClientQuotasResponse)
            for entry in response.entries:
                raise_for(entry.error_code, entry.error_message)

        await self._cluster.retry("changing quotas", ask)
