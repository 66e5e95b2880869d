"""How much memory is held by what was fetched: a whole answer, as long as a piece of it is left. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

from ottla.consumer.fetch.positions import Piece
from ottla.protocol.records import Buffer


def held_bytes(pieces: Iterable[Piece]) -> int:
    """Return how many bytes pieces keep alive, with what was decompressed of them ahead."""
    wholes: dict[int, int] = {}
    extra = 0
    for piece in pieces:
        whole = _whole(piece)
        wholes[id(whole)] = len(whole)
        extra += piece.cursor.size_in_bytes - len(piece.data)
    return sum(wholes.values()) + extra


def copy_leftovers(pieces: Iterable[Piece]) -> None:
    """Let go of answers of which more than half is needed no more: what is left of them is copied.

    So at most half of what is fetched is ever copied, and that only where memory is short.
    """
    by_answer: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        by_answer[id(_whole(piece))].append(piece)
    for left in by_answer.values():
        if 2 * sum(len(piece.data) for piece in left) < len(_whole(left[0])):
            for piece in left:
                piece.copy()


def _whole(piece: Piece) -> Buffer:
    """Return the memory that a piece lies in."""
    data = piece.data
    return cast("Buffer", data.obj) if isinstance(data, memoryview) else data
