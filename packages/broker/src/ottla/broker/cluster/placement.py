"""Replica placement of new partitions, by Kafka's rule, beside the event loop for a large topic.

The first replicas go round the brokers from a random start. The others follow at a distance that grows by one
with each round, so that the leaderships of a failed broker spread over all others. With racks, brokers are
first interleaved by rack, and a rack is used twice only when each has been used once.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.protocol.errors import BrokerNotAvailable, InvalidPartitions, InvalidReplicationFactor
from ottla.zookeeper.session import MAX_VALUE_BYTES

if TYPE_CHECKING:
    from ottla.zookeeper.znodes import TopicAssignment


T = TypeVar("T")

LARGE_PARTITIONS: Final = 1_000
BYTES_PER_PARTITION: Final = 10
"""About what a partition takes of a znode."""

Charge = Callable[[int], object]
"""Counts partitions that are about to be created or deleted; raises ThrottlingQuotaExceeded."""


def uncounted(_: int) -> None:
    """Count nothing: no client asks for it."""


Assignments = dict[int, list[int]]


async def for_partitions(count: int, work: Callable[[], T]) -> T:
    """Call `work`, which changes nothing, on the assignment of so many partitions; on a thread for many.

    Placing and encoding 50,000 partitions takes a tenth of a second. On a thread it only competes with the
    loop for the interpreter, in turns of 5 ms.
    """
    return work() if count < LARGE_PARTITIONS else await asyncio.to_thread(work)


async def for_bytes(size: int, work: Callable[[], T]) -> T:
    """Call `work` on the assignment in so many bytes of a znode."""
    return await for_partitions(size // BYTES_PER_PARTITION, work)


def encoded(node: TopicAssignment) -> bytes:
    """Return a znode's data; raises InvalidPartitions for an assignment that none can hold."""
    data = node.encode()
    if len(data) > MAX_VALUE_BYTES:
        raise InvalidPartitions(
            f"The assignment of {len(node.partitions)} partitions with these replicas takes {len(data)} "
            f"bytes, and a znode holds {MAX_VALUE_BYTES}: ask for fewer partitions, or for fewer replicas."
        )
    return data


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    random: Random,
    racks: Mapping[int, str | None] | None = None,
    start_index: int | None = None,
    first_partition: int = 0,
) -> Assignments:
    """Assign replicas to `partitions` partitions, numbered from `first_partition`.

    `start_index` fixes both the first broker and the distance: partitions that are added to a topic continue
    its pattern. Racks are considered only when every broker has one.

    Raises InvalidPartitions, InvalidReplicationFactor or BrokerNotAvailable.
    """
    _check_counts(len(brokers), partitions, replication_factor)
    start = random.randrange(len(brokers)) if start_index is None else start_index
    shift = random.randrange(len(brokers)) if start_index is None else start_index
    known = {broker: rack for broker in brokers if racks and (rack := racks.get(broker))}
    if known and len(known) == len(brokers):
        return _with_racks(known, partitions, replication_factor, start, shift, first_partition)
    return _without_racks(sorted(brokers), partitions, replication_factor, start, shift, first_partition)


def _check_counts(brokers: int, partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise InvalidPartitions("Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if not brokers:
        raise BrokerNotAvailable("No broker is registered.")
    if replication_factor > brokers:
        raise InvalidReplicationFactor(
            f"Replication factor: {replication_factor} larger than available brokers: {brokers}."
        )


def replica_index(first: int, shift: int, replica: int, brokers: int) -> int:
    """Return the index of follower number `replica` when the first replica is at index `first`."""
    return (first + 1 + (shift + replica) % (brokers - 1)) % brokers


def _without_racks(
    brokers: Sequence[int], partitions: int, factor: int, start: int, shift: int, first_partition: int
) -> Assignments:
    count = len(brokers)
    assignments: Assignments = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        followers = (replica_index(first, shift, replica, count) for replica in range(factor - 1))
        assignments[partition] = [brokers[first], *(brokers[index] for index in followers)]
    return assignments


def interleave_by_rack(racks: Mapping[int, str]) -> list[int]:
    """Order brokers so that neighbours are in different racks as far as possible."""
    by_rack = itertools.groupby(sorted(racks, key=lambda b: (racks[b], b)), key=lambda b: racks[b])
    columns = [list(members) for _, members in by_rack]
    rows = itertools.zip_longest(*columns)
    return [broker for row in rows for broker in row if broker is not None]


def _with_racks(
    racks: Mapping[int, str], partitions: int, factor: int, start: int, shift: int, first_partition: int
) -> Assignments:
    arranged = interleave_by_rack(racks)
    count = len(arranged)
    assignments: Assignments = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start) % count
        assignments[partition] = _spread(arranged, racks, first, shift, factor)
    return assignments


def _spread(
    arranged: Sequence[int], racks: Mapping[int, str], first: int, shift: int, factor: int
) -> list[int]:
    number_of_racks = len(set(racks.values()))
    replicas = [arranged[first]]
    used_racks = {racks[arranged[first]]}
    for step in itertools.count():
        if len(replicas) == factor:
            break
        broker = arranged[replica_index(first, shift * number_of_racks, step, len(arranged))]
        rack_is_free = racks[broker] not in used_racks or len(used_racks) == number_of_racks
        if rack_is_free and broker not in replicas:
            replicas.append(broker)
            used_racks.add(racks[broker])
    return replicas


def new_id(random: Random) -> uuid.UUID:
    """Generate the id of a topic or a delegation token.

    As Kafka prints it, it never begins with a dash, which command lines take for an option.
    """
    while True:
        made = uuid.UUID(int=random.getrandbits(128), version=4)
        if not base64.urlsafe_b64encode(made.bytes).startswith(b"-"):
            return made
