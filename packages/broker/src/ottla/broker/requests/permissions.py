"""The permissions that requests need, as Kafka's documentation has them for each API of its protocol."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ottla.broker.security.authorizer import CLUSTER, Operation, Resource, ResourceType

_NAMED_BY: Final = {ResourceType.GROUP: "group_id", ResourceType.TRANSACTIONAL_ID: "transactional_id"}
"""The field of a request that names its only group or transactional id."""


class Permission(NamedTuple):
    """An operation on a type of resource."""

    operation: Operation
    type: ResourceType
    is_asked_first: bool = True
    """Whether the dispatcher asks, once and before the handler, and refuses the request as a whole."""

    @property
    def in_handler(self) -> Permission:
        """The permission where the handler asks: for each element of a list, or only for some requests."""
        return self._replace(is_asked_first=False)

    def resource_of(self, request: Any) -> Resource:
        """Return the resource of a request for which the dispatcher asks."""
        if self.type is ResourceType.CLUSTER:
            return CLUSTER
        return Resource(self.type, getattr(request, _NAMED_BY[self.type]))


def _on_topics(operation: Operation) -> Permission:
    """Topics stand in lists: the others of a list are served when one is refused."""
    return Permission(operation, ResourceType.TOPIC, is_asked_first=False)


# A plural is asked for in the handler: a list names several, or the request may name none.
READ_TOPICS: Final = _on_topics(Operation.READ)
WRITE_TOPICS: Final = _on_topics(Operation.WRITE)
CREATE_TOPICS: Final = _on_topics(Operation.CREATE)
DELETE_TOPICS: Final = _on_topics(Operation.DELETE)
ALTER_TOPICS: Final = _on_topics(Operation.ALTER)
DESCRIBE_TOPICS: Final = _on_topics(Operation.DESCRIBE)
DESCRIBE_TOPIC_CONFIGS: Final = _on_topics(Operation.DESCRIBE_CONFIGS)
ALTER_TOPIC_CONFIGS: Final = _on_topics(Operation.ALTER_CONFIGS)
READ_GROUP: Final = Permission(Operation.READ, ResourceType.GROUP)
READ_GROUPS: Final = READ_GROUP.in_handler
DELETE_GROUP: Final = Permission(Operation.DELETE, ResourceType.GROUP)
DELETE_GROUPS: Final = DELETE_GROUP.in_handler
DESCRIBE_GROUPS: Final = Permission(Operation.DESCRIBE, ResourceType.GROUP, is_asked_first=False)
DESCRIBE_GROUP_CONFIGS: Final = Permission(
    Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, is_asked_first=False
)
ALTER_GROUP_CONFIGS: Final = Permission(Operation.ALTER_CONFIGS, ResourceType.GROUP, is_asked_first=False)
WRITE_TXN: Final = Permission(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
WRITE_TXNS: Final = WRITE_TXN.in_handler
DESCRIBE_TXNS: Final = Permission(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, is_asked_first=False)
CREATE_TOKENS: Final = Permission(Operation.CREATE_TOKENS, ResourceType.USER, is_asked_first=False)
DESCRIBE_TOKENS: Final = Permission(Operation.DESCRIBE_TOKENS, ResourceType.USER, is_asked_first=False)
DESCRIBE_TOKEN: Final = Permission(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, is_asked_first=False)
CREATE: Final = Permission(Operation.CREATE, ResourceType.CLUSTER)
ALTER: Final = Permission(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE: Final = Permission(Operation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION: Final = Permission(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
DESCRIBE_CONFIGS: Final = Permission(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CONFIGS: Final = Permission(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
IDEMPOTENT_WRITE: Final = Permission(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
