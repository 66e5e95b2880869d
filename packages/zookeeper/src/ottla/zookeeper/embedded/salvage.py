"""Znodes that can still be read from a coordinator's files, each as its last readable change left it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ottla.zookeeper.embedded.data_tree import (
    DataSet,
    Node,
    NodeCreated,
    NodeDeleted,
    Transaction,
    Tree,
)
from ottla.zookeeper.embedded.transaction_log import (
    HEADER_BYTES,
    JOURNAL_FILE,
    SNAPSHOT_FILE,
    DamagedJournal,
    decode_snapshot,
    decode_transactions,
    next_record,
    record_at,
    record_bytes,
)
from ottla.zookeeper.errors import Marshalling
from ottla.zookeeper.paths import parent_of
from ottla.zookeeper.session import NULL, OPEN_ACL


class KeptZnode(NamedTuple):
    """A znode without owner: its data and version."""

    data: bytes
    version: int


@dataclass
class Salvage:
    """The persistent znodes by path; `losses` says in words what could not be read, empty when all was."""

    znodes: dict[str, KeptZnode] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def salvage(directory: Path) -> Salvage:
    """Read what can be read of a coordinator's files, and change none.

    A change behind a damaged part is applied, too: the znode has its newer data then. Znodes that were
    deleted in the damaged part are there again, and those that were only made in it are missing.
    """
    found = Salvage()
    tree = _snapshot(directory / SNAPSHOT_FILE, found)
    for transaction in _transactions(directory / JOURNAL_FILE, tree.zxid, found):
        if transaction.zxid > tree.zxid:  # the snapshot holds those before
            _apply(tree.nodes, transaction)
    found.znodes = {
        path: KeptZnode(node.data, node.version) for path, node in tree.nodes.items() if not node.owner
    }
    return found


def _snapshot(path: Path, found: Salvage) -> Tree:
    if not path.exists():
        return Tree()
    try:
        return decode_snapshot(path.read_bytes())
    except (DamagedJournal, Marshalling):
        found.losses.append(f"{path} is damaged, and nothing of it can be read")
        return Tree()


def _transactions(path: Path, zxid: int, found: Salvage) -> Iterator[Transaction]:
    if not path.exists():
        found.losses.append(f"{path} is missing")
        return
    data = path.read_bytes()
    position: int | None = HEADER_BYTES
    while position is not None and position < len(data):
        payload = record_at(data, position)
        if payload is None:
            behind = next_record(data, position, zxid)
            found.losses.append(f"bytes {position} to {behind or len(data)} of {path} cannot be read")
            position = behind
            continue
        try:
            for transaction in decode_transactions(payload):
                zxid = max(zxid, transaction.zxid)
                yield transaction
        except Marshalling:
            found.losses.append(f"the changes at byte {position} of {path} cannot be read")
        position += record_bytes(payload)


def _apply(nodes: dict[str, Node], transaction: Transaction) -> None:
    """Apply the changes of znodes as far as they fit; a znode whose parent is lost gets an empty one."""
    for change in transaction.changes:
        match change:
            case NodeCreated(path, data, acl, owner):
                _make_parents(nodes, path)
                nodes[path] = Node(data, acl, owner)
            case DataSet(path, data):
                _make_parents(nodes, path)
                node = nodes.setdefault(path, Node(data, OPEN_ACL))
                node.data, node.version = data, node.version + 1
            case NodeDeleted(path):
                for gone in [node for node in nodes if node == path or node.startswith(f"{path}/")]:
                    del nodes[gone]
            case _:
                pass


def _make_parents(nodes: dict[str, Node], path: str) -> None:
    parent = parent_of(path)
    while parent not in nodes:
        nodes[parent] = Node(NULL, OPEN_ACL)
        parent = parent_of(parent)
