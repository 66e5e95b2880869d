"""Describing groups of one kind: which of those that a client names it may see, and with which operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.broker.requests.authorization import authorized_operations, refused_names
from ottla.broker.requests.permissions import DESCRIBE_GROUPS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import (
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from ottla.broker.requests.context import RequestContext


class Described(Protocol):
    """A described group of any kind, as its response has it."""

    error_code: int
    error_message: str | None
    authorized_operations: int


G = TypeVar("G")
D = TypeVar("D", bound=Described)


async def describe_each(
    group_ids: Iterable[str],
    context: RequestContext,
    *,
    off: str | None,
    find: Callable[[str], G],
    describe: Callable[[G], Awaitable[D]],
    failed: Callable[[str], D],
    with_operations: bool,
) -> list[D]:
    """Describe each group once; one that is refused has the error, and nothing else.

    `off` is the reason why there are no groups of the kind, None where its feature is on. `find` and
    `describe` may raise KafkaError; `failed` makes the entry of a group without its facts.
    """
    group_ids = list(dict.fromkeys(group_ids))
    refused = await refused_names(context, DESCRIBE_GROUPS, group_ids)
    groups: list[D] = []
    for group_id in group_ids:
        try:
            if off is not None:
                raise UnsupportedVersion(off)
            if group_id in refused:  # before the search: a stranger does not learn whether it exists
                raise GroupAuthorizationFailed
            described = await describe(find(group_id))
        except KafkaError as error:
            described = failed(group_id)
            described.error_code, described.error_message = int(error.code), str(error) or None
        else:
            if with_operations:
                resource = Resource(ResourceType.GROUP, group_id)
                described.authorized_operations = authorized_operations(context, resource)
        groups.append(described)
    return groups


async def check_topics(context: RequestContext, names: Iterable[str], hidden: str) -> None:
    """Raise TopicAuthorizationFailed with `hidden` where the client may not describe one of the topics."""
    if await refused_names(context, DESCRIBE_TOPICS, dict.fromkeys(names)):
        raise TopicAuthorizationFailed(hidden)
