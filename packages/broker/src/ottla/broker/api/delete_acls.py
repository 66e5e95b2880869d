"""DeleteAcls: removes the rules that filters select (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.create_acls import error_of_change, refusal_of_change
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.security.acls.bindings import UNKNOWN, binding_filter
from ottla.protocol.messages.acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.acls import Acls, Change
    from ottla.broker.security.acls.bindings import BindingFilter, Entry, Pattern
    from ottla.protocol.errors import KafkaError

Filters = Mapping[int, "BindingFilter"]
"""Filters by their place in the request."""
Removed = dict["Pattern", dict["Entry", int]]
"""The rules that were removed, each with the place of the first filter that selects it."""


class Needs(Protocol):
    """The part of the broker that DeleteAcls uses."""

    acls: Acls | None


async def handle(services: Needs, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Remove the selected rules. A rule that several filters select is in the result of the first."""
    if any(UNKNOWN in _codes(asked) for asked in request.filters):
        raise CloseConnection  # as Kafka
    if (refusal := refusal_of_change(services.acls, context)) is not None:
        result = DeleteAclsFilterResult(error_code=refusal.code, error_message=str(refusal))
        return DeleteAclsResponse(filter_results=[result] * len(request.filters))
    assert services.acls is not None
    removed: Removed = {}
    changes: dict[Pattern, Change] = {
        pattern: partial(_without, filters, removed.setdefault(pattern, {}))
        for pattern, filters in (await _selected(services.acls, request, context)).items()
    }
    errors = map(error_of_change, await services.acls.alter(changes))
    return _response(len(request.filters), removed, dict(zip(changes, errors, strict=True)))


async def _selected(
    acls: Acls, request: DeleteAclsRequest, context: RequestContext
) -> dict[Pattern, dict[int, BindingFilter]]:
    """Return the patterns that filters select, with these; also patterns of which no rules are known yet."""
    found: dict[Pattern, dict[int, BindingFilter]] = {}
    indefinite: dict[int, BindingFilter] = {}
    for index, asked in enumerate(request.filters):
        if (selecting := _filter(asked)) is None:
            continue
        for pattern in selecting.pattern.named:
            found.setdefault(pattern, {})[index] = selecting
        if not selecting.pattern.named:
            indefinite[index] = selecting
    async for pattern in context.paced(acls.authorizer.rules.patterns() if indefinite else ()):
        for index, selecting in indefinite.items():
            if selecting.pattern.matches(pattern):
                found.setdefault(pattern, {})[index] = selecting
    return found


def _without(filters: Filters, removed: dict[Entry, int], before: frozenset[Entry]) -> frozenset[Entry]:
    """Return the rules that stay, and note the others, in each attempt again."""
    removed.clear()
    for entry in before:
        selecting = [index for index, selected in filters.items() if selected.entry.matches(entry)]
        if selecting:
            removed[entry] = min(selecting)
    return before - removed.keys()


def _codes(asked: DeleteAclsFilter) -> tuple[int, int, int, int]:
    return asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type


def _filter(asked: DeleteAclsFilter) -> BindingFilter | None:
    return binding_filter(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _response(
    count: int, removed: Removed, errors: Mapping[Pattern, KafkaError | None]
) -> DeleteAclsResponse:
    results: Sequence[DeleteAclsFilterResult] = [DeleteAclsFilterResult() for _ in range(count)]
    for pattern in sorted(removed):
        error = errors[pattern]
        for entry, index in sorted(removed[pattern].items()):
            results[index].matching_acls.append(
                DeleteAclsMatchingAcl(
                    error_code=0 if error is None else error.code,
                    error_message="" if error is None else str(error),
                    resource_type=pattern.type,
                    resource_name=pattern.name,
                    pattern_type=pattern.pattern_type,
                    principal=entry.principal,
                    host=entry.host,
                    operation=entry.operation,
                    permission_type=entry.permission,
                )
            )
    return DeleteAclsResponse(filter_results=list(results))
