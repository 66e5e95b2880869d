"""Work on the assignment of a topic: at once for a small one, and beside the event loop for a large one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.protocol.errors import InvalidPartitions
from ottla.zookeeper.session import MAX_VALUE_BYTES

if TYPE_CHECKING:
    from ottla.zookeeper.znodes import TopicAssignment

T = TypeVar("T")

LARGE_PARTITIONS: Final = 1_000
BYTES_PER_PARTITION: Final = 10
"""About what a partition takes of a znode."""


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
