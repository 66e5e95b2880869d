"""Choose the version of a request that client and broker both support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.client.errors import UnsupportedByBroker
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

VersionRange = tuple[int, int]

# Later versions change the request's form (topic ids instead of names, several groups at once) or its meaning
# (transactions version 2, errors in place of empty descriptions): callers that use those ask for them.
CEILINGS: Final[Mapping[int, int]] = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 12,
    ApiKey.METADATA: 11,
    ApiKey.OFFSET_FETCH: 7,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.DELETE_TOPICS: 5,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.END_TXN: 4,
    ApiKey.UPDATE_FEATURES: 1,
}

BROKER_ANSWERS_FIRST: Final[Mapping[int, int]] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.CREATE_DELEGATION_TOKEN: 1,
    ApiKey.RENEW_DELEGATION_TOKEN: 1,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 1,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 1,
    ApiKey.DELETE_GROUPS: 1,
}
"""The versions from which on a broker answers at once and throttles afterwards (KIP-219).

For earlier ones brokers before 2.0 keep the response back instead. Younger APIs are not listed: 0.
"""


def must_wait(api_key: int, version: int) -> bool:
    """Return whether the throttle time of a response begins with the response, and not before it."""
    return version >= BROKER_ANSWERS_FIRST.get(api_key, 0)


# Brokers before 0.10 close the connection at ApiVersions. All of them since 0.8.2 have these versions.
BEFORE_API_VERSIONS: Final[Mapping[int, VersionRange]] = {
    ApiKey.PRODUCE: (0, 0),
    ApiKey.FETCH: (0, 0),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.METADATA: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 1),
    ApiKey.FIND_COORDINATOR: (0, 0),
}


def choose_version(
    request: type[Message],
    served: Mapping[int, VersionRange],
    *,
    min_version: int | None = None,
    max_version: int | None = None,
) -> int:
    """Return the highest version that both sides support, within the caller's bounds.

    A caller's `max_version` takes the place of our ceiling. Raises UnsupportedByBroker when there is none.
    """
    key = request.API_KEY
    least = max(request.MIN_VERSION, min_version or 0)
    ceiling = CEILINGS.get(key, request.MAX_VERSION) if max_version is None else max_version
    most = min(request.MAX_VERSION, ceiling)
    theirs = served.get(key)
    if theirs is None or min(most, theirs[1]) < max(least, theirs[0]):
        raise UnsupportedByBroker(key, (least, most), theirs)
    return min(most, theirs[1])
