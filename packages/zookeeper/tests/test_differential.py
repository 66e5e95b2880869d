"""Random operations give the same on the embedded coordinator as on a real ZooKeeper."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

pytestmark = pytest.mark.java

OPERATIONS = 300
VERBS = (
    ["create"] * 6 + ["delete"] * 4 + ["set"] * 3 + ["multi"] * 3
    + ["get", "exists", "children", "children_stat", "acl", "sync"]
)  # fmt: skip


class Step(NamedTuple):
    verb: str
    path: str
    data: bytes
    version: int
    ephemeral: bool
    sequential: bool
    with_stat: bool
    watch: bool
    multi: tuple[tuple[str, str, int, bool], ...]


def steps(seed: int) -> Iterator[Step]:
    rng = random.Random(seed)

    def path(depth: int) -> str:
        if rng.random() < 0.02:
            return rng.choice(["//x", "/x/", "/../x", "/x\x01"])
        return "/" + "/".join(rng.choice("abc") for _ in range(rng.randint(1, depth)))

    for _ in range(OPERATIONS):
        parts = tuple(
            (
                rng.choice(["create", "delete", "set", "check"]),
                "/" + "/".join(rng.choice("abc") for _ in range(rng.randint(1, 2))),
                rng.choice([-1, -1, 0, 1]),
                rng.random() < 0.3,
            )
            for _ in range(rng.randint(1, 4))
        )
        yield Step(
            rng.choice(VERBS),
            path(3),
            bytes([rng.randrange(256)]) * rng.randrange(4),
            rng.choice([-1, -1, 0, 1, 2]),
            rng.random() < 0.25,
            rng.random() < 0.25,
            rng.random() < 0.3,
            rng.random() < 0.5,
            parts,
        )


class Subject:
    """One server, with the events of its watches."""

    def __init__(self, hosts: str, root: str) -> None:
        self.client = KazooClient(f"{hosts}{root}", timeout=20)
        self.events: list[tuple[str, str]] = []
        self._heard = threading.Condition()

    def hear(self, event: Any) -> None:
        with self._heard:
            self.events.append((event.type, event.path))
            self._heard.notify_all()

    def wait_for_events(self, count: int) -> None:
        with self._heard:
            self._heard.wait_for(lambda: len(self.events) >= count, timeout=5)

    def do(self, step: Step) -> object:
        try:
            return normal(self._do(step))
        except Exception as error:
            return ("error", type(error).__name__)

    def _do(self, step: Step) -> Any:
        client, path = self.client, step.path
        watch = self.hear if step.watch else None
        match step.verb:
            case "create":
                return client.create(
                    path,
                    step.data,
                    ephemeral=step.ephemeral,
                    sequence=step.sequential,
                    include_data=step.with_stat,
                )
            case "delete":
                return client.delete(path, version=step.version)
            case "set":
                return client.set(path, step.data, version=step.version)
            case "get":
                return client.get(path, watch=watch)
            case "exists":
                return client.exists(path, watch=watch)
            case "children":
                return sorted(client.get_children(path, watch=watch))
            case "children_stat":
                names, stat = client.get_children(path, watch=watch, include_data=True)
                return sorted(names), stat
            case "acl":
                return client.get_acls(path)
            case "sync":
                return client.sync(path)
        return self._multi(step)

    def _multi(self, step: Step) -> Any:
        transaction = self.client.transaction()
        for verb, path, version, sequential in step.multi:
            match verb:
                case "create":
                    transaction.create(path, b"t", sequence=sequential)
                case "delete":
                    transaction.delete(path, version=version)
                case "set":
                    transaction.set_data(path, b"zz", version=version)
                case _:
                    transaction.check(path, version)
        return transaction.commit()


def normal(result: Any) -> object:
    """Return a result without what must differ: ids, zxids and times."""
    if isinstance(result, ZnodeStat):
        counted = (result.version, result.cversion, result.aversion, result.dataLength, result.numChildren)
        changed = (result.czxid == result.mzxid, result.mzxid == result.pzxid, result.ctime == result.mtime)
        return (*counted, bool(result.ephemeralOwner), changed[:2])
    if isinstance(result, Exception):
        return ("error", type(result).__name__)
    if isinstance(result, list | tuple):
        return [normal(each) for each in result]
    return result


@contextmanager
def subject(hosts: str, root: str) -> Iterator[Subject]:
    outside = KazooClient(hosts, timeout=20)
    outside.start(timeout=20)
    outside.create(root)
    one = Subject(hosts, root)
    one.client.start(timeout=20)
    try:
        yield one
    finally:
        one.client.stop()
        one.client.close()
        outside.delete(root, recursive=True)
        outside.stop()
        outside.close()


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_give_the_same_on_both(seed: int, embedded_server: str, real_server: str) -> None:
    with subject(real_server, f"/diff{seed}") as real, subject(embedded_server, f"/diff{seed}") as embedded:
        for number, step in enumerate(steps(seed)):
            assert embedded.do(step) == real.do(step), f"seed {seed}, step {number}: {step}"

        embedded.wait_for_events(len(real.events))
        real.wait_for_events(len(embedded.events))
        assert embedded.events == real.events, f"seed {seed}"
