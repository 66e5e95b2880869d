"""Count and bound the memory that fetched data keeps alive. Pure.

Fetched data are views into the response they arrived in: the whole response stays in memory as long as one
of its partitions has records left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

from ottla.consumer.fetch.positions import FetchedData
from ottla.protocol.records import Buffer


def held_bytes(buffered: Iterable[FetchedData]) -> int:
    """Return how many bytes the buffered data keep alive, batches decompressed ahead included."""
    responses: dict[int, int] = {}
    extra = 0
    for fetched in buffered:
        response = _response(fetched)
        responses[id(response)] = len(response)
        extra += fetched.cursor.size_in_bytes - len(fetched.data)
    return sum(responses.values()) + extra


def copy_leftovers(buffered: Iterable[FetchedData]) -> None:
    """Release responses of which less than half is still needed, by copying the rest.

    At most half of the fetched bytes is ever copied, and only when memory is short.
    """
    by_response: dict[int, list[FetchedData]] = defaultdict(list)
    for fetched in buffered:
        by_response[id(_response(fetched))].append(fetched)
    for left in by_response.values():
        if 2 * sum(len(fetched.data) for fetched in left) < len(_response(left[0])):
            for fetched in left:
                fetched.copy()


def _response(fetched: FetchedData) -> Buffer:
    """Return the memory that the data point into."""
    data = fetched.data
    return cast("Buffer", data.obj) if isinstance(data, memoryview) else data
