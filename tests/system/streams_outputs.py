"""The outputs of a group, read by an independent client, and compared with the finished records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from streams_handlers import IMAGES, Image
from streams_journal import JournalReader, Kind
from streams_load import Change, change_of
from streams_member import DEAD_LETTERS

from peers.committed_records import read_committed


def judge_images(servers: str, journal: Path, changes: Iterable[Change]) -> list[str]:
    """Compare committed outputs: both parts of each record once, in order, of an attempt that finished."""
    reader = JournalReader(journal)
    finished = {(e.member, e.attempt) for e in reader.read() if e.kind == Kind.FINISHED}
    reader.close()
    images: dict[int, list[Image]] = {}
    wrong = []
    for message in read_committed(servers, IMAGES):
        one = msgspec.msgpack.decode(message.value(), type=Image)
        images.setdefault(one.key, []).append(one)
        if (one.member, one.attempt) not in finished:
            wrong.append(f"an output of an attempt that did not finish is committed: {one}")
    expected: dict[int, list[tuple[int, int]]] = {}
    for change in changes:
        if not change.is_poisoned:
            expected.setdefault(change.key, []).extend([(change.number, 0), (change.number, 1)])
    for key in expected.keys() | images.keys():
        found = [(each.number, each.part) for each in images.get(key, ())]
        if found != expected.get(key, []):
            wrong.append(
                f"the outputs of key {key} are {_difference(found, expected.get(key, []))} what they must be"
            )
    return wrong[:10]


def _difference(found: list[tuple[int, int]], expected: list[tuple[int, int]]) -> str:
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not (missing or more):
        return "in another order than"
    return f"not (missing: {sorted(missing)[:4]}, too many: {sorted(more)[:4]})"


def judge_dead_letters(servers: str, changes: Iterable[Change], *, once: bool) -> list[str]:
    """Compare dead letters with the records that always fail: each is there, and only once if `once`."""
    found = Counter(change_of(each.value()) for each in read_committed(servers, DEAD_LETTERS))
    expected = Counter(each for each in changes if each.is_poisoned)
    wrong = [f"there is no dead letter of {each}" for each in expected.keys() - found.keys()]
    wrong += [
        f"there is a dead letter of {each}, which did not fail" for each in found.keys() - expected.keys()
    ]
    if once:
        wrong += [f"there are {count} dead letters of {each}" for each, count in found.items() if count > 1]
    return wrong[:10]
