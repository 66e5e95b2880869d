"""ACLs over an ensemble in memory: followed, changed by compare-and-set, and damaged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from ottla.broker.cluster.acls import MOST_ATTEMPTS, Acls, AclsBusy
from ottla.broker.cluster.notifications import NOTIFICATION_LIFE_MS
from ottla.broker.runtime.clock import SystemClock
from ottla.broker.security.acls.authorizer import AclAuthorizer
from ottla.broker.security.acls.bindings import Entry, Pattern, PatternType, PermissionType
from ottla.broker.security.authorizer import Operation, Resource, ResourceType
from ottla.broker.security.principal import Principal
from ottla.zookeeper import paths
from ottla.zookeeper.errors import ConnectionLoss, IllegalName, MalformedZnode
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession

ALICE, ROOT, HOST = Principal("User", "alice"), Principal("User", "root"), "10.0.0.1"
ORDERS = Pattern(ResourceType.TOPIC, PatternType.LITERAL, "orders")
PAY = Pattern(ResourceType.GROUP, PatternType.PREFIXED, "pay-")
MAY_READ = Entry("User:alice", "*", Operation.READ, PermissionType.ALLOW)
MAY_WRITE = MAY_READ._replace(operation=Operation.WRITE)
READ_JSON = (
    b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"Read"}],'
    b'"version":1}'
)

Change = Callable[[frozenset[Entry]], frozenset[Entry]]


def adding(*entries: Entry) -> Change:
    return lambda before: before | frozenset(entries)


def removing(*entries: Entry) -> Change:
    return lambda before: before - frozenset(entries)


@dataclass
class Times:
    """A wall clock that is set."""

    now: int = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> float:
        return SystemClock().monotonic_ms()


class Harness:
    """One broker's ACLs, followed while it is entered."""

    def __init__(self, ensemble: MemoryEnsemble, session: MemorySession, times: Times) -> None:
        self.ensemble, self.session, self.times = ensemble, session, times
        self.authorizer = AclAuthorizer({"User:root"}, now_ms=times.monotonic_ms)
        self.acls = Acls(session, self.authorizer, times)
        self.changes = 0
        self.acls.on_change.append(self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def may_read(self, topic: str = "orders", principal: Principal = ALICE) -> bool:
        return self.authorizer.allows(principal, HOST, Operation.READ, Resource(ResourceType.TOPIC, topic))

    async def write(self, path: str, data: bytes) -> None:
        """Write rules as another broker does, with the notification behind them."""
        await self.session.create(path, data, make_parents=True)
        await self.session.create("/kafka-acl-changes/acl_changes_", b"TOPIC:orders", sequential=True)

    async def names(self, path: str) -> list[str]:
        return await self.session.children(path)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    times = Times()
    ensemble = MemoryEnsemble(now_ms=times.now_ms)
    async with ensemble.session() as session:
        harness = Harness(ensemble, session, times)
        await harness.acls.load()
        following = asyncio.ensure_future(harness.acls.follow())
        yield harness
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def settle() -> None:
    """Wait until the loop rests."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_added_rules_stand_in_kafkas_znodes_with_a_notification(harness: Harness) -> None:
    assert await harness.acls.alter({ORDERS: adding(MAY_READ), PAY: adding(MAY_READ)}) == [None, None]

    assert (await harness.session.get("/kafka-acl/Topic/orders"))[0] == READ_JSON
    assert (await harness.session.get("/kafka-acl-extended/prefixed/Group/pay-"))[0] == READ_JSON
    assert await harness.names("/kafka-acl-changes") == ["acl_changes_0000000000"]
    assert await harness.names("/kafka-acl-extended-changes") == ["acl_changes_0000000000"]
    assert harness.may_read()
    assert harness.changes >= 1


async def test_the_last_rule_takes_its_znode_with_it(harness: Harness) -> None:
    await harness.acls.alter({ORDERS: adding(MAY_READ, MAY_WRITE)})
    await harness.acls.alter({ORDERS: removing(MAY_WRITE)})
    assert (await harness.session.get("/kafka-acl/Topic/orders"))[0] == READ_JSON

    await harness.acls.alter({ORDERS: removing(MAY_READ)})

    assert await harness.session.exists("/kafka-acl/Topic/orders") is None
    assert not harness.may_read()


async def test_a_change_without_effect_writes_nothing(harness: Harness) -> None:
    await harness.acls.alter({ORDERS: adding(MAY_READ)})
    await settle()
    before = len(harness.ensemble.history), harness.changes

    assert await harness.acls.alter({ORDERS: adding(MAY_READ), PAY: removing(MAY_READ)}) == [None, None]

    await settle()
    assert (len(harness.ensemble.history), harness.changes) == before


async def test_the_change_of_another_broker_is_followed(harness: Harness) -> None:
    await harness.write("/kafka-acl/Topic/orders", READ_JSON)
    await settle()

    assert harness.may_read()
    assert harness.changes == 1

    await harness.session.delete("/kafka-acl/Topic/orders")
    await harness.session.create("/kafka-acl-changes/acl_changes_", b"Topic:orders", sequential=True)
    await settle()

    assert not harness.may_read()
    assert harness.changes == 2


async def test_every_broker_follows_a_burst_of_changes(harness: Harness) -> None:
    async with harness.ensemble.session() as session:
        other = Harness(harness.ensemble, session, harness.times)
        await other.acls.load()
        patterns = [ORDERS._replace(name=f"t{number}") for number in range(300)]

        assert set(await other.acls.alter(dict.fromkeys(patterns, adding(MAY_READ)))) == {None}
        await settle()

    assert all(harness.may_read(pattern.name) for pattern in patterns)
    assert harness.changes < 50, "the sessions are visited once for many changes"


@pytest.mark.parametrize("fault", ["disconnect", "expire"])
async def test_changes_that_were_missed_are_read_once_the_broker_is_connected_again(
    harness: Harness, fault: str
) -> None:
    await harness.acls.alter({PAY: adding(MAY_READ), ORDERS: adding(MAY_READ)})
    async with harness.ensemble.session() as session:
        other = Harness(harness.ensemble, session, harness.times)
        await other.acls.load()
        if fault == "disconnect":
            harness.ensemble.disconnect(harness.session)
        else:
            harness.ensemble.expire(harness.session, reconnect=False)

        await other.acls.alter({ORDERS: removing(MAY_READ)})
        for path in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
            for name in await session.children(path):  # also when the notifications are past their life
                await session.delete(f"{path}/{name}")
        await settle()
        assert harness.may_read(), "it cannot know"

        harness.ensemble.reconnect(harness.session)
        await settle()

    assert not harness.may_read()
    assert harness.authorizer.rules.patterns() == [PAY]


async def test_two_writers_of_one_pattern_both_succeed(harness: Harness) -> None:
    entries = [MAY_READ._replace(principal=f"User:{number}") for number in range(4)]
    async with harness.ensemble.session() as session:
        other = Harness(harness.ensemble, session, harness.times)
        await other.acls.load()

        found = await asyncio.gather(
            *(acls.alter({ORDERS: adding(entry)}) for entry in entries for acls in (harness.acls, other.acls))
        )
        await settle()

    assert found == [[None]] * 8
    assert harness.authorizer.rules.entries(ORDERS) == frozenset(entries)


async def test_a_pattern_that_others_change_all_the_time_is_given_up(harness: Harness) -> None:
    attempts = 0

    def change(before: frozenset[Entry]) -> frozenset[Entry]:
        nonlocal attempts
        attempts += 1
        other = MAY_READ._replace(principal=f"User:{attempts}")
        tree = harness.ensemble.tree
        writes = tree.nodes.get("/kafka-acl/Topic/orders")
        assert writes is not None
        writes.version += 1
        return before | {other}

    await harness.acls.alter({ORDERS: adding(MAY_READ)})
    (error,) = await harness.acls.alter({ORDERS: change})

    assert isinstance(error, AclsBusy)
    assert attempts == MOST_ATTEMPTS


async def test_without_zookeeper_a_change_fails_and_the_known_rules_decide(harness: Harness) -> None:
    await harness.acls.alter({ORDERS: adding(MAY_READ)})
    harness.ensemble.stop()

    (error,) = await harness.acls.alter({ORDERS: removing(MAY_READ)})

    assert isinstance(error, ConnectionLoss)
    assert harness.may_read()


async def test_an_answer_that_was_lost_is_no_lost_change(harness: Harness) -> None:
    harness.ensemble.lose_next_reply(harness.session)
    await harness.acls.alter({ORDERS: adding(MAY_READ)})
    await settle()

    assert await harness.acls.alter({ORDERS: adding(MAY_READ)}) == [None]
    assert harness.may_read()


@pytest.mark.parametrize("data", [b'{"version":2,"acls":[]}', b'{"version":1,"acls":[', b"\0\xff"])
async def test_rules_that_cannot_be_read_close_their_resource_and_are_named_once(
    harness: Harness, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    await harness.acls.alter({ORDERS._replace(name="*"): adding(MAY_READ)})
    assert harness.may_read()

    await harness.write("/kafka-acl/Topic/orders", data)
    await settle()

    assert not harness.may_read()
    assert harness.may_read(principal=ROOT)
    assert harness.may_read("other")
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(line)["path"] == "/kafka-acl/Topic/orders"

    (error,) = await harness.acls.alter({ORDERS: adding(MAY_READ)})
    assert isinstance(error, MalformedZnode)
    assert (await harness.session.get("/kafka-acl/Topic/orders"))[0] == data, "they are not overwritten"

    await harness.session.set("/kafka-acl/Topic/orders", READ_JSON)
    await harness.session.create("/kafka-acl-changes/acl_changes_", b"TOPIC:orders", sequential=True)
    await settle()
    assert harness.may_read()


async def test_damaged_notifications_and_unknown_types_are_skipped(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.session.create("/kafka-acl/House")
    for folder, data in (("/kafka-acl-changes", b"HOUSE:a"), ("/kafka-acl-extended-changes", b"TOPIC:a")):
        await harness.session.create(f"{folder}/acl_changes_", data, sequential=True)
    await settle()
    await harness.acls.load()
    await harness.acls.load()

    await harness.write("/kafka-acl/Topic/orders", READ_JSON)
    await settle()

    assert harness.may_read()
    assert [record.getMessage() for record in caplog.records] == [
        "notification of ACLs ignored",
        "notification of ACLs ignored",
        "ACLs ignored: their type of resource is unknown",
    ]


async def test_notifications_are_removed_past_their_life(harness: Harness) -> None:
    await harness.acls.alter({ORDERS: adding(MAY_READ)})
    await settle()
    harness.times.now += NOTIFICATION_LIFE_MS + 1

    await harness.acls.alter({ORDERS: adding(MAY_WRITE)})
    await settle()

    assert await harness.names("/kafka-acl-changes") == ["acl_changes_0000000001"]


async def test_a_name_that_no_znode_can_have_is_refused(harness: Harness) -> None:
    found = await harness.acls.alter({ORDERS._replace(name=".."): adding(MAY_READ), ORDERS: adding(MAY_READ)})

    assert isinstance(found[0], IllegalName)
    assert found[1] is None


async def test_parents_that_were_deleted_are_made_again(harness: Harness) -> None:
    await harness.session.delete("/kafka-acl/Topic")
    await harness.session.delete(paths.KAFKA_ACL_CHANGES)

    assert await harness.acls.alter({ORDERS: adding(MAY_READ)}) == [None]
